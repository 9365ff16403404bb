-- Chats: messages that came in, the position of each channel account, senders who were let in, and threads
-- that belong to sub-agents. Deliveries are sent in parts, and in order per recipient.

create table inbox (
  seq             integer primary key autoincrement,
  channel         text not null,
  account_id      text not null,
  event_id        text not null,
  chat_id         text not null,
  thread_id       text,
  recipient       text not null,
  reply_thread_id text,
  sender_id       text not null,
  sender_name     text not null,
  is_bot          integer not null,
  state           text not null,
  code            text not null,
  why             text not null,
  fix             text not null,
  session_key     text,
  turn_id         text,
  body            text,
  due_at_ms       integer,
  created_at_ms   integer not null,
  unique (channel, account_id, event_id)
);
create index inbox_waiting on inbox (due_at_ms, seq) where state = 'waiting';
create index inbox_by_chat on inbox (channel, account_id, chat_id, seq);
create index inbox_by_age on inbox (created_at_ms, seq);

create table channel_cursors (
  channel       text not null,
  account_id    text not null,
  cursor        text not null,
  updated_at_ms integer not null,
  primary key (channel, account_id)
);

create table pairings (
  channel        text not null,
  account_id     text not null,
  sender_id      text not null,
  sender_name    text not null,
  recipient      text not null,
  code           text not null,
  state          text not null,
  is_owner       integer not null,
  created_at_ms  integer not null,
  expires_at_ms  integer not null,
  approved_at_ms integer,
  primary key (channel, account_id, sender_id)
);
create index pairings_by_code on pairings (code) where state = 'pending';

create table bound_threads (
  binding_id    text primary key,
  session_key   text not null,
  requester_key text not null,
  channel       text not null,
  account_id    text not null,
  recipient     text not null,
  thread_id     text,
  mode          text not null,
  state         text not null,
  reason        text,
  idle_ms       integer not null,
  max_age_ms    integer not null,
  created_at_ms integer not null,
  used_at_ms    integer not null
);
create index bound_threads_by_place on bound_threads (channel, account_id, recipient, thread_id)
  where state in ('opening', 'open');
create index bound_threads_by_session on bound_threads (session_key) where state in ('opening', 'open');

alter table deliveries add column kind text not null default 'message';
alter table deliveries add column reply_to text;
alter table deliveries add column files text;
alter table deliveries add column parts text;
alter table deliveries add column part_ids text not null default '[]';
alter table deliveries add column part_started_at_ms integer;

-- A lane is a recipient: its deliveries are sent one at a time, in the order created.
drop index deliveries_pending;
create index deliveries_pending on deliveries (channel, coalesce(account_id, ''), recipient, delivery_id)
  where state = 'pending';
