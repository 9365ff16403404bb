-- Scheduled jobs and their runs. The table before had no use.
drop table cron_jobs;

create table jobs (
  job_id               text primary key,
  agent_id             text not null,
  name                 text not null,
  description          text,
  source               text not null,
  enabled              integer not null,
  delete_after_run     integer not null,
  schedule             text not null,
  target               text not null,
  wake_mode            text not null,
  payload              text not null,
  delivery             text not null,
  failure_alert        text,
  session_key          text,
  tools                text,
  sandboxed            integer not null,
  next_run_at_ms       integer,
  missed_at_ms         integer,
  attempts             integer not null,
  turn_id              text,
  last_run_at_ms       integer,
  last_status          text,
  last_error           text,
  last_duration_ms     integer,
  last_delivery_status text,
  last_delivery_error  text,
  consecutive_errors   integer not null,
  disabled_reason      text,
  disabled_at_ms       integer,
  alerted_at_ms        integer,
  created_at_ms        integer not null,
  updated_at_ms        integer not null
);
-- A job that is running or off is not due, and costs nothing to pass over.
create index jobs_due on jobs (next_run_at_ms, job_id)
  where enabled = 1 and turn_id is null and next_run_at_ms is not null;
create index jobs_by_turn on jobs (turn_id) where turn_id is not null;
create index jobs_by_session on jobs (session_key) where session_key is not null;

create table job_runs (
  run_id          text primary key,
  job_id          text not null,
  job_name        text not null,
  agent_id        text not null,
  trigger         text not null,
  due_at_ms       integer not null,
  started_at_ms   integer not null,
  ended_at_ms     integer,
  status          text not null,
  error           text,
  summary         text,
  session_key     text,
  session_id      text,
  delivery_id     text,
  delivery_status text not null,
  delivery_error  text,
  input_tokens    integer not null,
  output_tokens   integer not null,
  cost_usd        real not null
);
create index job_runs_of on job_runs (job_id, started_at_ms desc, run_id desc);
create index job_runs_recent on job_runs (started_at_ms desc, run_id desc);
create index job_runs_delivery on job_runs (delivery_id) where delivery_id is not null;
create index job_runs_ended on job_runs (ended_at_ms, run_id) where ended_at_ms is not null;
