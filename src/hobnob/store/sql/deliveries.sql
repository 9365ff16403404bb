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

-- name: deliveries_sending
-- At startup: the deliveries a dead process was sending.
select {Delivery} from deliveries where state = 'sending' order by created_at_ms, delivery_id

-- name: delivery_next_at
-- When the next delivery of a channel is due.
select min(next_attempt_at_ms) from deliveries where channel = :channel and state = 'pending'

-- name: delivery_due
select {Delivery} from deliveries
where channel = :channel and state = 'pending' and next_attempt_at_ms <= :now_ms
order by next_attempt_at_ms, delivery_id limit 1

-- name: delivery_claim
update deliveries set state = 'sending', claim = claim + 1, attempts = attempts + 1, updated_at_ms = :now_ms
where delivery_id = :delivery_id and state = 'pending'

-- name: delivery_settle
update deliveries set state = :state, external_id = :external_id, error = :error,
  next_attempt_at_ms = :next_attempt_at_ms, updated_at_ms = :now_ms
where delivery_id = :delivery_id and claim = :claim and state = 'sending'

-- name: delivery_drop
update deliveries set state = 'failed', error = :error, claim = claim + 1, updated_at_ms = :now_ms
where delivery_id = :delivery_id and state in ('pending', 'sending')

-- name: deliveries_counted
-- Deliveries that are pending or being sent. One select per state, so that each uses its own index.
select channel, state, count(*) from deliveries where state = 'pending' group by channel, state
union all select channel, state, count(*) from deliveries where state = 'sending' group by channel, state
