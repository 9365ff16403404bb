-- name: usage_add
insert into usage ({Usage}) values ({:Usage})
on conflict (day, agent_id, session_key, model) do update set
  calls = usage.calls + excluded.calls, input_tokens = usage.input_tokens + excluded.input_tokens,
  output_tokens = usage.output_tokens + excluded.output_tokens,
  cache_read_tokens = usage.cache_read_tokens + excluded.cache_read_tokens,
  cache_write_tokens = usage.cache_write_tokens + excluded.cache_write_tokens,
  cost_usd = usage.cost_usd + excluded.cost_usd

-- name: usage_between
select {Usage} from usage where day >= :first and day <= :last order by day, agent_id, session_key, model
