-- name: migrations_table
create table if not exists migrations (
  number        integer primary key,
  name          text not null,
  sha256        text not null,
  applied_at_ms bigint not null
)

-- name: migrations_applied
select number, name, sha256 from migrations order by number

-- name: migration_insert
insert into migrations (number, name, sha256, applied_at_ms) values (:number, :name, :sha256, :now_ms)
