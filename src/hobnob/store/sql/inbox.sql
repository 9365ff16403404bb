-- name: inbox_insert
insert into inbox ({InboxEvent}) values ({:InboxEvent})

-- name: inbox_get
select {InboxEvent} from inbox where channel = :channel and account_id = :account_id and event_id = :event_id

-- name: inbox_recent
-- Newest first.
select {InboxEvent} from inbox where seq < :before order by seq desc limit :limit

-- name: inbox_by_event
select {InboxEvent} from inbox where event_id = :event_id order by seq desc limit :limit

-- name: inbox_waiting
-- In the order of arrival.
select {InboxEvent} from inbox where state = 'waiting' order by seq limit :limit

-- name: inbox_waiting_in_chat
select {InboxEvent} from inbox
where channel = :channel and account_id = :account_id and chat_id = :chat_id and state = 'waiting'
order by seq limit :limit

-- name: inbox_postpone
-- Another message of the sender came in: the earlier ones wait for it.
update inbox set due_at_ms = :due_at_ms
where channel = :channel and account_id = :account_id and chat_id = :chat_id and state = 'waiting'

-- name: inbox_settle
update inbox set state = :state, code = :code, why = :why, fix = :fix_text, session_key = :session_key,
  turn_id = :turn_id, body = case when :keep_body then body else null end
where seq in (select value from json_each(:seqs)) and state = 'waiting'

-- name: inbox_still_waiting
-- Which of these messages nobody has taken up meanwhile.
select seq from inbox where seq in (select value from json_each(:seqs)) and state = 'waiting'

-- name: inbox_context
-- Messages of a chat that were not addressed to the bot and that it was not shown yet, newest first.
select {InboxEvent} from inbox
where channel = :channel and account_id = :account_id and chat_id = :chat_id and state = 'context'
  and coalesce(thread_id, '') = :thread_id
order by seq desc limit :limit

-- name: inbox_shown
update inbox set state = 'shown', body = null
where channel = :channel and account_id = :account_id and chat_id = :chat_id and state = 'context'
  and coalesce(thread_id, '') = :thread_id and seq <= :seq

-- name: inbox_bot_events
-- Messages of a bot in a chat since a time.
select count(*) from inbox
where channel = :channel and account_id = :account_id and chat_id = :chat_id and is_bot = 1
  and sender_id = :sender_id and created_at_ms >= :since_ms and code not in ('access.bot', 'access.bot_loop')

-- name: inbox_chats
-- The chats that admitted messages came from, most recent first.
select chat_id, thread_id, recipient, reply_thread_id, event_id from inbox
where seq in (
  select max(seq) from inbox where channel = :channel and account_id = :account_id
    and state in ('turn', 'waiting', 'context', 'shown', 'command')
  group by chat_id, thread_id
) order by seq desc limit :limit

-- name: cursor_get
select cursor from channel_cursors where channel = :channel and account_id = :account_id

-- name: cursor_put
insert into channel_cursors (channel, account_id, cursor, updated_at_ms)
values (:channel, :account_id, :cursor, :now_ms)
on conflict (channel, account_id) do update set cursor = excluded.cursor, updated_at_ms = excluded.updated_at_ms

-- name: cursor_delete
delete from channel_cursors where channel = :channel and account_id = :account_id

-- name: pairing_get
select {Pairing} from pairings
where channel = :channel and account_id = :account_id and sender_id = :sender_id

-- name: pairing_put
insert into pairings ({Pairing}) values ({:Pairing})
on conflict (channel, account_id, sender_id) do update set
  sender_name = excluded.sender_name, recipient = excluded.recipient, code = excluded.code,
  state = excluded.state, is_owner = excluded.is_owner, created_at_ms = excluded.created_at_ms,
  expires_at_ms = excluded.expires_at_ms, approved_at_ms = excluded.approved_at_ms

-- name: pairing_delete
delete from pairings where channel = :channel and account_id = :account_id and sender_id = :sender_id

-- name: pairings_all
select {Pairing} from pairings order by state desc, created_at_ms desc, sender_id limit :limit

-- name: pairings_open
select count(*) from pairings
where channel = :channel and account_id = :account_id and state = 'pending' and expires_at_ms > :now_ms

-- name: pairings_by_code
select {Pairing} from pairings where code = :code and state = 'pending' and expires_at_ms > :now_ms

-- name: pairing_owners
select count(*) from pairings where channel = :channel and state = 'approved' and is_owner = 1

-- name: pairings_expired
delete from pairings where state = 'pending' and expires_at_ms < :before

-- name: thread_insert
insert into bound_threads ({BoundThread}) values ({:BoundThread})

-- name: thread_at
select {BoundThread} from bound_threads
where channel = :channel and account_id = :account_id and recipient = :recipient
  and thread_id = :thread_id and state = 'open'

-- name: thread_of_session
select {BoundThread} from bound_threads where session_key = :session_key and state in ('opening', 'open')

-- name: threads_open
select {BoundThread} from bound_threads where state in ('opening', 'open') order by created_at_ms limit :limit

-- name: thread_set
update bound_threads set state = :state, thread_id = :thread_id, reason = :reason, used_at_ms = :now_ms
where binding_id = :binding_id

-- name: thread_used
update bound_threads set used_at_ms = :now_ms where binding_id = :binding_id

-- name: inbox_due
-- For retention. Waiting messages and those still to be shown stay.
select created_at_ms, seq, state not in ('waiting') from inbox
where created_at_ms < :before and created_at_ms >= :after_time and (created_at_ms > :after_time or seq > :after_id)
order by created_at_ms, seq limit :limit

-- name: inbox_remove
delete from inbox where seq in (select value from json_each(:ids))

-- name: threads_closed
delete from bound_threads where state in ('closed', 'failed') and used_at_ms < :before
