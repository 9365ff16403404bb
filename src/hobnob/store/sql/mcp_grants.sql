-- name: mcp_grant_insert
insert into mcp_grants ({McpGrant}) values ({:McpGrant})

-- name: mcp_grant_get
select {McpGrant} from mcp_grants where grant_id = :grant_id

-- name: mcp_grant_by_hash
select {McpGrant} from mcp_grants where token_hash = :token_hash

-- name: mcp_grants_list
select {McpGrant} from mcp_grants
where turn_id is null and (:credential is null or credential = :credential)
order by created_at_ms desc, grant_id desc limit :limit

-- name: mcp_grants_count
select count(*) from mcp_grants where revoked_at_ms is null

-- name: mcp_grant_revoke
update mcp_grants set revoked_at_ms = :now_ms where grant_id = :grant_id and revoked_at_ms is null

-- name: mcp_grant_used
update mcp_grants set used_at_ms = :now_ms where grant_id = :grant_id

-- name: mcp_grant_delete
delete from mcp_grants where grant_id = :grant_id

-- name: mcp_grants_expire
delete from mcp_grants where expires_at_ms < :before_ms
