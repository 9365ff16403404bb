-- name: turn_insert
insert into turns ({Turn}) values ({:Turn})

-- name: turn_last_position
select coalesce((select position from turns where session_key = :session_key order by position desc limit 1), 0)

-- name: turn_get
select {Turn} from turns where turn_id = :turn_id

-- name: turn_head
-- The first turn of a session that has not ended: running, or the next to run.
select {Turn} from turns where session_key = :session_key and status <> 'ended' order by position limit 1

-- name: turns_open
select {Turn} from turns where status <> 'ended' order by accepted_at_ms, turn_id

-- name: turns_left
-- The turns that a process which is gone was running.
select {Turn} from turns where status = 'running' order by accepted_at_ms, turn_id

-- name: turns_to_run
-- Every turn that waits, in the order accepted.
select {Turn} from turns where status = 'queued' order by accepted_at_ms, turn_id limit :limit

-- name: turns_open_of
select {Turn} from turns where session_key = :session_key and status <> 'ended' order by position

-- name: turns_delete
delete from turns where session_key = :key

-- name: turn_claim
-- The higher fencing number excludes the previous holder.
update turns set status = 'running', claim = claim + 1, claimed_by = :claimed_by, boot_id = :boot_id,
  stopping = 0, input_seq = :input_seq, started_at_ms = coalesce(started_at_ms, :now_ms)
where turn_id = :turn_id and status = 'queued'

-- name: turns_queued
-- The queued turns of a session, in the order accepted.
select {Turn} from turns where session_key = :session_key and status = 'queued' order by position

-- name: turn_merge
update turns set status = 'ended', merged_into = :into, input_seq = :input_seq, ended_at_ms = :now_ms
where turn_id = :turn_id and status = 'queued'

-- name: turns_merged
-- The turns that were merged into this one, in the order accepted. They were queued behind it.
select {Turn} from turns
where session_key = :session_key and position > :position and merged_into = :turn_id order by position

-- name: turn_release
-- Release a claim, at shutdown or after a crash, which counts unless the turn was being stopped.
update turns set status = 'queued', claimed_by = null,
  crashes = crashes + case when stopping = 1 then 0 else :crashed end,
  crashed_at_ms = case when stopping = 1 or :crashed = 0 then crashed_at_ms else coalesce(crashed_at_ms, :now_ms) end
where turn_id = :turn_id and claim = :claim and status = 'running'

-- name: turn_progressed
-- A committed step shows that the turn is not what kills the gateway.
update turns set crashes = 0, crashed_at_ms = null where turn_id = :turn_id

-- name: turns_stopping
-- The gateway is being stopped: a kill from now on is not the fault of a turn.
update turns set stopping = 1 where status = 'running' and claimed_by = :claimed_by

-- name: turns_ended_of
select turn_id from turns
where turn_id in (select value from json_each(:ids)) and status = 'ended' and merged_into is null

-- name: turn_end
-- Only with the claim and status the caller knows: a stale claim cannot end the turn.
update turns set status = 'ended', outcome = :outcome, reply = :reply, error = :error,
  structured = :structured, schema_error = :schema_error, ended_at_ms = :now_ms
where turn_id = :turn_id and claim = :claim and status = :status

-- name: turn_abort
update turns set abort_reason = :reason where turn_id = :turn_id and status <> 'ended' and abort_reason is null

-- name: turn_add_usage
update turns set input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens,
  cost_usd = cost_usd + :cost_usd
where turn_id = :turn_id

-- name: turn_holds
select 1 from turns where turn_id = :turn_id and claim = :claim and status = 'running'

-- name: turns_counted
-- The number of running and queued turns per pool.
select pool, status, count(*) from turns where status <> 'ended' group by pool, status

-- name: turns_open_counted
-- The number of open turns of each session.
select session_key, count(*) from turns
where status <> 'ended' and session_key in (select value from json_each(:keys)) group by session_key

-- name: turns_open_of_any
select {Turn} from turns
where status <> 'ended' and session_key in (select value from json_each(:keys)) order by session_key, position

-- name: turns_by_ids
select {Turn} from turns where turn_id in (select value from json_each(:ids))
