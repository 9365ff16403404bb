-- Full-text search on tsvector. The words come from us, split and folded as SQLite's index does it.

-- name: words_insert
insert into entry_words (transcript, seq, words)
select number, :seq, to_tsvector('simple', :text) from transcripts where session_id = :session_id
on conflict (transcript, seq) do nothing

-- name: words_delete
-- The words are deleted together with their entries: see `purge_delete`.
select 1 where :position < 0 and :text = ''

-- name: words_search
select {Entry}, session_key, score from (
  select t.session_id, e.seq, e.role, e.turn_id, e.body, e.created_at_ms, s.key as session_key,
    -ts_rank(w.words, :words::tsquery, 1) as score
  from entry_words w
  join entries e on e.transcript = w.transcript and e.seq = w.seq
  join transcripts t on t.number = e.transcript
  join sessions s on s.key = t.session_key
  where w.words @@ :words::tsquery and s.archived_at_ms is null
    and (:agent_id is null or s.agent_id = :agent_id)
    and (:key is null or s.key = :key or substr(s.lineage, 1, length(:tree)) = :tree)
  order by score, e.position desc limit :limit
) as found
order by score, created_at_ms desc

-- name: purge_delete
with gone as (
  delete from entries where transcript = :transcript and seq <= :seq
    and not exists (select 1 from transcripts where number = :transcript)
  returning transcript, seq
)
delete from entry_words w using gone where w.transcript = gone.transcript and w.seq = gone.seq
