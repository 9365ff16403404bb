-- Gateways that were found dead and may live all the same: until when each may still be sending to chats.
create table removed_gateways (
  gateway_id     text collate "C" primary key,
  may_send_until timestamptz not null
);
