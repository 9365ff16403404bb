-- The last transaction that each writing connection has committed: tells whether one was saved whose connection
-- was lost during the commit.
create table commits (
  writer text collate "C" primary key,
  number bigint not null,
  at     timestamptz not null
);
-- Whether a gateway shares its files with the others, as its settings say.
alter table gateways add column files text not null default 'shared';
