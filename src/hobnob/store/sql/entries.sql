-- name: transcript_end
-- A transcript's number, last seq and session key.
select t.number,
  coalesce((select seq from entries where transcript = t.number order by seq desc limit 1), 0), t.session_key
from transcripts t where t.session_id = :session_id

-- name: entry_append
-- (transcript, seq) is unique, so two writers cannot use the same seq.
insert into entries (transcript, seq, role, turn_id, body, created_at_ms) values (?, ?, ?, ?, ?, ?)

-- name: entries_before
-- The page before a sequence number, newest first.
select :session_id, seq, role, turn_id, body, created_at_ms from entries
where transcript = (select number from transcripts where session_id = :session_id) and seq < :before
order by seq desc limit :limit

-- name: lines_before
-- The same page, without the columns that views do not need.
select seq, role, body from entries
where transcript = (select number from transcripts where session_id = :session_id) and seq < :before
order by seq desc limit :limit

-- name: lines_before_without_tools
select seq, role, body from entries
where transcript = (select number from transcripts where session_id = :session_id) and seq < :before
  and role <> 'toolResult'
order by seq desc limit :limit

-- name: lines_count
-- The number of rows of `lines_before`.
select count(*) from (
  select 1 from entries
  where transcript = (select number from transcripts where session_id = :session_id) and seq < :before
  order by seq desc limit :limit
) as counted

-- name: lines_count_without_tools
select count(*) from (
  select 1 from entries
  where transcript = (select number from transcripts where session_id = :session_id) and seq < :before
    and role <> 'toolResult'
  order by seq desc limit :limit
) as counted

-- name: entries_after
select :session_id, seq, role, turn_id, body, created_at_ms from entries
where transcript = (select number from transcripts where session_id = :session_id) and seq > :after
order by seq limit :limit

-- name: lines_after
select seq, role, body from entries
where transcript = (select number from transcripts where session_id = :session_id)
  and seq > :after and seq < :before
order by seq limit :limit

-- name: entries_from_position
-- Entries in commit order, after the position of a follower.
select e.position, t.session_id, e.seq, e.role, e.turn_id, e.body, e.created_at_ms
from entries e join transcripts t on t.number = e.transcript
where e.position > :position order by e.position limit :limit

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
-- Matching entries of sessions that are not archived, best first; optionally of one agent or tree.
select {Entry}, session_key, score from (
  select t.session_id, e.seq, e.role, e.turn_id, e.body, e.created_at_ms, s.key as session_key, rank as score
  from entry_words w
  join entries e on e.position = w.rowid
  join transcripts t on t.number = e.transcript
  join sessions s on s.key = t.session_key
  where entry_words match :words and s.archived_at_ms is null
    and (:agent_id is null or s.agent_id = :agent_id)
    and (:key is null or s.key = :key or substr(s.lineage, 1, length(:tree)) = :tree)
  order by rank, e.position desc limit :limit
) as found
order by score, created_at_ms desc

-- name: lines_last_of_any
-- The newest messages of several transcripts without tool results, newest first, at most :limit of each.
with wanted (wanted_id) as (select value from json_each(:ids))
select t.session_id, e.seq, e.role, e.body
from wanted join transcripts t on t.session_id = wanted_id join entries e on e.transcript = t.number
  and e.seq in (
    select seq from entries where transcript = t.number and role <> 'toolResult' order by seq desc limit :limit
  )
order by e.seq desc
