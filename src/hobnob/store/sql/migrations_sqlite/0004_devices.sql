-- Clients with a key of their own: who asked to be let in, and who was.
create table devices (
  device_id     text primary key,
  public_key    text not null,
  name          text not null,
  platform      text not null,
  address       text not null,
  state         text not null,
  request_id    text not null unique,
  credential    text not null,
  generation    integer not null,
  created_at_ms integer not null,
  paired_at_ms  integer,
  seen_at_ms    integer
);
create index devices_by_state on devices (state, created_at_ms);
