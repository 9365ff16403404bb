-- name: wait_insert
insert into waits ({Wait}) values ({:Wait})

-- name: wait_get
select {Wait} from waits where wait_id = :wait_id

-- name: wait_end
update waits set state = :state, completed = :completed, updated_at_ms = :updated_at_ms
where wait_id = :wait_id and state = 'open'

-- name: waits_yielded
-- The open waits of a session that ended its turn.
select {Wait} from waits where session_key = :key and kind = 'yield' and state = 'open'

-- name: waits_forget_yields
delete from waits where session_key = :key and kind = 'yield' and state = 'open'

-- name: waits_delete
delete from waits where session_key = :key

-- name: waits_settled
-- Of these exchanges, those whose result is known, or that are gone.
select value from json_each(:ids)
where not exists (select 1 from exchanges e where e.exchange_id = value and e.state = 'open' and e.phase <> 'delivery')

-- name: waits_due
-- The wait of a turn that runs may be asked for again, after a crash.
select created_at_ms, wait_id, (state <> 'open' or kind = 'join')
  and not exists (select 1 from turns t where t.turn_id = waits.turn_id and t.status <> 'ended')
from waits where created_at_ms < :before and created_at_ms >= :after_time
  and (created_at_ms > :after_time or wait_id > :after_id)
order by created_at_ms, wait_id limit :limit

-- name: waits_remove
delete from waits where wait_id in (select value from json_each(:ids))
