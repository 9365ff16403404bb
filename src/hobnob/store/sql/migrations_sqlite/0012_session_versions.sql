-- Raised by every update of a session, so that lists need to read only the sessions that changed.
alter table sessions add column version integer not null default 0;
