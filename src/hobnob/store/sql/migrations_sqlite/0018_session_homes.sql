-- The name of the gateway that has the files of a session; null if all gateways have them, or it never ran.
alter table sessions add column home text;
