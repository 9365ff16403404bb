-- name: entry_last_seq
select coalesce(max(seq), 0) from entries where session_id = :session_id

-- name: entry_append
-- Number and insert in one statement. Two writers cannot get the same number: (session_id, seq) is unique.
insert into entries (session_id, seq, role, turn_id, body, created_at_ms)
values (:session_id, (select coalesce(max(seq), 0) + 1 from entries where session_id = :session_id),
  :role, :turn_id, :body, :created_at_ms)
returning seq

-- name: entries_delete
delete from entries where session_id = :session_id

-- name: entries_before
-- The newest page before a sequence number, newest first.
select {Entry} from entries where session_id = :session_id and seq < :before order by seq desc limit :limit

-- name: entries_before_without_tools
select {Entry} from entries where session_id = :session_id and seq < :before and role <> 'toolResult'
order by seq desc limit :limit

-- name: entries_after
select {Entry} from entries where session_id = :session_id and seq > :after order by seq limit :limit

-- name: entries_from_position
-- What a follower has not seen yet.
select position, {Entry} from entries where position > :position order by position limit :limit

-- name: entries_placed
-- Entries of a transcript with their position, for taking them out of the index.
select position, {Entry} from entries where session_id = :session_id order by seq

-- name: follower_get
select position from followers where name = :name

-- name: follower_set
insert into followers (name, position) values (:name, :position)
on conflict (name) do update set position = excluded.position

-- name: words_insert
insert into entry_words (rowid, text) values (:position, :text)

-- name: words_delete
insert into entry_words (entry_words, rowid, text) values ('delete', :position, :text)

-- name: words_search
-- Matching entries of sessions that are not archived, best first, narrowed to an agent or a tree.
select {Entry}, session_key, score from (
  select e.session_id, e.seq, e.role, e.turn_id, e.body, e.created_at_ms, s.key as session_key, rank as score
  from entry_words w
  join entries e on e.position = w.rowid
  join transcripts t on t.session_id = e.session_id
  join sessions s on s.key = t.session_key
  where entry_words match :words and s.archived_at_ms is null
    and (:agent_id is null or s.agent_id = :agent_id)
    and (:key is null or s.key = :key or substr(s.lineage, 1, length(:tree)) = :tree)
  order by rank, e.position desc limit :limit
) as found
order by score, created_at_ms desc
