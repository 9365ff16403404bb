-- Tokens with which an MCP client acts as one session; only the hash of a token is kept.
create table mcp_grants (
  grant_id      text primary key,
  token_hash    text not null unique,
  session_key   text not null,
  name          text not null,
  credential    text not null,
  proof         text not null,
  scopes        text not null,
  turn_id       text,
  created_at_ms integer not null,
  expires_at_ms integer not null,
  revoked_at_ms integer,
  used_at_ms    integer
);
create index mcp_grants_by_end on mcp_grants (expires_at_ms);
