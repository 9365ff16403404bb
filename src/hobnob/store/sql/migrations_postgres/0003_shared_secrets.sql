-- Secrets that the gateways of this database share, encrypted with a key that is not in it.
create table secrets (
  name  text collate "C" primary key,
  value text collate "C" not null
);
