-- The gateway whose end was last counted as a crash of the turn.
alter table turns add column crashed_on text collate "C";
create index turns_crashed on turns (crashed_on) where crashed_on is not null;
