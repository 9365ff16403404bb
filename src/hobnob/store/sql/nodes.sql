-- name: node_save
insert into nodes ({Node}) values ({:Node})
on conflict (node_id) do update set public_key = excluded.public_key, name = excluded.name,
  given_name = excluded.given_name, facts = excluded.facts, address = excluded.address,
  credential = excluded.credential, generation = excluded.generation, state = excluded.state,
  request_id = excluded.request_id, declared = excluded.declared, approved = excluded.approved,
  requested_at_ms = excluded.requested_at_ms, approved_at_ms = excluded.approved_at_ms,
  connected_at_ms = excluded.connected_at_ms, disconnected_at_ms = excluded.disconnected_at_ms

-- name: node_get
select {Node} from nodes where node_id = :node_id

-- name: node_by_request
select {Node} from nodes where request_id = :request_id

-- name: nodes_list
select {Node} from nodes order by created_at_ms, node_id limit :limit

-- name: node_connected
update nodes set connected_at_ms = :now_ms where node_id = :node_id

-- name: node_disconnected
update nodes set disconnected_at_ms = :now_ms where node_id = :node_id

-- name: nodes_crowd
-- Delete all but the newest requests of a credential, which could otherwise fill the table. A node that was
-- approved before is kept: its generation says which of its tokens are revoked.
delete from nodes where request_id is not null and approved_at_ms is null and credential = :credential
  and node_id not in (select node_id from nodes where request_id is not null and credential = :credential
  order by requested_at_ms desc, node_id limit :limit)
