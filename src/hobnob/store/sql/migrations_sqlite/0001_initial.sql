-- Times are milliseconds since 1970, ids are made by us, booleans are 0 or 1.

create table sessions (
  key                text primary key,
  agent_id           text not null,
  kind               text not null,
  shape              text not null,
  channel            text,
  chat_type          text,
  account_id         text,
  peer               text,
  thread_id          text,
  parent_key         text,
  session_id         text not null unique,
  label              text,
  display_name       text,
  status             text not null,
  model              text,
  model_override     text,
  thinking_level     text,
  verbose_level      text,
  send_policy        text,
  last_channel       text,
  last_to            text,
  last_account_id    text,
  last_thread_id     text,
  spawned_by         text,
  root_key           text not null,
  lineage            text not null,
  spawn_depth        integer not null,
  sandboxed          integer not null,
  system_sent        integer not null,
  aborted_last_run   integer not null,
  context_tokens     integer,
  input_tokens       integer not null,
  output_tokens      integer not null,
  cache_read_tokens  integer not null,
  cache_write_tokens integer not null,
  cost_usd           real not null,
  created_at_ms      integer not null,
  updated_at_ms      integer not null,
  archived_at_ms     integer
);
create unique index sessions_by_label on sessions (label) where label is not null;
create index sessions_by_spawner on sessions (spawned_by, created_at_ms) where spawned_by is not null;
-- Lists are read in this order, one index per way to narrow them, so that a page costs the same in any store.
create index sessions_recent on sessions (updated_at_ms desc, key) where archived_at_ms is null;
create index sessions_recent_by_agent on sessions (agent_id, kind, updated_at_ms desc, key)
  where archived_at_ms is null;
create index sessions_recent_by_kind on sessions (kind, updated_at_ms desc, key) where archived_at_ms is null;
create index sessions_recent_by_root on sessions (root_key, updated_at_ms desc, key)
  where archived_at_ms is null;
create index sessions_archived on sessions (updated_at_ms desc, key) where archived_at_ms is not null;

-- Every transcript a session has had; the current one is sessions.session_id.
create table transcripts (
  session_id    text primary key,
  session_key   text not null,
  agent_id      text not null,
  created_at_ms integer not null
);
create index transcripts_by_key on transcripts (session_key, created_at_ms);

-- Transcripts that were deleted and whose files still have to be.
create table removals (
  session_id text primary key,
  agent_id   text not null
);

-- position counts the lines of all transcripts and is never used again, so that followers can rely on it;
-- seq counts those of one transcript, from 1 without a gap.
create table entries (
  position      integer primary key autoincrement,
  session_id    text not null,
  seq           integer not null,
  role          text not null,
  turn_id       text,
  body          text not null,
  created_at_ms integer not null,
  unique (session_id, seq)
);

create table turns (
  turn_id        text primary key,
  session_key    text not null,
  session_id     text not null,
  agent_id       text not null,
  position       integer not null,
  lane           text not null,
  step           text not null,
  input          text not null,
  input_seq      integer,
  options        text not null,
  queue_mode     text not null,
  merged_into    text,
  status         text not null,
  outcome        text,
  reply          text,
  error          text,
  abort_reason   text,
  claim          integer not null,
  claimed_by     text,
  crashes        integer not null,
  exchange_id    text,
  caused_by      text,
  hop            integer not null,
  timeout_s      integer,
  input_tokens   integer not null,
  output_tokens  integer not null,
  cost_usd       real not null,
  accepted_at_ms integer not null,
  started_at_ms  integer,
  ended_at_ms    integer,
  unique (session_key, position)
);
create index turns_open on turns (session_key, position) where status <> 'ended';
create index turns_by_exchange on turns (exchange_id, accepted_at_ms) where exchange_id is not null;

create table exchanges (
  exchange_id   text primary key,
  kind          text not null,
  requester_key text,
  target_key    text not null,
  state         text not null,
  phase         text not null,
  end_reason    text,
  turns_done    integer not null,
  max_turns     integer not null,
  hop           integer not null,
  request       text not null,
  first_reply   text,
  last_reply    text,
  created_at_ms integer not null,
  updated_at_ms integer not null
);
create index exchanges_recent on exchanges (created_at_ms desc, exchange_id);
create index exchanges_by_target on exchanges (target_key);
create index exchanges_by_requester on exchanges (requester_key) where requester_key is not null;
create index exchanges_open on exchanges (updated_at_ms) where state = 'open';

create table deliveries (
  delivery_id        text primary key,
  session_key        text not null,
  exchange_id        text,
  turn_id            text,
  channel            text not null,
  recipient          text not null,
  account_id         text,
  thread_id          text,
  text               text not null,
  state              text not null,
  attempts           integer not null,
  claim              integer not null,
  next_attempt_at_ms integer not null,
  external_id        text,
  error              text,
  created_at_ms      integer not null,
  updated_at_ms      integer not null
);
create index deliveries_due on deliveries (channel, next_attempt_at_ms) where state in ('pending', 'sending');
create index deliveries_by_session on deliveries (session_key);
create index deliveries_by_exchange on deliveries (exchange_id) where exchange_id is not null;

-- What was answered to a request, so that the same request is answered the same way after a restart.
create table idempotency_keys (
  scope         text not null,
  key           text not null,
  answer        text not null,
  created_at_ms integer not null,
  primary key (scope, key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at_ms);

create table cron_jobs (
  job_id         text primary key,
  agent_id       text not null,
  name           text not null,
  schedule       text not null,
  payload        text not null,
  enabled        integer not null,
  next_run_at_ms integer,
  last_run_at_ms integer,
  created_at_ms  integer not null
);
create index cron_jobs_due on cron_jobs (next_run_at_ms) where enabled = 1 and next_run_at_ms is not null;

-- No reference to sessions: what was spent stays known when a session is deleted.
create table usage (
  day                text not null,
  agent_id           text not null,
  session_key        text not null,
  model              text not null,
  calls              integer not null,
  input_tokens       integer not null,
  output_tokens      integer not null,
  cache_read_tokens  integer not null,
  cache_write_tokens integer not null,
  cost_usd           real not null,
  primary key (day, agent_id, session_key, model)
);

-- How far a follower of the entries has come: the full-text index, the mirror.
create table followers (
  name     text primary key,
  position integer not null
);

-- The words of user and assistant messages by entries.position. It keeps no copy of the text.
create virtual table entry_words using fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2');
