-- name: exchange_insert
insert into exchanges ({Exchange}) values ({:Exchange})

-- name: exchange_get
select {Exchange} from exchanges where exchange_id = :exchange_id

-- name: exchange_update
update exchanges set state = :state, phase = :phase, end_reason = :end_reason, loop_end = :loop_end,
  turn_id = :turn_id, wait_until_ms = :wait_until_ms, turns_done = :turns_done, first_reply = :first_reply,
  last_reply = :last_reply, outcome = :outcome, error = :error, on_complete = :on_complete,
  updated_at_ms = :updated_at_ms
where exchange_id = :exchange_id

-- name: exchanges_recent
select {Exchange} from exchanges where created_at_ms <= :before_ms
  and (created_at_ms < :before_ms or exchange_id > :after_id)
order by created_at_ms desc, exchange_id limit :limit

-- name: exchanges_traffic
-- Totals per requester, target and kind. Messages are the request and the reply of each turn.
select e.requester_key, e.target_key, e.kind, count(*), sum(1 + t.said), sum(t.tokens), sum(t.cost),
  sum(e.state in ('failed', 'expired')), max(e.updated_at_ms)
from exchanges e join (
  select e.exchange_id, count(t.reply) as said, total(t.input_tokens + t.output_tokens) as tokens,
    total(t.cost_usd) as cost
  from exchanges e left join turns t on t.exchange_id = e.exchange_id
  where e.created_at_ms >= :since_ms
  group by e.exchange_id
) t on t.exchange_id = e.exchange_id
where e.requester_key is not null
group by e.requester_key, e.target_key, e.kind
order by 5 desc, e.requester_key, e.target_key limit :limit

-- name: exchange_turns
select {Turn} from turns where exchange_id = :exchange_id order by accepted_at_ms, turn_id

-- name: exchanges_open_of
-- Open exchanges that a session is the requester or target of.
select {Exchange} from exchanges where state = 'open' and target_key = :key
union all
select {Exchange} from exchanges where state = 'open' and requester_key = :key and target_key <> :key

-- name: exchanges_blank
-- When a session is deleted: the row stays, its texts are removed.
update exchanges set request = '', first_reply = null, last_reply = null
where target_key = :key or requester_key = :key

-- name: exchanges_awaited
-- The targets a session waits for: open sends in the primary phase, and open runs of its joins. Only of turns
-- that have not ended.
select target_key from (
  select e.target_key, e.created_at_ms, e.exchange_id as id from exchanges e
  where e.requester_key = :key and e.state = 'open' and e.phase = 'primary' and e.wait_until_ms > :now_ms
    and exists (select 1 from turns t where t.turn_id = e.caller_turn_id and t.status <> 'ended')
  union all
  select t.session_key, w.created_at_ms, t.turn_id
  from waits w join turns c on c.turn_id = w.turn_id and c.status <> 'ended'
    join json_each(w.ids) run on true join turns t on t.turn_id = run.value and t.status <> 'ended'
  where w.session_key = :key and w.state = 'open' and w.kind = 'join' and w.deadline_ms > :now_ms
) as awaited
order by created_at_ms, id

-- name: exchanges_children
-- The spawns of a session, newest first.
select {Exchange} from exchanges where requester_key = :key and kind = 'spawn'
order by created_at_ms desc, exchange_id limit :limit

-- name: children_live
-- The number of running children of a session.
select count(*) from exchanges
where requester_key = :key and state = 'open' and phase = 'primary' and kind = 'spawn' and reports <> 'collect'

-- name: group_size
-- Of a group of spawns whose results are collected: how many run, and how many there are.
select coalesce(sum(state = 'open' and phase = 'primary'), 0), count(*) from exchanges
where requester_key = :key and reports = 'collect' and group_id is :group_id

-- name: group_runs
-- The first turns of a group, in the order accepted.
select t.turn_id from exchanges e join turns t on t.exchange_id = e.exchange_id and t.step = 'primary'
where e.requester_key = :key and e.reports = 'collect' and e.group_id = :group_id
order by e.created_at_ms, e.exchange_id

-- name: exchanges_of_any
-- Several exchanges, in the order accepted.
select {Exchange} from exchanges where exchange_id in (select value from json_each(:ids))
order by created_at_ms, exchange_id

-- name: exchanges_unswept
-- Ended spawns whose child is to be cleaned up: at once, or after the archive time.
select {Exchange} from exchanges where kind = 'spawn' and state <> 'open' and swept = 0
  and (cleanup = 'delete' and reports <> 'collect' or files is not null or updated_at_ms <= :due_ms)
  and updated_at_ms >= :after_ms and (updated_at_ms > :after_ms or exchange_id > :after_id)
order by updated_at_ms, exchange_id limit :limit

-- name: exchange_swept
-- Leaves updated_at_ms alone: it is the time the exchange ended.
update exchanges set files = null, swept = :swept where exchange_id = :exchange_id

-- name: exchanges_stale
-- Open exchanges without a change since :before_ms, oldest first.
select {Exchange} from exchanges where state = 'open' and updated_at_ms < :before_ms
order by updated_at_ms limit :limit

-- name: exchanges_counted
-- Open exchanges by phase, and by whether the requester waits for an answer.
select phase, case when wait_until_ms > :now_ms and phase = 'primary' then 'yes' else 'no' end, count(*)
from exchanges where state = 'open' group by 1, 2

-- name: exchanges_awaited_by_any
-- `exchanges_awaited` for several sessions.
select requester_key, target_key from (
  select e.requester_key, e.target_key, e.created_at_ms, e.exchange_id as id from exchanges e
  where e.requester_key in (select value from json_each(:keys)) and e.state = 'open' and e.phase = 'primary'
    and e.wait_until_ms > :now_ms
    and exists (select 1 from turns t where t.turn_id = e.caller_turn_id and t.status <> 'ended')
  union all
  select w.session_key, t.session_key, w.created_at_ms, t.turn_id
  from waits w join turns c on c.turn_id = w.turn_id and c.status <> 'ended'
    join json_each(w.ids) run on true join turns t on t.turn_id = run.value and t.status <> 'ended'
  where w.session_key in (select value from json_each(:keys)) and w.state = 'open' and w.kind = 'join'
    and w.deadline_ms > :now_ms
) as awaited
order by created_at_ms, id

-- name: exchanges_children_of_any
-- The spawns of several sessions, newest first.
select {Exchange} from exchanges where kind = 'spawn' and requester_key in (select value from json_each(:keys))
order by created_at_ms desc, exchange_id limit :limit

-- name: exchanges_turns
-- The turns of several exchanges, in the order accepted.
select {Turn} from turns where exchange_id in (select value from json_each(:ids))
order by accepted_at_ms, turn_id
