-- The secrets that the gateways of one database share. SQLite has one gateway, which keeps them in its state
-- directory.

-- name: secrets_table_exists
select to_regclass('secrets') is not null

-- name: secrets_stored
select name, value from secrets

-- name: secret_insert
-- The first gateway decides; others that start at the same moment wait for it here.
insert into secrets (name, value) values (:name, :value) on conflict (name) do nothing

-- name: secrets_delete
delete from secrets
