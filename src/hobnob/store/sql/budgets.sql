-- name: budget_get
select {BudgetAccount} from budgets where kind = :kind and owner = :owner and day = :day

-- name: budget_save
insert into budgets ({BudgetAccount}) values ({:BudgetAccount})
on conflict (kind, owner, day) do update set
  usd = excluded.usd, tokens = excluded.tokens, turns = excluded.turns, seconds = excluded.seconds,
  spent_usd = excluded.spent_usd, spent_tokens = excluded.spent_tokens, spent_turns = excluded.spent_turns,
  spent_seconds = excluded.spent_seconds, reserved_usd = excluded.reserved_usd,
  reserved_tokens = excluded.reserved_tokens, reserved_seconds = excluded.reserved_seconds,
  unpriced_calls = excluded.unpriced_calls, warned = excluded.warned, updated_at_ms = excluded.updated_at_ms

-- name: budget_delete
delete from budgets where kind = :kind and owner = :owner and day = :day

-- name: budgets_of
-- The budgets of a session, its ancestors and an exchange.
select {BudgetAccount} from budgets
where (kind = 'session' and owner in (select value from json_each(:keys)) and day = '')
  or (kind = 'exchange' and owner = :exchange_id and day = '')
order by kind desc, owner

-- name: budgets_listed
-- Budgets of sessions and exchanges, and those of agents from a day on; the latest first.
select {BudgetAccount} from budgets where kind <> 'agent' or day >= :day
order by updated_at_ms desc, kind, owner limit :limit

-- name: budgets_forget
-- Budgets of agents of past days, and of exchanges that are gone.
delete from budgets where (kind = 'agent' and day < :day)
  or (kind = 'exchange' and owner not in (select exchange_id from exchanges))

-- name: reservation_get
select {Reservation} from reservations where turn_id = :turn_id

-- name: reservations_open
select {Reservation} from reservations order by turn_id

-- name: reservations_of_session
select {Reservation} from reservations
where turn_id in (select turn_id from turns where session_key = :key and status <> 'ended')

-- name: reservation_save
insert into reservations ({Reservation}) values ({:Reservation})
on conflict (turn_id) do update set
  accounts = excluded.accounts, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
  input_usd = excluded.input_usd, output_usd = excluded.output_usd, seconds = excluded.seconds,
  priced = excluded.priced, created_at_ms = excluded.created_at_ms

-- name: reservation_delete
delete from reservations where turn_id = :turn_id
