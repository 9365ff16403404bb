-- The queries `…_due` read the oldest rows that are old enough, `limit` at a time: time, id, and whether the row
-- may be removed. What is still needed is passed over: a turn that runs may ask again for all it caused, after
-- a crash.

-- name: turns_due
-- The last turn of a session stays: it is the session's state. So do the turns of an open exchange.
select t.ended_at_ms, t.turn_id,
  t.position < (select max(position) from turns where session_key = t.session_key)
  and not exists (select 1 from exchanges where exchange_id = t.exchange_id and state = 'open')
  and not exists (select 1 from turns where turn_id = t.caused_by and status <> 'ended')
from turns t
where t.status = 'ended' and t.ended_at_ms < :before and t.ended_at_ms >= :after_time
  and (t.ended_at_ms > :after_time or t.turn_id > :after_id)
order by t.ended_at_ms, t.turn_id limit :limit

-- name: turns_remove
delete from turns where turn_id in (select value from json_each(:ids))

-- name: exchanges_due
-- A spawn whose child is not cleaned up yet stays, and an exchange whose report waits for its turn.
select e.updated_at_ms, e.exchange_id,
  (e.kind <> 'spawn' or e.swept = 1)
  and not exists (select 1 from turns t where t.exchange_id = e.exchange_id and t.status <> 'ended')
  and not exists (select 1 from turns t where t.turn_id = e.caller_turn_id and t.status <> 'ended')
from exchanges e
where e.state <> 'open' and e.updated_at_ms < :before and e.updated_at_ms >= :after_time
  and (e.updated_at_ms > :after_time or e.exchange_id > :after_id)
order by e.updated_at_ms, e.exchange_id limit :limit

-- name: exchanges_remove
delete from exchanges where exchange_id in (select value from json_each(:ids))

-- name: deliveries_due
select updated_at_ms, delivery_id,
  not exists (select 1 from turns t where t.turn_id = deliveries.turn_id and t.status <> 'ended')
from deliveries
where state not in ('pending', 'sending') and updated_at_ms < :before and updated_at_ms >= :after_time
  and (updated_at_ms > :after_time or delivery_id > :after_id)
order by updated_at_ms, delivery_id limit :limit

-- name: deliveries_remove
delete from deliveries where delivery_id in (select value from json_each(:ids))

-- name: approvals_due
select created_at_ms, rowid, state <> 'pending' from approvals
where created_at_ms < :before and created_at_ms >= :after_time
  and (created_at_ms > :after_time or rowid > :after_id)
order by created_at_ms, rowid limit :limit

-- name: approvals_remove
delete from approvals where rowid in (select value from json_each(:ids))

-- name: idempotency_due
-- A key names the turn it belongs to in its scope (a tool call), in itself (a harness) or as its answer.
select created_at_ms, rowid, not exists (
  select 1 from turns t where t.turn_id in (substr(scope, 1 + length('tool:')), key, answer)
    and t.status <> 'ended'
) from idempotency_keys
where created_at_ms < :before and created_at_ms >= :after_time
  and (created_at_ms > :after_time or rowid > :after_id)
order by created_at_ms, rowid limit :limit

-- name: idempotency_remove
delete from idempotency_keys where rowid in (select value from json_each(:ids))

-- name: usage_due
select day, rowid, 1 from usage
where session_key <> '' and day < :before and day >= :after_time and (day > :after_time or rowid > :after_id)
order by day, rowid limit :limit

-- name: usage_add_up
-- Add rows to the sum of their day, agent and model.
insert into usage ({Usage})
select day, agent_id, '', model, sum(calls), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens),
  sum(cache_write_tokens), sum(cost_usd)
from usage where rowid in (select value from json_each(:ids)) group by day, agent_id, model
on conflict (day, agent_id, session_key, model) do update set
  calls = usage.calls + excluded.calls, input_tokens = usage.input_tokens + excluded.input_tokens,
  output_tokens = usage.output_tokens + excluded.output_tokens,
  cache_read_tokens = usage.cache_read_tokens + excluded.cache_read_tokens,
  cache_write_tokens = usage.cache_write_tokens + excluded.cache_write_tokens,
  cost_usd = usage.cost_usd + excluded.cost_usd

-- name: usage_remove
delete from usage where rowid in (select value from json_each(:ids))

-- name: transcripts_due
-- Transcripts that another one of their session replaced before :before, by number. A turn that was accepted
-- before the reset may still have to write to the old one.
select t.number, t.session_id,
  t.session_id <> (select s.session_id from sessions s where s.key = t.session_key)
  and exists (select 1 from transcripts n where n.session_key = t.session_key and n.number > t.number
    and n.created_at_ms < :before)
  and not exists (select 1 from turns o where o.session_key = t.session_key and o.status <> 'ended'
    and o.session_id = t.session_id)
from transcripts t
where t.number > :after_time and t.created_at_ms < :before
order by t.number limit :limit

-- name: transcripts_purge
-- Leave the entries of transcripts to be purged. Those behind the index will not be indexed any more.
insert into purges (transcript, indexed)
select number, coalesce((select position from followers where name = 'words'), 0)
from transcripts where session_id in (select value from json_each(:ids))

-- name: transcripts_unfile
-- Leave the files of transcripts to be deleted.
insert into removals (session_id, agent_id)
select session_id, agent_id from transcripts where session_id in (select value from json_each(:ids))

-- name: transcripts_remove
delete from transcripts where session_id in (select value from json_each(:ids))

-- name: purge_next
select transcript, indexed from purges order by transcript limit 1

-- name: purge_entries
-- The next entries of a transcript that is purged.
select position, seq, role, turn_id, body, created_at_ms from entries
where transcript = :transcript order by seq limit :limit

-- name: purge_delete
-- Never of a transcript that still exists: transcripts are append-only.
delete from entries where transcript = :transcript and seq <= :seq
  and not exists (select 1 from transcripts where number = :transcript)

-- name: purge_done
delete from purges where transcript = :transcript

-- name: sessions_idle
-- Listed sessions, the longest unused first.
select {Session} from sessions
where archived_at_ms is null and updated_at_ms <= :until_ms and updated_at_ms >= :after_time
  and (updated_at_ms > :after_time or key < :after_id)
order by updated_at_ms, key desc limit :limit

-- name: sessions_idle_archived
select {Session} from sessions
where archived_at_ms is not null and updated_at_ms <= :until_ms and updated_at_ms >= :after_time
  and (updated_at_ms > :after_time or key < :after_id)
order by updated_at_ms, key desc limit :limit

-- name: sessions_beyond
-- The first listed session beyond the :count most recently used.
select updated_at_ms, key from sessions where archived_at_ms is null
order by updated_at_ms desc, key limit 1 offset :count

-- name: sessions_beyond_archived
select updated_at_ms, key from sessions where archived_at_ms is not null
order by updated_at_ms desc, key limit 1 offset :count

-- name: session_in_use
-- Whether a session has an open turn, exchange or delivery, or a child that is not archived.
select exists (select 1 from turns where session_key = :key and status <> 'ended')
  or exists (select 1 from exchanges where target_key = :key and state = 'open')
  or exists (select 1 from exchanges where requester_key = :key and state = 'open')
  or exists (select 1 from deliveries where session_key = :key and state in ('pending', 'sending'))
  or exists (select 1 from sessions where spawned_by = :key and archived_at_ms is null)
