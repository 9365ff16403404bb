-- name: approval_insert
insert into approvals ({Approval}) values ({:Approval})

-- name: approval_get
select {Approval} from approvals where approval_id = :approval_id

-- name: approvals_pending
-- Oldest first.
select {Approval} from approvals where state = 'pending' order by created_at_ms, approval_id

-- name: approvals_left
-- Those that a process which is gone has asked.
select {Approval} from approvals where state = 'pending' order by created_at_ms, approval_id

-- name: approval_decide
-- The first decision wins: a later one changes no row.
update approvals set state = :state, decided_by = :decided_by, decided_at_ms = :now_ms
where approval_id = :approval_id and state = 'pending'

-- name: approvals_delete
delete from approvals where session_key = :key
