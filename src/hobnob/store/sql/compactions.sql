-- name: compaction_get
select covered_from, flush, focus, done_to, summary, fields from compactions where session_id = :session_id

-- name: compaction_set
insert into compactions (session_id, covered_from, flush, focus, done_to, summary, fields)
values (:session_id, :covered_from, :flush, :focus, :done_to, :summary, :fields)
on conflict (session_id) do update set covered_from = excluded.covered_from, flush = excluded.flush,
  focus = excluded.focus, done_to = excluded.done_to, summary = excluded.summary, fields = excluded.fields

-- name: compaction_done
delete from compactions where session_id = :session_id

-- name: compactions_remove
delete from compactions where session_id in (select value from json_each(:ids))
