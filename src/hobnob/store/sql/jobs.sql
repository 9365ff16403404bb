-- name: job_insert
insert into cron_jobs ({CronJob}) values ({:CronJob})

-- name: job_update
update cron_jobs set agent_id = :agent_id, name = :name, schedule = :schedule, payload = :payload,
  enabled = :enabled, next_run_at_ms = :next_run_at_ms, last_run_at_ms = :last_run_at_ms
where job_id = :job_id

-- name: job_get
select {CronJob} from cron_jobs where job_id = :job_id

-- name: jobs_list
select {CronJob} from cron_jobs order by created_at_ms, job_id

-- name: jobs_due
select {CronJob} from cron_jobs where enabled = 1 and next_run_at_ms is not null and next_run_at_ms <= :now_ms
order by next_run_at_ms, job_id

-- name: job_delete
delete from cron_jobs where job_id = :job_id
