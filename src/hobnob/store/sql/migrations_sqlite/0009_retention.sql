-- What retention looks for, oldest first. A sum of usage has no session and is never removed.
create index turns_ended on turns (ended_at_ms, turn_id) where status = 'ended';
create index exchanges_ended on exchanges (updated_at_ms, exchange_id) where state <> 'open';
create index deliveries_settled on deliveries (updated_at_ms, delivery_id)
  where state not in ('pending', 'sending');
create index usage_by_day on usage (day) where session_key <> '';

-- Transcripts that were deleted and whose entries still have to be, in small steps. The entries up to the
-- position `indexed` are in the full-text index.
create table purges (
  transcript integer primary key,
  indexed    integer not null
);
