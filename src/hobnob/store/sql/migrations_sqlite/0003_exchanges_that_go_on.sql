-- What an exchange needs to go on by itself: the turn it waits for, who waits for it until when, how its loop
-- ended, and what a spawn has to do once its child is done.

alter table exchanges add column turn_id text;
alter table exchanges add column caller_turn_id text;
alter table exchanges add column wait_until_ms integer not null default 0;
alter table exchanges add column loop_end text;
alter table exchanges add column outcome text;
alter table exchanges add column error text;
alter table exchanges add column label text;
alter table exchanges add column cleanup text not null default 'keep';
alter table exchanges add column on_complete text not null default 'post';
alter table exchanges add column route text;
alter table exchanges add column files text;
alter table exchanges add column swept integer not null default 0;

create index exchanges_unswept on exchanges (updated_at_ms) where kind = 'spawn' and state <> 'open' and swept = 0;
create index exchanges_waiting on exchanges (requester_key) where state = 'open' and phase = 'primary';
create index exchanges_spawned on exchanges (requester_key, created_at_ms desc, exchange_id) where kind = 'spawn';

-- What is looked for has to be what the index is for, word by word, or it is not used.
drop index deliveries_due;
create index deliveries_pending on deliveries (channel, next_attempt_at_ms, delivery_id) where state = 'pending';
create index deliveries_sending on deliveries (created_at_ms, delivery_id) where state = 'sending';
drop index deliveries_by_session;
create index deliveries_by_session on deliveries (session_key, created_at_ms, delivery_id);
