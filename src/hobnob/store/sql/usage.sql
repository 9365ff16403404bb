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

-- name: usage_added_up
-- By agent, session, tree, model or day. A tree is named after the session that everything began with.
with named as (
  select u.*, case :by when 'agent' then u.agent_id when 'session' then u.session_key when 'model' then u.model
      when 'day' then u.day else coalesce(s.root_key, u.session_key) end as name,
    u.input_tokens + u.output_tokens + u.cache_read_tokens + u.cache_write_tokens as all_tokens
  from usage u left join sessions s on s.key = u.session_key
  where u.day >= :first and u.day <= :last
    and (:agents is null or u.agent_id in (select value from json_each(:agents)))
)
select name, sum(calls), sum(input_tokens + cache_read_tokens + cache_write_tokens), sum(output_tokens),
  sum(all_tokens), sum(cost_usd), sum(case when cost_usd = 0 then all_tokens else 0 end)
from named group by name
order by case when :by = 'day' then name end, sum(cost_usd) desc, sum(all_tokens) desc, name
limit :limit
