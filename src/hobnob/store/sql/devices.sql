-- name: device_save
insert into devices ({Device}) values ({:Device})
on conflict (device_id) do update set public_key = excluded.public_key, name = excluded.name,
  platform = excluded.platform, address = excluded.address, state = excluded.state,
  request_id = excluded.request_id, credential = excluded.credential,
  generation = excluded.generation, created_at_ms = excluded.created_at_ms,
  paired_at_ms = excluded.paired_at_ms, seen_at_ms = excluded.seen_at_ms

-- name: device_get
select {Device} from devices where device_id = :device_id

-- name: device_by_request
select {Device} from devices where request_id = :request_id

-- name: devices_list
select {Device} from devices order by created_at_ms desc, device_id limit :limit

-- name: device_seen
-- Changes no row unless the device is paired and the token it presented is current.
update devices set seen_at_ms = :now_ms
where device_id = :device_id and state = 'paired' and generation = :generation

-- name: devices_crowd
-- Delete all but the newest requests of a credential, which could otherwise fill the table. A device that was
-- paired before is kept: its generation says which of its tokens are revoked.
delete from devices where state = 'pending' and paired_at_ms is null and credential = :credential
  and device_id not in (select device_id from devices where state = 'pending' and credential = :credential
  order by created_at_ms desc, device_id limit :limit)
