-- Several gateways on one database.

create table gateways (
  gateway_id     text collate "C" primary key,
  number         integer generated always as identity, -- of its advisory lock
  instance       text collate "C" not null,            -- names its connections; the same when it joins again
  name           text collate "C" not null,
  host           text collate "C" not null,
  pid            bigint not null,
  url            text collate "C",
  version        text collate "C" not null,
  started_at_ms  bigint not null,
  beat_at        timestamptz not null,
  draining       bigint not null default 0,
  turns          bigint not null default 0,
  clients        text collate "C" not null default '[]',
  roles          text collate "C" not null default '[]'
);

create unique index turns_one_running on turns (session_key) where status = 'running';
create index turns_claimed on turns (claimed_by) where status = 'running';
create index turns_queued on turns (accepted_at_ms, turn_id) where status = 'queued';
