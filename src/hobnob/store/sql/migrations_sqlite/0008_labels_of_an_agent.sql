-- A label is unique among the sessions of an agent, and a sub-agent's among the sub-agents of its requester.
-- Keys contain a colon and agent ids do not, so the two cannot collide.
drop index sessions_by_label;
create unique index sessions_by_label on sessions (label, coalesce(spawned_by, agent_id)) where label is not null;
