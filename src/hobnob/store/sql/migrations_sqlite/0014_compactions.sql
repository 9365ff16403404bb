-- The compaction that a transcript needs next: what is done of it, so that a crash repeats no model call.
create table compactions (
  session_id   text primary key,
  covered_from integer not null,
  flush        text,
  focus        text not null,
  done_to      integer,
  summary      text not null,
  fields       text not null
);
