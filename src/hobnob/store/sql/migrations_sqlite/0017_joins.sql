-- Joins, typed results, and spawns with their own limits.
alter table exchanges add column reports text not null default 'announce';
alter table exchanges add column group_id text;
create index exchanges_collected on exchanges (requester_key, group_id) where reports = 'collect';

alter table turns add column structured text;
alter table turns add column schema_error text;

-- The tools a spawn asked for, as JSON; null means all that the session may have.
alter table sessions add column spawn_tools text;

-- Waits of turns for other turns, and of sessions that yielded for their sub-agents.
create table waits (
  wait_id       text primary key,
  session_key   text not null,
  turn_id       text,
  kind          text not null,
  ids           text not null,
  needed        integer not null,
  deadline_ms   integer,
  state         text not null,
  completed     text,
  created_at_ms integer not null,
  updated_at_ms integer not null
);
create index waits_open on waits (session_key) where state = 'open';
create index waits_by_session on waits (session_key);
create index waits_by_age on waits (created_at_ms, wait_id);
