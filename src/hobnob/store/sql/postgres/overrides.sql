-- What PostgreSQL has to be told in another way than SQLite. A query here takes the place of the shared one of the
-- same name.

-- name: transcript_insert
insert into transcripts (session_id, session_key, agent_id, created_at_ms)
values (:session_id, :session_key, :agent_id, :created_at_ms)

-- name: entries_from_position
-- A follower's position is the transaction it has read last: only transactions that cannot be preceded by a
-- running one are read, each of them whole.
select e.written_in, t.session_id, e.seq, e.role, e.turn_id, e.body, e.created_at_ms
from entries e join transcripts t on t.number = e.transcript
where e.written_in > :position and e.written_in < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
order by e.written_in fetch first (:limit) rows with ties

-- name: restored
-- Whether the database was dumped on another server, whose transactions had higher numbers: followers would read
-- nothing until this one has counted that far.
select exists (
  select 1 from entries where written_in >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
  union all
  select 1 from followers where position >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
)

-- name: restored_entries
-- All before the transactions of this server, in their order. Half as far as those of a copied store.
update entries set written_in = written_in - (1::bigint << 59) where written_in > 0

-- name: restored_followers
update followers set position = position - (1::bigint << 59) where position > 0

-- name: lines_last_of_any
select t.session_id, e.seq, e.role, e.body
from json_each(:ids) wanted join transcripts t on t.session_id = wanted.value
cross join lateral (
  select seq, role, body from entries where transcript = t.number and role <> 'toolResult'
  order by seq desc limit :limit
) e
order by e.seq desc

-- name: sessions_newest_children
select {Session} from json_each(:keys) parent cross join lateral (
  select * from sessions c where c.spawned_by = parent.value and c.archived_at_ms is null
  order by c.created_at_ms desc, c.key limit :limit
) children
order by created_at_ms desc, key

-- name: sessions_recent_by_kind
select s.key, s.session_id, s.version, s.updated_at_ms from json_each(:each) kinds cross join lateral (
  select key, session_id, version, updated_at_ms from sessions
  where archived_at_ms is null and kind = kinds.value and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
    and (updated_at_ms < :before_ms or key > :after_key)
  order by updated_at_ms desc, key limit :limit
) s
order by s.updated_at_ms desc, s.key limit :limit

-- name: sessions_recent_by_agent
select s.key, s.session_id, s.version, s.updated_at_ms from json_each(:each) kinds cross join lateral (
  select key, session_id, version, updated_at_ms from sessions
  where archived_at_ms is null and agent_id = :agent_id and kind = kinds.value
    and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
    and (updated_at_ms < :before_ms or key > :after_key)
  order by updated_at_ms desc, key limit :limit
) s
order by s.updated_at_ms desc, s.key limit :limit

-- name: turn_release
-- Also notes the gateway whose end is counted: it takes that back if it was not dead.
update turns set status = 'queued', claimed_by = null,
  crashes = crashes + case when stopping = 1 then 0 else :crashed end,
  crashed_at_ms = case when stopping = 1 or :crashed = 0 then crashed_at_ms else coalesce(crashed_at_ms, :now_ms) end,
  crashed_on = case when stopping = 1 or :crashed = 0 then crashed_on else claimed_by end
where turn_id = :turn_id and claim = :claim and status = 'running'

-- name: session_last_input
select accepted_at_ms from turns
where session_key = :key and session_id = :session_id and step = 'message' and strpos(input, '"provenance"') = 0
order by position desc limit 1

-- name: exchanges_traffic
select e.requester_key, e.target_key, e.kind, count(*), sum(1 + t.said), sum(t.tokens), sum(t.cost),
  count(*) filter (where e.state in ('failed', 'expired')), max(e.updated_at_ms)
from exchanges e join (
  select e.exchange_id, count(t.reply) as said, coalesce(sum(t.input_tokens + t.output_tokens), 0) as tokens,
    coalesce(sum(t.cost_usd), 0) as cost
  from exchanges e left join turns t on t.exchange_id = e.exchange_id
  where e.created_at_ms >= :since_ms
  group by e.exchange_id
) t on t.exchange_id = e.exchange_id
where e.requester_key is not null
group by e.requester_key, e.target_key, e.kind
order by 5 desc, e.requester_key, e.target_key limit :limit

-- name: group_size
select count(*) filter (where state = 'open' and phase = 'primary'), count(*) from exchanges
where requester_key = :key and reports = 'collect' and group_id is not distinct from :group_id

