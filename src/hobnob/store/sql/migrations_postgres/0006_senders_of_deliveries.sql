-- The gateway that sends, or sent, a delivery.
alter table deliveries add column claimed_by text collate "C";
