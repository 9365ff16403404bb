-- Deliveries in the order of their transactions: ids tell the order of the clock, which may be set back.
drop index deliveries_pending;
create index deliveries_pending on deliveries (channel, coalesce(account_id, ''), recipient) where state = 'pending';
