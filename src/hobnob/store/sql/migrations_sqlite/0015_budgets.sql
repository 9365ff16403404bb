-- Budgets, and the reservations of model calls that are being made.
create table budgets (
  kind             text not null check (kind in ('agent', 'session', 'exchange')),
  owner            text not null,
  day              text not null,
  usd              real,
  tokens           integer,
  turns            integer,
  seconds          real,
  spent_usd        real not null,
  spent_tokens     integer not null,
  spent_turns      integer not null,
  spent_seconds    real not null,
  reserved_usd     real not null,
  reserved_tokens  integer not null,
  reserved_seconds real not null,
  unpriced_calls   integer not null,
  warned           integer not null,
  created_at_ms    integer not null,
  updated_at_ms    integer not null,
  primary key (kind, owner, day)
) without rowid;

create table reservations (
  turn_id       text primary key,
  accounts      text not null,
  input_tokens  integer not null,
  output_tokens integer not null,
  input_usd     real not null,
  output_usd    real not null,
  seconds       real not null,
  priced        integer not null,
  created_at_ms integer not null
) without rowid;
