-- name: job_insert
insert into jobs ({Job}) values ({:Job})

-- name: job_update
update jobs set agent_id = :agent_id, name = :name, description = :description, source = :source,
  enabled = :enabled, delete_after_run = :delete_after_run, schedule = :schedule, target = :target,
  wake_mode = :wake_mode, payload = :payload, delivery = :delivery, failure_alert = :failure_alert,
  session_key = :session_key, tools = :tools, sandboxed = :sandboxed, next_run_at_ms = :next_run_at_ms,
  missed_at_ms = :missed_at_ms, attempts = :attempts, turn_id = :turn_id, last_run_at_ms = :last_run_at_ms,
  last_status = :last_status, last_error = :last_error, last_duration_ms = :last_duration_ms,
  last_delivery_status = :last_delivery_status, last_delivery_error = :last_delivery_error,
  consecutive_errors = :consecutive_errors, disabled_reason = :disabled_reason,
  disabled_at_ms = :disabled_at_ms, alerted_at_ms = :alerted_at_ms, updated_at_ms = :updated_at_ms
where job_id = :job_id

-- name: job_claim
-- Of several schedulers that found the same job due, one changes its next time and so gets the run.
update jobs set turn_id = :turn_id
where job_id = :job_id and turn_id is null and next_run_at_ms is :next_run_at_ms

-- name: job_get
select {Job} from jobs where job_id = :job_id

-- name: job_of_turn
select {Job} from jobs where turn_id = :turn_id

-- name: jobs_of_session
select {Job} from jobs where session_key = :session_key order by created_at_ms, job_id

-- name: jobs_list
-- A page in the order of creation; the previous page ended at (after_ms, after_id).
select {Job} from jobs
where created_at_ms >= :after_ms and (created_at_ms > :after_ms or job_id > :after_id)
order by created_at_ms, job_id limit :limit

-- name: jobs_declared
select {Job} from jobs where source = 'settings' order by job_id

-- name: jobs_due
select {Job} from jobs
where enabled = 1 and turn_id is null and next_run_at_ms is not null and next_run_at_ms <= :now_ms
order by next_run_at_ms, job_id limit :limit

-- name: jobs_next_at
select next_run_at_ms from jobs where enabled = 1 and turn_id is null and next_run_at_ms is not null
order by next_run_at_ms limit 1

-- name: jobs_late_counted
select count(*) from jobs
where enabled = 1 and turn_id is null and next_run_at_ms is not null and next_run_at_ms <= :now_ms

-- name: jobs_ahead
-- Jobs that ran in what is now the future: the clock was wrong by more than a day.
select {Job} from jobs where enabled = 1 and turn_id is null and last_run_at_ms > :after_ms

-- name: jobs_counted
select count(*), coalesce(sum(enabled), 0) from jobs

-- name: job_delete
delete from jobs where job_id = :job_id

-- name: job_run_insert
insert into job_runs ({JobRun}) values ({:JobRun})

-- name: job_run_get
select {JobRun} from job_runs where run_id = :run_id

-- name: job_run_of_delivery
select {JobRun} from job_runs where delivery_id = :delivery_id

-- name: job_run_update
update job_runs set ended_at_ms = :ended_at_ms, status = :status, error = :error, summary = :summary,
  delivery_id = :delivery_id, delivery_status = :delivery_status, delivery_error = :delivery_error,
  input_tokens = :input_tokens, output_tokens = :output_tokens, cost_usd = :cost_usd
where run_id = :run_id

-- name: job_runs_of
-- The runs of a job, newest first; the previous page ended at (before_ms, before_id).
select {JobRun} from job_runs
where job_id = :job_id and started_at_ms <= :before_ms
  and (started_at_ms < :before_ms or run_id < :before_id)
order by started_at_ms desc, run_id desc limit :limit

-- name: job_runs_recent
select {JobRun} from job_runs
where started_at_ms <= :before_ms and (started_at_ms < :before_ms or run_id < :before_id)
order by started_at_ms desc, run_id desc limit :limit

-- name: job_runs_open_in
-- The open runs in a session, which is about to be deleted.
select {JobRun} from job_runs where status = 'running' and run_id in (
  select turn_id from turns where session_key = :session_key and status <> 'ended'
)

-- name: job_runs_due
select ended_at_ms, run_id, 1 from job_runs
where ended_at_ms is not null and ended_at_ms < :before and ended_at_ms >= :after_time
  and (ended_at_ms > :after_time or run_id > :after_id)
order by ended_at_ms, run_id limit :limit

-- name: job_runs_remove
delete from job_runs where run_id in (select value from json_each(:ids))

-- name: job_transcripts_due
-- Transcripts of earlier runs, by number. The latest one stays, and one that a turn still writes to.
select t.number, t.session_id,
  t.session_id <> s.session_id
  and not exists (select 1 from turns o where o.session_key = t.session_key and o.status <> 'ended'
    and o.session_id = t.session_id)
from transcripts t join sessions s on s.key = t.session_key
where s.kind = 'cron' and t.number > :after_time and t.created_at_ms < :before
order by t.number limit :limit
