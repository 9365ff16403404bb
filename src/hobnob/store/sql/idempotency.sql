-- name: idempotency_get
select answer from idempotency_keys where scope = :scope and key = :key

-- name: idempotency_insert
insert into idempotency_keys (scope, key, answer, created_at_ms) values (:scope, :key, :answer, :now_ms)
on conflict (scope, key) do nothing
