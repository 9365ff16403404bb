"""Scheduled jobs through RPC, the tool and the settings. Time is accelerated: `run_once` takes the clock."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from tests.integration.helpers import ANN, BOB, texts, three_agents, transcript, use, wait_until_idle
from tests.waiting import LIMIT_S

from hobnob.api import methods as methods  # for the methods it registers
from hobnob.api import rpc
from hobnob.errors import RpcFailed
from hobnob.gateway import Gateway, api_services
from hobnob.policy import Operator
from hobnob.records import replace
from hobnob.store import deliveries, entries, jobs, sessions
from hobnob.testing import OWNER, calls, rehearse, say, script
from hobnob.types import Job, now_ms

HOUR = 3_600_000
HOURLY = {"kind": "cron", "expr": "0 * * * *", "tz": "Europe/Vienna"}
MAIN = "agent:main:main"


async def call(gateway: Gateway, name: str, operator: Operator = OWNER, **params: Any) -> Any:
    async def early(_: Any) -> None: ...

    answer = await rpc.dispatch(rpc.Call(api_services(gateway), operator, early), name, params)
    if not answer["ok"]:
        error = answer["error"]
        raise RpcFailed(error["message"], reason=error["details"]["code"])
    return answer["payload"]


async def add(gateway: Gateway, message: str = "Report.", **more: Any) -> dict[str, Any]:
    payload = {"kind": "agentTurn", "message": message} | more.pop("payload", {})
    job: dict[str, Any] = await call(gateway, "cron.add", **({"schedule": HOURLY, "payload": payload} | more))
    return job


async def run_due(gateway: Gateway, job_id: str) -> dict[str, Any]:
    """Let the job be due, and wait for the end of its run."""
    job = await gateway.store.read(jobs.get, job_id)
    assert job.next_run_at_ms is not None
    await gateway.scheduler.run_once(job.next_run_at_ms)
    return await last_run(gateway, job_id)


async def last_run(gateway: Gateway, job_id: str) -> dict[str, Any]:
    (run, *_) = await gateway.store.read(jobs.runs, job_id)
    if run.status == "running":
        await gateway.sessions.wait(run.run_id, LIMIT_S)
    entry: dict[str, Any] = (await call(gateway, "cron.runs", id=job_id, limit=1))["entries"][0]
    return entry


async def stored(gateway: Gateway, job_id: str) -> Job:
    return await gateway.store.read(jobs.get, job_id)


async def posted(gateway: Gateway, key: str) -> list[str]:
    return [d.text for d in await gateway.store.read(deliveries.of_session, key)]


@pytest.mark.promise("jobs.isolated_transcripts", "keys.cron_jobs_live_under_their_id")
async def test_an_isolated_job_has_a_new_transcript_for_each_run(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway)
        first, second = [await run_due(gateway, job["id"]) for _ in range(2)]
        assert first["sessionKey"] == second["sessionKey"] == f"agent:main:cron:{job['id']}"
        assert first["sessionId"] != second["sessionId"]
        for run in (first, second):
            kept = await gateway.store.read(entries.history, run["sessionId"])
            assert [e.role for e in kept] == ["user", "assistant"]


@pytest.mark.promise("jobs.zone_and_next_time")
async def test_every_answer_about_a_job_has_its_zone_and_next_time(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        added = await add(gateway)
        changed = await call(gateway, "cron.update", id=added["id"], patch={"name": "Other"})
        got = await call(gateway, "cron.get", jobId=added["id"])
        (listed,) = (await call(gateway, "cron.list"))["jobs"]
        (compact,) = (await call(gateway, "cron.list", compact=True))["jobs"]
        for answer in (added, changed, got, listed, compact):
            assert answer["timeZone"] == "Europe/Vienna"
            assert answer["nextRunAtMs"] > now_ms()
            assert answer["nextRunAt"].endswith("(Europe/Vienna)")


async def test_a_job_whose_time_has_come_is_started_by_the_clock(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, schedule={"kind": "at", "at": "1ms"}, deleteAfterRun=False)
        ended = asyncio.Event()
        gateway.store.watch(lambda _: ended.set())
        async with asyncio.timeout(LIMIT_S):
            while (await stored(gateway, job["id"])).last_status != "ok":
                ended.clear()
                if (await stored(gateway, job["id"])).last_status != "ok":
                    await ended.wait()
        assert not (await stored(gateway, job["id"])).enabled


@pytest.mark.promise("jobs.answers_are_delivered")
async def test_the_answer_is_posted_to_the_chat_where_people_last_wrote(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        await say(gateway, "Hello.", "main")
        job = await add(gateway, "say All is well.")
        run = await run_due(gateway, job["id"])
        await wait_until_idle(gateway, MAIN)
        (text,) = await posted(gateway, MAIN)
        assert text == run["summary"]
        note = (await transcript(gateway, MAIN))[-1]
        assert note["provenance"]["sourceSessionKey"] == run["sessionKey"]


@pytest.mark.promise("jobs.answers_are_delivered")
@pytest.mark.parametrize("word", ["NO_REPLY", "ANNOUNCE_SKIP", " REPLY_SKIP\n"])
async def test_a_silent_answer_is_posted_nowhere_and_the_run_is_a_success(tmp_path: Path, word: str) -> None:
    async with rehearse(tmp_path, script(word, session="*")) as gateway:
        job = await add(gateway)
        run = await run_due(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"]) == ("ok", "not-requested")
        assert await posted(gateway, MAIN) == []


async def test_with_delivery_none_nothing_is_posted(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, delivery={"mode": "none"})
        assert (await run_due(gateway, job["id"]))["status"] == "ok"
        assert await posted(gateway, MAIN) == []
        assert await gateway.store.read(sessions.find, MAIN) is None


async def test_a_send_policy_can_deny_the_deliveries_of_jobs(tmp_path: Path) -> None:
    rule = {"match": {"keyPrefix": "cron:"}, "action": "deny"}
    async with rehearse(tmp_path, {"session": {"sendPolicy": {"rules": [rule]}}}) as gateway:
        job = await add(gateway)
        run = await run_due(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"]) == ("error", "not-delivered")
        assert await posted(gateway, MAIN) == []


async def test_a_system_event_is_a_turn_of_the_main_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        event = {"kind": "systemEvent", "text": "Check the build."}
        job = await call(gateway, "cron.add", schedule=HOURLY, payload=event)
        run = await run_due(gateway, job["id"])
        assert (job["sessionTarget"], run["sessionKey"], run["deliveryStatus"]) == ("main", MAIN, "delivered")
        first, _ = await transcript(gateway, MAIN)
        assert (first["content"], first["provenance"]["jobId"]) == ("Check the build.", job["id"])


async def test_an_event_for_the_next_turn_calls_no_model(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        event = {"kind": "systemEvent", "text": "Later."}
        job = await call(gateway, "cron.add", schedule=HOURLY, payload=event, wakeMode="next-heartbeat")
        assert (await run_due(gateway, job["id"]))["status"] == "ok"
        await say(gateway, "Hello.", "main")
        assert await texts(gateway, MAIN, "user") == ["Later.", "Hello."]


async def test_a_named_session_keeps_its_context(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, sessionTarget="session:standup")
        runs = [await run_due(gateway, job["id"]) for _ in range(2)]
        assert {r["sessionKey"] for r in runs} == {"agent:main:standup"}
        assert len(await texts(gateway, "agent:main:standup", "user")) == 2


@pytest.mark.promise("jobs.never_overlap")
async def test_a_job_that_runs_is_not_started_again(tmp_path: Path) -> None:
    async with rehearse(tmp_path, script({"text": "Slow.", "delayMs": 60_000}, session="*")) as gateway:
        job = await add(gateway)
        started = await call(gateway, "cron.run", id=job["id"])
        again = await call(gateway, "cron.run", id=job["id"])
        assert started["enqueued"] and (again["ran"], again["reason"]) == (False, "already-running")
        assert await gateway.scheduler.run_once(now_ms() + 2 * HOUR) == 0
        off = await call(gateway, "cron.update", id=job["id"], patch={"enabled": False})
        assert not off["enabled"]
        run = await last_run(gateway, job["id"])
        assert (run["status"], run["error"]) == ("error", "the job was disabled")


@pytest.mark.promise("jobs.catch_up_once")
async def test_after_a_long_pause_each_job_runs_once(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        made = [await add(gateway, f"Job {n}.", delivery={"mode": "none"}) for n in range(3)]
        later = now_ms() + 100 * HOUR
        assert await gateway.scheduler.catch_up(later) == 3
        times = sorted([(await stored(gateway, j["id"])).next_run_at_ms or 0 for j in made])
        assert times == [later + 1, later + 5_001, later + 10_001]
        assert await gateway.scheduler.run_once(later + 10_001) == 3
        runs = [await last_run(gateway, j["id"]) for j in made]
        assert {r["trigger"] for r in runs} == {"catch-up"}
        assert await gateway.scheduler.run_once(later + 10_002) == 0
        assert [len(await gateway.store.read(jobs.runs, j["id"])) for j in made] == [1, 1, 1]


async def test_jobs_that_are_due_during_a_short_pause_are_not_skipped_as_missed(
    tmp_path: Path,
) -> None:
    """Another gateway took over, or this one was started again: nothing was down for long."""
    async with rehearse(tmp_path, {"cron": {"skipMissedJobs": True}}) as gateway:
        job = await add(gateway, delivery={"mode": "none"})
        due = (await stored(gateway, job["id"])).next_run_at_ms
        assert due is not None
        await gateway.scheduler.catch_up(due + 8_000)
        assert await gateway.scheduler.run_once(due + 8_001) == 1
        await last_run(gateway, job["id"])
        due = (await stored(gateway, job["id"])).next_run_at_ms
        assert due is not None
        await gateway.scheduler.catch_up(due + 60_000)
        assert await gateway.scheduler.run_once(due + 60_001) == 0


@pytest.mark.promise("jobs.clock_set_back")
async def test_a_clock_set_back_an_hour_repeats_no_run(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, delivery={"mode": "none"})
        due = (await stored(gateway, job["id"])).next_run_at_ms
        assert due is not None
        await run_due(gateway, job["id"])
        for at in (due - HOUR, due, due + HOUR // 2):
            assert await gateway.scheduler.run_once(at) == 0
        assert await gateway.scheduler.run_once(due + HOUR) == 1
        await last_run(gateway, job["id"])


async def test_a_clock_that_was_years_ahead_does_not_stop_a_job(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, delivery={"mode": "none"})
        await gateway.scheduler.run_once(now_ms() + 9_000 * HOUR)
        await last_run(gateway, job["id"])
        assert ((await stored(gateway, job["id"])).next_run_at_ms or 0) > now_ms() + 8_000 * HOUR
        await gateway.scheduler.catch_up(now_ms())
        assert ((await stored(gateway, job["id"])).next_run_at_ms or 0) <= now_ms() + HOUR


async def test_a_job_for_one_time_is_deleted_after_its_answer_was_delivered(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, schedule={"kind": "at", "at": "1h"})
        await gateway.scheduler.run_once(now_ms() + 2 * HOUR)
        await last_run(gateway, job["id"])
        removed = asyncio.Event()
        gateway.store.watch(lambda _: removed.set())
        async with asyncio.timeout(LIMIT_S):
            while await gateway.store.read(jobs.find, job["id"]) is not None:
                removed.clear()
                if await gateway.store.read(jobs.find, job["id"]) is None:
                    break
                await removed.wait()
        assert (await last_run(gateway, job["id"]))["deliveryStatus"] == "delivered"


@pytest.mark.promise("jobs.failing_jobs_are_disabled")
async def test_a_job_whose_session_is_gone_fails_and_is_disabled_with_a_notice(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, sessionTarget="session:standup")
        await gateway.sessions.delete(OWNER, "agent:main:standup")
        for _ in range(10):
            run = await run_due(gateway, job["id"])
            assert run["error"] == "The session agent:main:standup was deleted."
        state = await call(gateway, "cron.get", id=job["id"])
        assert (state["enabled"], state["state"]["autoDisabled"]["consecutiveErrors"]) == (False, 10)
        await say(gateway, "Hello.", "main")
        notices = [t for t in await texts(gateway, MAIN, "user") if "disabled" in t]
        assert len(notices) == 1 and f"hobnob cron enable {job['id']}" in notices[0]
        on = await call(gateway, "cron.update", id=job["id"], patch={"enabled": True})
        assert on["enabled"] and "autoDisabled" not in on["state"]


async def test_deleting_the_session_of_a_running_job_ends_its_run(tmp_path: Path) -> None:
    async with rehearse(tmp_path, script({"text": "Slow.", "delayMs": 60_000}, session="*")) as gateway:
        job = await add(gateway)
        await call(gateway, "cron.run", id=job["id"])
        await gateway.sessions.delete(OWNER, f"agent:main:cron:{job['id']}")
        run = (await call(gateway, "cron.runs", id=job["id"]))["entries"][0]
        assert (run["status"], run["error"]) == ("error", "Its session was deleted.")
        assert (await stored(gateway, job["id"])).turn_id is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"agentId": "nobody"}, "There is no agent 'nobody'"),
        ({"payload": {"model": "no/such"}}, "no/such"),
        ({"schedule": {"kind": "cron", "expr": "61 * * * *"}}, "the minute is '61'"),
        ({"schedule": {"kind": "every"}}, "needs everyMs"),
        ({"schedule": {"kind": "at", "at": "2020-01-01"}}, "is in the past"),
        ({"delivery": {"mode": "announce", "channel": "pigeon", "to": "5"}}, "'pigeon' is not connected"),
        ({"delivery": {"mode": "webhook"}}, "a webhook needs"),
        ({"sessionTarget": "somewhere"}, "sessionTarget is main, isolated"),
        ({"sessionTarget": "session:subagent:5"}, "sub-agent"),
    ],
)
async def test_a_job_that_could_not_run_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    async with rehearse(tmp_path) as gateway:
        with pytest.raises(RpcFailed) as refused:
            await add(gateway, **change)
        assert words in refused.value.message
        assert (await call(gateway, "cron.list", includeDisabled=True))["jobs"] == []


async def test_an_edit_keeps_the_next_time_unless_it_changes_the_schedule(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway, schedule={"kind": "every", "everyMs": 7 * HOUR})
        renamed = await call(gateway, "cron.update", id=job["id"], patch={"payload": {"message": "New."}})
        assert renamed["nextRunAtMs"] == job["nextRunAtMs"]
        assert renamed["payload"] == {"kind": "agentTurn", "message": "New."}
        sooner = await call(
            gateway, "cron.update", id=job["id"], patch={"schedule": {"kind": "every", "everyMs": HOUR}}
        )
        assert sooner["nextRunAtMs"] < job["nextRunAtMs"]


async def test_an_edit_of_a_job_that_somebody_else_changed_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway)
        seen = job["configRevision"]
        await call(gateway, "cron.update", id=job["id"], patch={"name": "A"}, expectedConfigRevision=seen)
        with pytest.raises(RpcFailed, match="changed by somebody else"):
            await call(gateway, "cron.update", id=job["id"], patch={"name": "B"}, expectedConfigRevision=seen)


async def test_removing_a_job_removes_its_session_and_keeps_its_history(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway)
        await run_due(gateway, job["id"])
        await call(gateway, "cron.remove", id=job["id"])
        assert await gateway.store.read(sessions.find, f"agent:main:cron:{job['id']}") is None
        assert len((await call(gateway, "cron.runs", id=job["id"]))["entries"]) == 1
        with pytest.raises(RpcFailed, match="There is no scheduled job"):
            await call(gateway, "cron.get", id=job["id"])


async def test_a_credential_for_one_agent_sees_the_jobs_of_that_agent(tmp_path: Path) -> None:
    narrow = Operator("narrow", ("operator.admin",), ("bob",))
    async with rehearse(tmp_path, three_agents()) as gateway:
        hers = await add(gateway, agentId="ann")
        his = await add(gateway, agentId="bob")
        assert [j["id"] for j in (await call(gateway, "cron.list", narrow))["jobs"]] == [his["id"]]
        with pytest.raises(RpcFailed, match="There is no scheduled job"):
            await call(gateway, "cron.get", narrow, id=hers["id"])
        with pytest.raises(RpcFailed):
            await call(
                gateway,
                "cron.add",
                narrow,
                agentId="ann",
                schedule=HOURLY,
                payload={"kind": "agentTurn", "message": "x"},
            )


@pytest.mark.promise("jobs.agents_see_their_own")
async def test_an_agent_sees_and_changes_only_the_jobs_of_its_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        other = await add(gateway, agentId="ann")
        spec = {"schedule": HOURLY, "payload": {"kind": "agentTurn", "message": "Mine."}}
        own = await use(gateway, "cron", ANN, action="add", job=spec)
        assert own["sessionTarget"] == f"session:{ANN}" and own["nextRunAt"].endswith("(Europe/Vienna)")
        listed = await use(gateway, "cron", ANN, action="list")
        assert [j["id"] for j in listed["jobs"]] == [own["id"]]
        assert (await use(gateway, "cron", BOB, action="list"))["jobs"] == []
        for key, job_id in ((ANN, other["id"]), (BOB, own["id"])):
            for action in ("get", "remove", "run", "update"):
                answer = await use(gateway, "cron", key, action=action, jobId=job_id)
                assert answer["error"] == f"There is no scheduled job {job_id}."


@pytest.mark.promise("jobs.agents_see_their_own")
@pytest.mark.parametrize(
    "change", [{"agentId": "bob"}, {"sessionTarget": f"session:{BOB}"}, {"sessionTarget": "session:other"}]
)
async def test_an_agent_makes_jobs_for_itself_only(tmp_path: Path, change: dict[str, Any]) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        spec = {"schedule": HOURLY, "payload": {"kind": "agentTurn", "message": "x"}} | change
        assert (await use(gateway, "cron", ANN, action="add", job=spec))["status"] in ("forbidden", "error")
        assert (await call(gateway, "cron.list"))["jobs"] == []


@pytest.mark.promise("jobs.agents_see_their_own")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"delivery": {"mode": "webhook", "to": "https://example.com"}}, "cron.delivery"),
        ({"delivery": {"mode": "announce", "channel": "webchat", "to": "somebody"}}, "cron.delivery"),
        ({"schedule": {"kind": "every", "everyMs": 59_000}}, "cron.too_often"),
        ({"schedule": {"kind": "cron", "expr": "*/5 * * * * *"}}, "cron.too_often"),
    ],
)
async def test_an_agent_reaches_only_its_own_chat_and_at_most_once_a_minute(
    tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        spec = {"schedule": HOURLY, "payload": {"kind": "agentTurn", "message": "x"}}
        assert (await use(gateway, "cron", ANN, action="add", job=spec | change))["code"] == code
        own = await use(gateway, "cron", ANN, action="add", job=spec)
        answer = await use(gateway, "cron", ANN, action="update", jobId=own["id"], patch=change)
        assert answer["code"] == code


@pytest.mark.promise("jobs.no_more_tools")
@pytest.mark.parametrize("target", ["isolated", "current"])
async def test_a_job_has_at_most_the_tools_of_the_turn_that_made_it(
    tmp_path: Path, target: str, model_requests: list[Any]
) -> None:
    spec = {
        "schedule": HOURLY,
        "payload": {"kind": "agentTurn", "message": "Go."},
        "sessionTarget": target,
    }
    async with rehearse(tmp_path, three_agents(tools={"allow": ["cron", "read"]})) as gateway:
        job = await use(gateway, "cron", ANN, action="add", job=spec)
    async with rehearse(
        tmp_path, three_agents(tools={"allow": ["cron", "read", "exec", "write"]})
    ) as gateway:
        model_requests.clear()
        await run_due(gateway, job["id"])
        assert {t.name for request in model_requests for t in request.tools} == {"cron", "read"}


@pytest.mark.promise("jobs.no_more_tools")
async def test_a_sub_agent_of_a_job_has_no_tool_that_the_job_lacks(tmp_path: Path) -> None:
    spec = {
        "schedule": HOURLY,
        "payload": {"kind": "agentTurn", "message": "Go."},
        "sessionTarget": "isolated",
    }
    few = {"allow": ["cron", "read", "sessions_spawn"]}
    async with rehearse(tmp_path, three_agents(tools=few)) as gateway:
        job = await use(gateway, "cron", ANN, action="add", job=spec)
    key = f"agent:ann:cron:{job['id']}"
    spawns = {key: [calls("sessions_spawn", task="List your tools."), "Done."], "*": ["I see.", "I see."]}
    async with rehearse(tmp_path, three_agents(spawns, tools={"allow": [*few["allow"], "exec"]})) as gateway:
        await run_due(gateway, job["id"])
        (child,) = await gateway.store.read(sessions.children, key)
        held = await gateway.sessions.capabilities.tools(child)
        assert {name for name, verdict in held.items() if verdict.allowed} == {"read"}


@pytest.mark.promise("jobs.jobs_make_no_jobs")
async def test_a_job_makes_no_jobs(tmp_path: Path) -> None:
    spec = {"schedule": HOURLY, "payload": {"kind": "agentTurn", "message": "x"}}
    steps = [calls("cron", action="add", job=spec), "Done."]
    async with rehearse(tmp_path, script(*steps, session="*")) as gateway:
        job = await add(gateway)
        run = await run_due(gateway, job["id"])
        results = [m for m in await transcript(gateway, run["sessionKey"]) if m["role"] == "toolResult"]
        assert results[0]["isError"] and "cron.in_job" in results[0]["content"][0]["text"]
        assert len((await call(gateway, "cron.list"))["jobs"]) == 1


@pytest.mark.promise("jobs.jobs_make_no_jobs")
async def test_a_job_makes_no_jobs_through_another_agent(tmp_path: Path) -> None:
    spec = {"schedule": HOURLY, "payload": {"kind": "agentTurn", "message": "x"}}
    scripts = {
        BOB: [calls("cron", action="add", job=spec), "Refused.", "REPLY_SKIP", "ANNOUNCE_SKIP"],
        "*": [calls("sessions_send", agentId="bob", message="Schedule it."), "Done.", "REPLY_SKIP"],
    }
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        job = await add(gateway, agentId="ann")
        await run_due(gateway, job["id"])
        results = [m for m in await transcript(gateway, BOB) if m["role"] == "toolResult"]
        assert "cron.in_job" in results[0]["content"][0]["text"]


async def test_sub_agents_do_not_have_the_tool(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents({ANN: []} | {"*": ["x", "x"]})) as gateway:
        await use(gateway, "sessions_spawn", ANN, task="x")
        (child,) = await gateway.store.read(sessions.children, ANN)
        verdict = (await gateway.sessions.capabilities.tools(child))["cron"]
        assert (verdict.allowed, verdict.code) == (False, "tools.subagent_automation")


DECLARED = {"id": "brief", "schedule": HOURLY, "payload": {"kind": "agentTurn", "message": "Summarise."}}


@pytest.mark.promise("jobs.declared_in_settings")
async def test_declared_jobs_follow_the_settings(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"cron": {"jobs": [DECLARED]}}) as gateway:
        await gateway.scheduler.run_once(now_ms())
        before = await stored(gateway, "brief")
        with pytest.raises(RpcFailed, match="declared in the settings"):
            await call(gateway, "cron.update", id="brief", patch={"enabled": False})
        await run_due(gateway, "brief")
    changed = {**DECLARED, "name": "Morning brief"}
    async with rehearse(tmp_path, {"cron": {"jobs": [changed]}}) as gateway:
        await gateway.scheduler.run_once(now_ms())
        after = await stored(gateway, "brief")
        assert (after.name, after.created_at_ms) == ("Morning brief", before.created_at_ms)
        assert after.last_status == "ok" and after.next_run_at_ms != before.next_run_at_ms
    async with rehearse(tmp_path) as gateway:
        await gateway.scheduler.run_once(now_ms())
        assert await gateway.store.read(jobs.find, "brief") is None


async def test_while_the_scheduler_is_off_no_job_starts_and_the_status_says_so(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"cron": {"enabled": False}}) as gateway:
        await add(gateway)
        assert await gateway.scheduler.run_once(now_ms() + 2 * HOUR) == 0
        status = await call(gateway, "cron.status")
        assert (status["enabled"], status["jobs"], status["nextWakeAtMs"]) == (False, 1, None)


async def test_wake_starts_a_turn_or_leaves_a_note(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        await call(gateway, "wake", text="Later.", mode="next-heartbeat")
        now = await call(gateway, "wake", text="Now.")
        await gateway.sessions.wait(now["runId"], LIMIT_S)
        assert await texts(gateway, MAIN, "user") == ["Later.", "Now."]
        assert len(await texts(gateway, MAIN, "assistant")) == 1


@pytest.mark.promise("jobs.model_down")
async def test_a_job_whose_model_is_down_at_its_time_is_tried_again_and_ends_well(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    provider = {
        "baseUrl": f"http://127.0.0.1:{port}/v1",
        "apiKey": "-",
        "api": "openai-completions",
        "models": [{"id": "m"}],
    }
    settings = {"agents": {"defaults": {"model": "p/m"}}, "models": {"providers": {"p": provider}}}
    async with rehearse(tmp_path, settings) as gateway:
        due = now_ms() + 1_000
        every = {"kind": "every", "everyMs": HOUR, "anchorMs": due}
        job = await add(gateway, schedule=every, delivery={"mode": "none"})
        run = await run_due(gateway, job["id"])
        assert run["status"] == "error" and "cannot be reached" in run["error"]
        waiting = await stored(gateway, job["id"])
        assert (waiting.attempts, waiting.enabled) == (1, True)
        assert waiting.next_run_at_ms is not None and waiting.next_run_at_ms < due + HOUR
        async with chat_completions(port, "All is well."):
            run = await run_due(gateway, job["id"])
        assert (run["status"], run["summary"]) == ("ok", "All is well.")
        after = await stored(gateway, job["id"])
        assert (after.attempts, after.consecutive_errors) == (0, 0)


async def test_a_job_of_an_agent_that_is_gone_says_so(tmp_path: Path) -> None:
    two = {"agents": {"list": [{"id": "main", "default": True}, {"id": "bob"}]}}
    async with rehearse(tmp_path, two) as gateway:
        job = await add(gateway, agentId="bob")
    async with rehearse(tmp_path) as gateway:
        run = await run_due(gateway, job["id"])
        assert (run["status"], run["error"]) == ("error", "There is no agent 'bob' any more (agents.list).")


async def test_a_job_for_a_channel_that_is_gone_says_so(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        job = await add(gateway)
        gone = '{"mode": "announce", "channel": "pigeon", "to": "5"}'
        known = await stored(gateway, job["id"])
        await gateway.store.write(jobs.save, replace(known, delivery=gone))
        run = await run_due(gateway, job["id"])
        assert (run["status"], run["error"]) == ("error", "The channel pigeon is not connected.")


@asynccontextmanager
async def chat_completions(port: int, text: str) -> AsyncIterator[None]:
    """A model server that always gives the same answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        await response.write(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\ndata: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()
