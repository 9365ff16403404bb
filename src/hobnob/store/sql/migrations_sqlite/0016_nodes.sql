-- Devices and hosts that connect as nodes: their keys, and the surfaces that owners approved.
create table nodes (
  node_id            text primary key,
  public_key         text not null,
  name               text not null,
  given_name         text,
  facts              text not null,
  address            text not null,
  credential         text not null,
  generation         integer not null,
  state              text not null,
  request_id         text unique,
  declared           text not null,
  approved           text not null,
  created_at_ms      integer not null,
  requested_at_ms    integer,
  approved_at_ms     integer,
  connected_at_ms    integer,
  disconnected_at_ms integer
);
