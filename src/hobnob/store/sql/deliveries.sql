-- name: deliveries_delete
delete from deliveries where session_key = :key

-- name: delivery_insert
insert into deliveries ({Delivery}) values ({:Delivery})

-- name: delivery_get
select {Delivery} from deliveries where delivery_id = :delivery_id

-- name: deliveries_of_exchange
select {Delivery} from deliveries where exchange_id = :exchange_id order by created_at_ms, delivery_id

-- name: deliveries_of_session
-- Newest first.
select {Delivery} from deliveries where session_key = :key order by created_at_ms desc, delivery_id desc
limit :limit

-- name: deliveries_interrupted
-- What an earlier process was sending.
select {Delivery} from deliveries where state = 'sending' order by created_at_ms, delivery_id

-- name: delivery_lanes
-- The recipients that deliveries wait for.
select distinct channel, account_id, recipient from deliveries where state = 'pending'

-- name: delivery_head
-- The first delivery that waits for a recipient.
select {Delivery} from deliveries
where state = 'pending' and channel = :channel and coalesce(account_id, '') = :account_id
  and recipient = :recipient
order by rowid limit 1

-- name: delivery_sent_elsewhere
-- Whether another gateway is sending to a recipient, or died while it did.
select 1 from deliveries
where state = 'sending' and channel = :channel and coalesce(account_id, '') = :account_id
  and recipient = :recipient and coalesce(claimed_by, '') <> :gateway_id
limit 1

-- name: delivery_claim
update deliveries set state = 'sending', claim = :claim, claimed_by = :claimed_by, attempts = :attempts, updated_at_ms = :now_ms,
  parts = :parts, part_started_at_ms = :part_started_at_ms
where delivery_id = :delivery_id and state = 'pending' and claim = :claim - 1

-- name: delivery_progress
-- A part was sent; the next one begins.
update deliveries set part_ids = :part_ids, external_id = :external_id, part_started_at_ms = :now_ms,
  updated_at_ms = :now_ms
where delivery_id = :delivery_id and claim = :claim and state = 'sending'

-- name: delivery_draft
-- Which message that is shown already is to become the first part.
update deliveries set external_id = :draft_id, updated_at_ms = :now_ms
where delivery_id = :delivery_id and claim = :claim and state = 'sending'

-- name: delivery_settle
update deliveries set state = :state, claimed_by = :claimed_by, external_id = :external_id, part_ids = :part_ids,
  error = :error, attempts = :attempts, next_attempt_at_ms = :next_attempt_at_ms, updated_at_ms = :now_ms
where delivery_id = :delivery_id and claim = :claim and state = 'sending'

-- name: delivery_confirm
-- Proof that came later.
update deliveries set state = :state, part_ids = :part_ids, external_id = :external_id, error = null,
  updated_at_ms = :now_ms
where delivery_id = :delivery_id and state = 'ambiguous'

-- name: delivery_refute
-- The platform reported later that it could not deliver the message.
update deliveries set state = 'failed', error = :error, updated_at_ms = :now_ms
where delivery_id = :delivery_id and state in ('delivered', 'ambiguous')

-- name: deliveries_into_thread
-- A thread was opened: what waits for its session goes there.
update deliveries set thread_id = :thread_id
where session_key = :session_key and state = 'pending' and kind <> 'thread'

-- name: delivery_drop
update deliveries set state = 'failed', error = :error, claim = claim + 1, updated_at_ms = :now_ms
where delivery_id = :delivery_id and state in ('pending', 'sending')

-- name: deliveries_counted
-- Deliveries that are pending or being sent. One select per state, so that each uses its own index.
select channel, state, count(*) from deliveries where state = 'pending' group by channel, state
union all select channel, state, count(*) from deliveries where state = 'sending' group by channel, state
