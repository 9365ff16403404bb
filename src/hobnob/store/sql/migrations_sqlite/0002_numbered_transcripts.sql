-- Entries name their transcript by a number instead of its id: the index on them is then a third of the size, and
-- an append writes fewer pages.

create table numbered_transcripts (
  number        integer primary key,
  session_id    text not null unique,
  session_key   text not null,
  agent_id      text not null,
  created_at_ms integer not null
);
insert into numbered_transcripts (session_id, session_key, agent_id, created_at_ms)
select session_id, session_key, agent_id, created_at_ms from transcripts order by created_at_ms, session_id;
drop table transcripts;
alter table numbered_transcripts rename to transcripts;
create index transcripts_by_key on transcripts (session_key, created_at_ms);

create table numbered_entries (
  position      integer primary key autoincrement,
  transcript    integer not null,
  seq           integer not null,
  role          text not null,
  turn_id       text,
  body          text not null,
  created_at_ms integer not null,
  unique (transcript, seq)
);
insert into numbered_entries (position, transcript, seq, role, turn_id, body, created_at_ms)
select e.position, t.number, e.seq, e.role, e.turn_id, e.body, e.created_at_ms
from entries e join transcripts t on t.session_id = e.session_id order by e.position;

-- Positions go on where they were, also when the last entries had been deleted: none is used twice.
delete from sqlite_sequence where name = 'numbered_entries';
insert into sqlite_sequence (name, seq) select 'numbered_entries', seq from sqlite_sequence where name = 'entries';
drop table entries;
alter table numbered_entries rename to entries;
