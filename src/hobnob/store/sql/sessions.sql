-- name: session_insert
insert into sessions ({Session}) values ({:Session})

-- name: session_by_key
select {Session} from sessions where key = :key

-- name: session_by_id
-- By the id of its current transcript or of an older one.
select {Session} from sessions where key = (select session_key from transcripts where session_id = :session_id)

-- name: session_by_label
-- The session that would conflict with this label; `owner` is its requester, else its agent.
select {Session} from sessions where label = :label and coalesce(spawned_by, agent_id) = :owner

-- name: sessions_with_label
select {Session} from sessions where label = :label order by updated_at_ms desc, key

-- name: session_children
select {Session} from sessions where spawned_by = :key order by created_at_ms, key

-- name: session_update
-- The mutable columns; key and lineage never change. Every update raises the version.
update sessions set
  session_id = :session_id, label = :label, display_name = :display_name, status = :status, model = :model,
  model_override = :model_override, thinking_level = :thinking_level, verbose_level = :verbose_level,
  send_policy = :send_policy, last_channel = :last_channel, last_to = :last_to,
  last_account_id = :last_account_id, last_thread_id = :last_thread_id, sandboxed = :sandboxed,
  system_sent = :system_sent, aborted_last_run = :aborted_last_run, context_tokens = :context_tokens,
  updated_at_ms = :updated_at_ms, archived_at_ms = :archived_at_ms, home = :home, version = :version
where key = :key

-- name: session_touch
-- updated_at_ms never decreases, even if the clock is set back.
update sessions set updated_at_ms = :now_ms, version = version + 1
where key = :key and updated_at_ms < :now_ms

-- name: session_running
-- Leaves updated_at_ms alone: it was set when the turn was accepted, and is part of four indexes.
update sessions set status = 'running', aborted_last_run = 0, system_sent = 1, version = version + 1,
  home = coalesce(home, :home)
where key = :key

-- name: session_ended
update sessions set status = :status, aborted_last_run = :aborted_last_run, version = version + 1,
  updated_at_ms = case when updated_at_ms < :now_ms then :now_ms else updated_at_ms end
where key = :key

-- name: session_add_usage
-- Add the usage of a model call to the session's totals.
update sessions set
  version = version + 1, model = :model, context_tokens = :context_tokens,
  input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens,
  cache_read_tokens = cache_read_tokens + :cache_read_tokens,
  cache_write_tokens = cache_write_tokens + :cache_write_tokens, cost_usd = cost_usd + :cost_usd
where key = :key

-- name: session_delete
delete from sessions where key = :key

-- name: sessions_recent
-- A page of all sessions, newest first; the previous page ended at (before_ms, after_key). Of each session
-- only what tells whether it changed.
select key, session_id, version, updated_at_ms from sessions
where archived_at_ms is null and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
  and (updated_at_ms < :before_ms or key > :after_key)
order by updated_at_ms desc, key limit :limit

-- name: sessions_recent_by_kind
select key, session_id, version, updated_at_ms from sessions
where archived_at_ms is null and kind = :each and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
  and (updated_at_ms < :before_ms or key > :after_key)
order by updated_at_ms desc, key limit :limit

-- name: sessions_recent_by_agent
select key, session_id, version, updated_at_ms from sessions
where archived_at_ms is null and agent_id = :agent_id and kind = :each
  and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
  and (updated_at_ms < :before_ms or key > :after_key)
order by updated_at_ms desc, key limit :limit

-- name: sessions_recent_in_tree
-- A session and all its descendants. `tree` is the lineage prefix of the descendants.
select key, session_id, version, updated_at_ms from sessions
where archived_at_ms is null and root_key = :root_key
  and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
  and (updated_at_ms < :before_ms or key > :after_key)
  and (key = :key or substr(lineage, 1, length(:tree)) = :tree)
order by updated_at_ms desc, key limit :limit

-- name: sessions_archived
select key, session_id, version, updated_at_ms from sessions
where archived_at_ms is not null and updated_at_ms <= :before_ms and updated_at_ms >= :since_ms
  and (updated_at_ms < :before_ms or key > :after_key)
order by updated_at_ms desc, key limit :limit

-- name: transcript_insert
-- The number of a deleted transcript is free again when its entries are gone.
insert into transcripts (number, session_id, session_key, agent_id, created_at_ms)
values (
  1 + max(coalesce((select max(number) from transcripts), 0), coalesce((select max(transcript) from purges), 0)),
  :session_id, :session_key, :agent_id, :created_at_ms
)

-- name: transcript_get
select session_key, agent_id, created_at_ms from transcripts where session_id = :session_id

-- name: transcripts_after
-- All transcripts, in batches.
select session_id from transcripts where session_id > :after order by session_id limit :limit

-- name: transcripts_of
select session_id from transcripts where session_key = :key order by created_at_ms, session_id

-- name: removals_forget
-- Where no transcripts are kept as files.
delete from removals

-- name: removals
select session_id, agent_id from removals order by session_id limit 500

-- name: removal_done
delete from removals where session_id = :session_id

-- name: sessions_by_keys
select {Session} from sessions where key in (select value from json_each(:keys))

-- name: sessions_newest_children
-- The newest children of several sessions that are not archived, at most :limit of each.
with parents (parent) as (select value from json_each(:keys))
select {Session} from parents join sessions on sessions.key in (
  select c.key from sessions c where c.spawned_by = parent and c.archived_at_ms is null
  order by c.created_at_ms desc, c.key limit :limit
)
order by created_at_ms desc, key

-- name: session_last_input
-- When a person last wrote into the current transcript; messages of agents, hooks and jobs have a provenance.
select accepted_at_ms from turns
where session_key = :key and session_id = :session_id and step = 'message' and instr(input, '"provenance"') = 0
order by position desc limit 1
