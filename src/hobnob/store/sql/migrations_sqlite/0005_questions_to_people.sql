-- A command that waits for a person to say yes, and what was said.

create table approvals (
  approval_id text primary key,
  session_key text not null,
  agent_id text not null,
  turn_id text not null,
  call_id text not null,
  command text not null,
  details text not null,
  state text not null,
  decided_by text,
  created_at_ms integer not null,
  expires_at_ms integer not null,
  decided_at_ms integer
);

create index approvals_pending on approvals (created_at_ms, approval_id) where state = 'pending';
create index approvals_by_session on approvals (session_key);
create index approvals_by_time on approvals (created_at_ms);
