-- The key of the messages between gateways: everybody who can connect to the database may send and hear
-- notifications, but only who may read this table can write or read what gateways say.
create table message_key (key bytea not null);
insert into message_key values (sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea));
