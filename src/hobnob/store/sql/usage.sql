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

-- name: usage_sum
-- Everything from one day to another: of some agents or all, of one session or all.
select '', '', '', '', sum(calls), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens),
  sum(cache_write_tokens), sum(cost_usd)
from usage where day >= :first and day <= :last
  and (:agents is null or agent_id in (select value from json_each(:agents)))
  and (:key is null or session_key = :key)
having count(*) > 0

-- name: usage_by_session
-- The same per session, the most expensive first, without the sums of days whose sessions are forgotten.
select '', agent_id, session_key, '', sum(calls), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens),
  sum(cache_write_tokens), sum(cost_usd)
from usage where session_key <> '' and day >= :first and day <= :last
  and (:agents is null or agent_id in (select value from json_each(:agents)))
  and (:key is null or session_key = :key)
group by session_key, agent_id
order by sum(cost_usd) desc,
  sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens) desc, session_key
limit :limit
