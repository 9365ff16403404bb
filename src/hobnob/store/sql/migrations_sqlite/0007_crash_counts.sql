-- Which kills count against a turn: not those of a machine that restarted or of a gateway that was stopping.
alter table turns add column boot_id text;
alter table turns add column stopping integer not null default 0;
alter table turns add column crashed_at_ms integer;