-- name: job_claim
update jobs set turn_id = :turn_id
where job_id = :job_id and turn_id is null and next_run_at_ms is not distinct from :next_run_at_ms

-- name: inbox_insert
insert into inbox (channel, account_id, event_id, chat_id, thread_id, recipient, reply_thread_id, sender_id,
  sender_name, is_bot, state, code, why, fix, session_key, turn_id, body, due_at_ms, created_at_ms)
values (:channel, :account_id, :event_id, :chat_id, :thread_id, :recipient, :reply_thread_id, :sender_id,
  :sender_name, :is_bot, :state, :code, :why, :fix, :session_key, :turn_id, :body, :due_at_ms, :created_at_ms)

-- name: inbox_settle
update inbox set state = :state, code = :code, why = :why, fix = :fix_text, session_key = :session_key,
  turn_id = :turn_id, body = case when :keep_body = 1 then body else null end
where seq in (select value::bigint from json_each(:seqs)) and state = 'waiting'

-- name: inbox_still_waiting
-- Locked: another gateway may be taking them up.
select seq from inbox where seq in (select value::bigint from json_each(:seqs)) and state = 'waiting'
order by seq for update

-- name: inbox_due
select created_at_ms, seq, state not in ('waiting') from inbox
where created_at_ms < :before and created_at_ms >= :after_time
  and (created_at_ms > :after_time or seq > nullif(:after_id::text, '')::bigint)
order by created_at_ms, seq limit :limit

-- name: inbox_remove
delete from inbox where seq in (select value::bigint from json_each(:ids))

-- name: approvals_due
select created_at_ms, rowid, state <> 'pending' from approvals
where created_at_ms < :before and created_at_ms >= :after_time
  and (created_at_ms > :after_time or rowid > nullif(:after_id::text, '')::bigint)
order by created_at_ms, rowid limit :limit

-- name: approvals_remove
delete from approvals where rowid in (select value::bigint from json_each(:ids))

-- name: idempotency_due
select created_at_ms, rowid, not exists (
  select 1 from turns t where t.turn_id in (substr(scope, 1 + length('tool:')), key, answer)
    and t.status <> 'ended'
) from idempotency_keys
where created_at_ms < :before and created_at_ms >= :after_time
  and (created_at_ms > :after_time or rowid > nullif(:after_id::text, '')::bigint)
order by created_at_ms, rowid limit :limit

-- name: idempotency_remove
delete from idempotency_keys where rowid in (select value::bigint from json_each(:ids))

-- name: usage_due
select day, rowid, 1 from usage
where session_key <> '' and day < :before and day >= :after_time::text
  and (day > :after_time::text or rowid > nullif(:after_id::text, '')::bigint)
order by day, rowid limit :limit

-- name: usage_add_up
insert into usage ({Usage})
select day, agent_id, '', model, sum(calls), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens),
  sum(cache_write_tokens), sum(cost_usd)
from usage where rowid in (select value::bigint from json_each(:ids)) group by day, agent_id, model
on conflict (day, agent_id, session_key, model) do update set
  calls = usage.calls + excluded.calls, input_tokens = usage.input_tokens + excluded.input_tokens,
  output_tokens = usage.output_tokens + excluded.output_tokens,
  cache_read_tokens = usage.cache_read_tokens + excluded.cache_read_tokens,
  cache_write_tokens = usage.cache_write_tokens + excluded.cache_write_tokens,
  cost_usd = usage.cost_usd + excluded.cost_usd

-- name: usage_remove
delete from usage where rowid in (select value::bigint from json_each(:ids))

-- name: lock_session
-- The row of a session stands for its turns and its transcript: who changes them locks it first.
select 1 from sessions where key = :key for update

-- name: lock_session_now
-- No row if somebody has it, or there is none.
select 1 from sessions where key = :key for update skip locked

-- name: lock_advisory
-- Held until the transaction ends.
select 1 from (select pg_advisory_xact_lock(hashtextextended(:name::text, 0::bigint))) as held

-- name: lock_advisory_now
select pg_try_advisory_xact_lock(hashtextextended(:name::text, 0::bigint))

-- name: delivery_head
-- Also what another gateway is sending: it may give it back, and then that one is still the first. One statement
-- sees and locks both: a second one would miss what was given back in between.
select {Delivery} from deliveries
where state in ('pending', 'sending') and channel = :channel and coalesce(account_id, '') = :account_id
  and recipient = :recipient and (state = 'pending' or coalesce(claimed_by, '') <> :gateway_id)
order by rowid limit 1
