-- The gateways that share this database.

-- name: gateway_join
insert into gateways (
  gateway_id, instance, name, host, machine, pid, url, version, started_at_ms, beat_at, draining, files
) values (
  :gateway_id, :instance, :name, :host, :machine, :pid, :url, :version, :started_at_ms, clock_timestamp(), :draining, :files
)
returning number

-- name: gateway_was_drained
-- What an operator asked of a gateway while it could not hear it.
select draining from gateways where gateway_id = :gateway_id
union all select draining from removed_gateways where gateway_id = :gateway_id

-- name: gateway_number
select number from gateways where gateway_id = :gateway_id for update

-- name: gateway_give_up_turns
-- A gateway that joins again has ended its turns by itself: they were not what kills it.
update turns set stopping = 1 where status = 'running' and claimed_by = :gateway_id

-- name: gateway_take_back_crashes
-- A gateway that was taken for dead is back, and its turns are not why it was silent.
update turns set crashes = crashes - 1, crashed_on = null,
  crashed_at_ms = case when crashes > 1 then crashed_at_ms end
where crashed_on = :gateway_id and crashes > 0 and status <> 'ended'

-- name: gateway_forget_instance
delete from gateways where instance = :instance

-- name: gateway_beat
-- Also tells the time, by which messages between gateways are dated.
update gateways set beat_at = clock_timestamp(), turns = :turns, clients = :clients, roles = :roles, url = :url,
  reloads = :reloads
where gateway_id = :gateway_id
returning draining, extract(epoch from beat_at)::float8

-- name: gateway_leave
delete from gateways where gateway_id = :gateway_id

-- name: gateway_remove
-- Only if it is as it was when it was found dead. If its process may live, it still sends to chats until it
-- has had no beat for so long (:may_send_s).
with removed as (
  delete from gateways where gateway_id = :gateway_id and beat_at = :beat_at returning gateway_id, beat_at, draining
), noted as (
  insert into removed_gateways (gateway_id, may_send_until, draining)
  select gateway_id, beat_at + :may_send_s * interval '1 second', draining from removed
)
select gateway_id from removed

-- name: gateways_forget_removed
delete from removed_gateways where may_send_until < clock_timestamp() - interval '1 day'

-- name: deliveries_interrupted
-- What gateways were sending that have ended, or have been without a beat for so long that they send no more.
select {Delivery} from deliveries d
where state = 'sending' and (claimed_by is null or claimed_by = :gateway_id or not exists (
  select 1 from gateways g where g.gateway_id = d.claimed_by
  union all
  select 1 from removed_gateways r where r.gateway_id = d.claimed_by and r.may_send_until > clock_timestamp()
))
order by created_at_ms, delivery_id

-- name: gateway_drain
update gateways set draining = :draining where gateway_id = :gateway_id

-- name: gateways_listed
-- Also whether each holds its lock, and for how long the database server has been running.
select g.gateway_id, g.instance, g.name, g.host, g.machine, g.pid, g.url, g.version, g.started_at_ms, g.beat_at,
  g.draining, g.files, g.turns, g.clients, g.roles, g.reloads, extract(epoch from clock_timestamp() - g.beat_at)::float8,
  exists (
    select 1 from pg_locks l where l.locktype = 'advisory' and l.granted and l.classid = :lock_class::oid
      and l.objid = g.number::oid and l.objsubid = 2
      and l.database = (select oid from pg_database where datname = current_database())
  ),
  extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8
from gateways g order by g.started_at_ms, g.gateway_id

-- name: gateways_alive
-- With whether all of that name are drained.
select name, min(draining) from gateways where beat_at > clock_timestamp() - interval '8 seconds' group by name

-- name: gateway_disconnect
-- End the connections of a gateway that is gone: they may hold locks.
select count(pg_terminate_backend(pid)) from pg_stat_activity
where application_name = :application and datname = current_database() and pid <> pg_backend_pid()

-- name: turns_left
select {Turn} from turns t
where status = 'running' and not exists (select 1 from gateways g where g.gateway_id = t.claimed_by)
order by accepted_at_ms, turn_id

-- name: turns_to_run
-- The next turns of sessions that run none, in the order accepted. With :home, not those with another home.
select {Turn} from turns t
where status = 'queued' and not exists (
  select 1 from turns before
  where before.session_key = t.session_key and before.status <> 'ended' and before.position < t.position
) and (:home is null or not exists (
  select 1 from sessions s where s.key = t.session_key and s.home <> :home
))
order by accepted_at_ms, turn_id limit :limit

-- name: approvals_left
select {Approval} from approvals a where state = 'pending' and not exists (
  select 1 from turns t join gateways g on g.gateway_id = t.claimed_by
  where t.turn_id = a.turn_id and t.status = 'running'
)
order by created_at_ms, approval_id

-- name: reservations_open
select {Reservation} from reservations
where turn_id in (
  select t.turn_id from turns t
  where t.status = 'running' and not exists (select 1 from gateways g where g.gateway_id = t.claimed_by)
)
order by turn_id
