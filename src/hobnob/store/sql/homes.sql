-- name: session_home
select home from sessions where key = :key

-- name: session_settle
update sessions set home = :home, version = version + 1 where key = :key and home is null

-- name: gateways_alive
-- The names of gateways that run. A store in a file has no list of them.
select null where 1 = 0

-- name: sessions_move
-- What a session spawned moves with it, where it has the same home.
update sessions set home = :home, version = version + 1
where root_key = :root_key and substr(lineage, 1, length(:tree)) = :tree
  and coalesce(home, '') = coalesce(:from_home, '')

-- name: turn_running_in_tree
select t.session_key from turns t join sessions s on s.key = t.session_key
where t.status = 'running' and s.root_key = :root_key
  and (s.key = :key or substr(s.lineage, 1, length(:tree)) = :tree)
limit 1
