-- Gateways that were found dead and may live all the same: until when each may still be sending to chats, and what an
-- operator asked of it.
create table removed_gateways (
  gateway_id     text collate "C" primary key,
  may_send_until timestamptz not null,
  draining       bigint not null
);

-- Whose process ids are those of the same machine or container: names of hosts are not unique.
alter table gateways add column machine text collate "C" not null default '';

-- How often an operator has let it load its settings again: the others do the same.
alter table gateways add column reloads bigint not null default 0;
