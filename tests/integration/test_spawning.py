"""sessions_spawn: a sub-agent in the background, and its report."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    Gate,
    create_sessions,
    spawn_and_wait,
    spawning_agents,
    texts,
    transcript,
    use,
    wait_until_idle,
)
from tests.waiting import LIMIT_S, TimeLimit

from hobnob.config import Config, Settings
from hobnob.errors import NotAllowed
from hobnob.gateway import Gateway
from hobnob.maintenance import Maintenance
from hobnob.records import replace
from hobnob.requests import SessionQuery, SpawnRequest
from hobnob.sessions import Cause, SpawnReceipt
from hobnob.store import Tx, exchanges, sessions, turns
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.tools import Context, tool
from hobnob.types import now_ms


async def counts(gateway: Gateway) -> tuple[int, int]:
    """How many sessions and exchanges there are."""
    listed = await gateway.sessions.queries.list(OWNER, SessionQuery(limit=200))
    return listed["count"], (await gateway.sessions.queries.exchanges(OWNER))["count"]


async def test_a_spawn_returns_at_once_with_what_really_runs(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": [{"text": "done", "delayMs": 600_000}]})) as gateway:
        answer = await use(
            gateway, "sessions_spawn", BOB, task="Count.", label="counter", runTimeoutSeconds=9
        )
        assert answer["status"] == "accepted"
        assert answer["childSessionKey"].startswith("agent:bob:subagent:")
        promised = ("model", "thinking", "sandbox", "runTimeoutSeconds")
        assert [answer[name] for name in promised] == ["rehearsal/rehearsal", "off", False, 9]
        assert not [name for name in answer["tools"] if name.startswith("session")]
        turn = await gateway.store.read(turns.get, answer["runId"])
        assert turn.status != "ended"
        assert turn.timeout_s == 9
        child = await gateway.store.read(sessions.get, answer["childSessionKey"])
        assert (child.spawned_by, child.label, child.spawn_depth) == (BOB, "counter", 1)


@pytest.mark.promise(
    "report.form",
    "report.status_is_the_outcome",
    "report.stats_line",
    "report.posted_to_the_requester",
    "report.recorded_with_the_requester",
)
async def test_the_result_is_reported_to_whoever_asked_in_a_fixed_form(tmp_path: Path) -> None:
    child = ["I counted to 42.", "Status: failed terribly\nResult: forty-two\nNotes: all fine"]
    scripts = {ANN: ["hi", calls("sessions_spawn", task="Count."), "Started."], "*": child}
    async with rehearse(tmp_path, spawning_agents(scripts)) as gateway:
        await say(gateway, "hi", ANN)
        await say(gateway, "go", ANN)
        [found] = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        ended = await exchange_ended(gateway, found["id"])
        assert (ended["end"], ended["outcome"]) == ("delivered", "ok")
        [posted] = (await gateway.sessions.queries.deliveries(OWNER, ANN))[1]
        status, result, notes, stats = posted.text.split("\n")
        assert (status, result, notes) == ("Status: completed", "Result: forty-two", "Notes: all fine")
        session = await gateway.store.read(sessions.get, ended["target"])
        for part in (
            "runtime ",
            "tokens ",
            f"sessionKey {session.key}",
            f"sessionId {session.session_id}",
            ".jsonl",
        ):
            assert part in stats
        await wait_until_idle(gateway, ANN)
        told = (await transcript(gateway, ANN))[-1]
        assert (told["content"], told["provenance"]["kind"]) == (posted.text, "inter_session")
        assert told["provenance"]["sourceSessionKey"] == session.key


@pytest.mark.promise("report.skip_is_silent")
async def test_a_child_may_choose_to_stay_silent(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": ["done", "ANNOUNCE_SKIP"]})) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Count.")
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert ended["end"] == "announce_skip"
        assert not any("Status:" in text for text in await texts(gateway, ANN, "user"))
        assert (await gateway.sessions.queries.deliveries(OWNER, ANN))[1] == []


@pytest.mark.promise("spawn.timeout_aborts", "spawn.timeout_keeps_text", "outcome.timed_out")
async def test_a_child_that_runs_too_long_is_stopped_and_its_words_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, limit = Gate(), TimeLimit(monkeypatch)
    scripts = {"*": [calls("hold", "I got this far.")]}
    async with rehearse(tmp_path, spawning_agents(scripts), tools=[gate.tool]) as gateway:
        spawning = asyncio.create_task(
            spawn_and_wait(gateway, task="Count.", runTimeoutSeconds=limit.SECONDS)
        )
        await gate.reached.wait()
        limit.expire()
        ended = await spawning
        assert ended["outcome"] == "timed_out"
        assert ended["report"].startswith("Status: timed out\n")
        assert "stopped after 599 seconds" in ended["report"]
        said = await texts(gateway, ended["target"], "assistant")
        assert said[0] == "I got this far."


async def test_a_child_that_fails_is_reported_as_failed_with_the_reason(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": [{"error": "the key is wrong"}]})) as gateway:
        ended = await spawn_and_wait(gateway, task="Count.")
        assert [s["step"] for s in ended["steps"]] == ["primary"]  # a model that fails is not asked again
        assert ended["report"].startswith("Status: failed\n")
        assert "the key is wrong" in ended["report"]


async def test_a_child_without_output_is_reported_as_such(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": [{"text": ""}, {"text": ""}]})) as gateway:
        ended = await spawn_and_wait(gateway, task="Count.")
        assert ended["report"].startswith("Status: no output\nResult: (none)\n")


@pytest.mark.promise("more.subagents_lists", "more.subagents_cancels")
async def test_a_cancelled_child_is_reported_as_cancelled(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": [{"text": "x", "delayMs": 600_000}]})) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Count.", label="counter")
        listed = await use(gateway, "subagents")
        assert [(c["label"], c["status"]) for c in listed["active"]] == [("counter", "running")]
        stopped = await use(gateway, "subagents", action="cancel", target="counter")
        assert stopped["cancelled"] == [answer["childSessionKey"]]
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert ended["outcome"] == "cancelled"
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "user"))[-1].startswith("Status: cancelled\n")


@pytest.mark.promise(
    "spawn.refused_creates_nothing",
    "spawn.unknown_model_is_refused",
    "spawn.unknown_thinking_is_refused",
    "spawn.thread_impossible_is_said",
)
@pytest.mark.parametrize(
    ("arguments", "status", "code", "said"),
    [
        ({"task": "  "}, "error", "input.bad", "task is empty"),
        ({"task": "x", "agentId": "eve"}, "forbidden", "spawn.agent_not_allowed", "allowed: ann, bob"),
        ({"task": "x", "agentId": "nobody"}, "forbidden", "spawn.agent_unknown", "allowed: ann, bob"),
        ({"task": "x", "model": "none/such"}, "error", "model.unknown", "none/such"),
        ({"task": "x", "thinking": "hard"}, "error", "input.bad", "off, minimal, low, medium, high, xhigh"),
        ({"task": "x", "mode": "session"}, "error", "input.bad", "thread"),
        ({"task": "x", "thread": True}, "forbidden", "spawn.thread", "cannot open threads"),
        ({"task": "x", "runtime": "acp"}, "forbidden", "spawn.harness_unknown", "acp.harnesses"),
        ({"task": "x", "sandbox": "require"}, "forbidden", "spawn.sandbox", "sandbox"),
        ({"task": "x", "label": "y" * 513}, "error", "input.bad", "at most 512"),
        ({"task": "x", "attachments": [{"name": "../x", "content": ""}]}, "error", "attachment.name", "x"),
        ({"task": "x", "cleanup": "burn"}, "error", None, "cleanup"),
        ({"task": "x", "channel": "irc"}, "error", None, "no parameter channel"),
        ({"task": "x", "spawnedBy": BOB}, "error", None, "no parameter spawnedBy"),
        ({"task": "x", "labell": "y"}, "error", None, "did you mean label"),
    ],
)
async def test_a_spawn_that_is_refused_creates_nothing(
    tmp_path: Path, arguments: dict[str, Any], status: str, code: str | None, said: str
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        before = await counts(gateway)
        answer = await use(gateway, "sessions_spawn", **arguments)
        assert (answer["status"], answer.get("code")) == (status, code), answer
        assert said in answer["error"] + answer.get("fix", "")
        after = await counts(gateway)
        assert after == (before[0] + 1, 0)  # the caller's own session, and nothing else


@pytest.mark.promise("spawn.subagents_cannot_spawn")
async def test_a_sub_agent_cannot_spawn(tmp_path: Path) -> None:
    scripts = {"*": [calls("sessions_spawn", task="deeper"), "done", "ok"]}
    async with rehearse(tmp_path, spawning_agents(scripts | {ANN: []})) as gateway:
        ended = await spawn_and_wait(gateway, task="Spawn yourself.")
        results = [m for m in await transcript(gateway, ended["target"]) if m["role"] == "toolResult"]
        assert "There is no tool sessions_spawn" in results[0]["content"][0]["text"]
        assert (await counts(gateway))[1] == 1


@pytest.mark.promise("spawn.deeper_when_configured")
async def test_with_a_larger_depth_a_sub_agent_can_spawn_down_to_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents(subagents={"maxSpawnDepth": 2})) as gateway:
        await spawn_and_wait(gateway, task="spawn: say deeper")
        made = (await gateway.sessions.queries.list(OWNER, SessionQuery(kinds=["other"])))["sessions"]
        child, grandchild = sorted(made, key=lambda row: row["updatedAt"])
        depths = {}
        for row in (child, grandchild):
            session = await gateway.store.read(sessions.get, row["key"])
            depths[session.spawn_depth] = session
        assert sorted(depths) == [1, 2]
        assert depths[2].spawned_by == depths[1].key
        assert "sessions_spawn" not in names(await gateway.sessions.capabilities.tools(depths[2]))


def names(verdicts: Any) -> list[str]:
    return [name for name, verdict in verdicts.items() if verdict.allowed]


@pytest.mark.promise("spawn.children_limited")
async def test_a_session_has_at_most_so_many_children_at_work(tmp_path: Path) -> None:
    settings = spawning_agents(
        {"*": [{"text": "x", "delayMs": 600_000}]}, subagents={"maxChildrenPerAgent": 2}
    )
    async with rehearse(tmp_path, settings) as gateway:
        for _ in range(2):
            assert (await use(gateway, "sessions_spawn", task="Wait."))["status"] == "accepted"
        refused = await use(gateway, "sessions_spawn", task="Wait.")
        assert (refused["status"], refused["code"]) == ("forbidden", "spawn.children")
        assert "maxChildrenPerAgent 3" in refused["fix"]
        await use(gateway, "subagents", action="cancel", target="all")


@pytest.mark.promise("spawn.never_more_than_requester")
async def test_a_child_of_another_agent_has_no_tool_its_requester_lacks(tmp_path: Path) -> None:
    @tool()
    async def shout(context: Context) -> str:
        """Shout."""
        return "HEY"

    settings = spawning_agents()
    settings["agents"]["list"][0]["tools"] = {"deny": ["shout"]}
    async with rehearse(tmp_path, settings, tools=[shout]) as gateway:
        answer = await use(gateway, "sessions_spawn", task="say hi", agentId="bob")
        assert "shout" not in answer["tools"]
        await exchange_ended(gateway, answer["exchangeId"])
        bob = await gateway.store.read(sessions.get, answer["childSessionKey"])
        assert "shout" not in names(await gateway.sessions.capabilities.tools(bob))
    settings["agents"]["list"][0]["subagents"]["delegate"] = ["bob"]
    async with rehearse(tmp_path, settings, tools=[shout]) as gateway:
        assert "shout" in (await use(gateway, "sessions_spawn", task="say hi", agentId="bob"))["tools"]


async def test_a_child_that_would_run_otherwise_than_promised_fails_loudly(tmp_path: Path) -> None:
    """The configuration changes between the spawn and the child's first turn: another process starts it."""
    slow = {"*": [{"text": "x", "delayMs": 600_000}]}
    settings = spawning_agents(slow)
    settings["agents"]["defaults"]["subagents"] = {"maxConcurrent": 1}
    async with rehearse(tmp_path, settings) as gateway:
        await use(gateway, "sessions_spawn", task="Wait.")
        answer = await use(gateway, "sessions_spawn", task="Wait too.")
    settings["agents"]["defaults"]["thinkingDefault"] = "high"
    settings["agents"]["list"][0]["tools"] = {"deny": ["session_status"]}
    settings["tools"]["subagents"] = {"tools": {"allow": ["sessions_search"]}}
    settings["agents"]["defaults"]["subagents"] = {"maxConcurrent": 8}
    async with rehearse(tmp_path, settings) as gateway:
        turn = await gateway.sessions.wait(answer["runId"], LIMIT_S)
        assert turn.outcome == "failed"
        assert (
            "differs from the receipt of its spawn: tools is ['sessions_search'] instead of ['edit', "
            in str(turn.error)
        )


@pytest.mark.promise("attachments.written", "attachments.receipt")
async def test_files_reach_the_child_and_are_gone_when_it_is_done(
    tmp_path: Path, model_requests: Any
) -> None:
    gate = Gate()
    async with rehearse(
        tmp_path, spawning_agents({"*": [calls("hold"), "read", "ok"]}), tools=[gate.tool]
    ) as gateway:
        file = {"name": "note.txt", "content": "aGVsbG8=", "encoding": "base64"}
        answer = await use(gateway, "sessions_spawn", task="Read it.", attachments=[file])
        assert "attachments" in answer, answer
        receipt = answer["attachments"]
        assert (receipt["count"], receipt["totalBytes"]) == (1, 5)
        assert receipt["files"][0]["sha256"].startswith("2cf24dba5fb0a30e")
        folder = gateway.config.workspace("ann") / receipt["relDir"]
        assert (folder / "note.txt").read_text() == "hello"
        gate.open.set()
        ended = await exchange_ended(gateway, answer["exchangeId"])
        await Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces).run_once()
        assert not folder.exists()
        first = next(r for r in model_requests if r.session_key == ended["target"])
        assert receipt["relDir"] in first.system
        assert str(tmp_path) not in first.system


@pytest.mark.promise("archive.delete")
async def test_a_child_to_be_deleted_is_deleted_once_its_report_was_handed_over(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say done", cleanup="delete")
        await Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces).run_once()
        assert await gateway.store.read(sessions.find, ended["target"]) is None
        assert ended["report"].startswith("Status: completed\nResult: done")
        kept = await gateway.store.read(exchanges.get, ended["id"])
        assert (kept.end_reason, kept.request) == ("delivered", "")


@pytest.mark.promise(
    "archive.archived_in_time",
    "archive.after_60_minutes",
    "archive.hidden",
    "archive.readable",
    "archive.restorable",
)
async def test_a_kept_child_is_archived_after_its_time_and_can_be_read_and_restored(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say done")
        sweeper = Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces)
        await sweeper.run_once(now_ms() + 59 * 60_000)
        assert (await gateway.store.read(sessions.get, ended["target"])).archived_at_ms is None
        await sweeper.run_once(now_ms() + 61 * 60_000)
        assert (await gateway.store.read(sessions.get, ended["target"])).archived_at_ms is not None
        listed = await use(gateway, "sessions_list", kinds=["other"])
        assert listed["count"] == 0
        hidden = await use(gateway, "sessions_list", archived=True)
        assert [row["key"] for row in hidden["sessions"]] == [ended["target"]]
        read = await use(gateway, "sessions_history", sessionKey=ended["target"])
        assert read["messages"][0]["content"] == "say done"
        refused = await use(gateway, "sessions_send", sessionKey=ended["target"], message="hi")
        assert refused["code"] == "session.archived"
        await gateway.sessions.restore(OWNER, ended["target"])
        assert (await use(gateway, "sessions_send", sessionKey=ended["target"], message="say hi"))[
            "reply"
        ] == "hi"


@pytest.mark.promise("archive.zero_means_never")
async def test_with_archiving_off_nothing_is_archived(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents(subagents={"archiveAfterMinutes": 0})) as gateway:
        ended = await spawn_and_wait(gateway, task="say done")
        await Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces).run_once(
            now_ms() + 10**9
        )
        assert (await gateway.store.read(sessions.get, ended["target"])).archived_at_ms is None


@pytest.mark.promise("report.wake")
async def test_wake_gives_the_requester_a_turn_with_the_report(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents(subagents={"onComplete": "wake"})) as gateway:
        ended = await spawn_and_wait(gateway, task="say done")
        answers = await texts(gateway, ANN, "assistant")
        assert answers[-1].startswith("[rehearsal] You said: Status: completed")
        assert ended["report"].startswith("Status: completed")


@pytest.mark.promise("more.yield_ends_the_turn")
async def test_whoever_yields_is_woken_by_the_report(tmp_path: Path) -> None:
    scripts = {
        ANN: [
            calls("sessions_spawn", task="Count."),
            calls("sessions_yield", message="I wait."),
            "Thank you.",
        ],
        "*": [calls("hold"), "counted", "Counted to 42."],
    }
    gate = Gate()
    async with rehearse(tmp_path, spawning_agents(scripts), tools=[gate.tool]) as gateway:
        turn = await say(gateway, "go", ANN)
        assert (turn.outcome, turn.reply) == ("ok", "I wait.")
        gate.open.set()
        [found] = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        await exchange_ended(gateway, found["id"])
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "assistant"))[-1] == "Thank you."


async def test_yielding_without_a_child_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_yield")
        assert answer["status"] == "error"
        assert "nothing would wake you" in answer["error"]


async def test_deleting_the_requester_ends_its_children(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": [{"text": "x", "delayMs": 600_000}]})) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Wait.")
        await gateway.store.write(gateway.effects.delete_session, ANN)
        assert (await gateway.sessions.wait(answer["runId"], LIMIT_S)).outcome == "cancelled"
        kept = await gateway.store.read(exchanges.get, answer["exchangeId"])
        assert (kept.state, kept.end_reason) == ("failed", "deleted")


@pytest.mark.promise("exchange.always_ends", "exchange.says_why_it_ended")
async def test_an_exchange_in_which_nothing_happens_expires_and_whoever_asked_is_told(tmp_path: Path) -> None:
    """As one that was open when an older version was replaced: it waits for no turn."""
    async with rehearse(tmp_path, spawning_agents({"*": [{"text": "x", "delayMs": 600_000}]})) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Wait.")
        sweeper = Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces)
        later = now_ms() + 80 * 3_600_000
        await sweeper.run_once(later)
        found = await gateway.sessions.queries.exchange(OWNER, answer["exchangeId"])
        assert found["state"] == "open"  # its turn is at work

        def forget_turn(tx: Tx) -> None:
            exchange = exchanges.get(tx, answer["exchangeId"])
            exchanges.save(tx, replace(exchange, turn_id=None))

        await gateway.store.write(forget_turn)
        await sweeper.run_once(later)
        found = await exchange_ended(gateway, answer["exchangeId"])
        assert (found["state"], found["end"]) == ("expired", "expired")
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "user"))[-1].startswith("Status: lost\n")


@pytest.mark.promise("agents.says_who_asks")
async def test_the_schema_of_a_spawn_lists_the_agents_this_caller_may_use(
    tmp_path: Path, model_requests: Any
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        await say(gateway, "hi", ANN)
        await say(gateway, "hi", BOB)
        listed = await use(gateway, "agents_list", ANN)
    for key, agents in ((ANN, ["ann", "bob"]), (BOB, ["bob"])):
        request = next(r for r in model_requests if r.session_key == key)
        spec = next(t for t in request.tools if t.name == "sessions_spawn")
        assert spec.parameters["properties"]["agentId"]["enum"] == agents
    assert [a["id"] for a in listed["agents"]] == ["ann", "bob"]
    assert (listed["requester"], listed["allowAny"]) == ("ann", False)


@pytest.mark.promise("spawn.refused_creates_nothing")
async def test_attachments_of_a_spawn_that_is_refused_after_they_were_written_are_removed(
    tmp_path: Path,
) -> None:
    """Two spawns at a time with room for one: both write their files, and only one child is created."""
    settings = spawning_agents({"*": ["done"]}, {"maxChildrenPerAgent": 1})
    settings["models"]["rehearsal"]["scripts"]["*"] = [{"text": "done", "delayMs": 60_000}]
    file = {"name": "a.txt", "content": "text"}
    async with rehearse(tmp_path, settings) as gateway:
        session = (await create_sessions(gateway, ANN))[0]
        spawns = [
            gateway.sessions.spawn(Cause(session, None, f"call-{number}"), SpawnRequest(task="work"), [file])
            for number in range(2)
        ]
        done = await asyncio.gather(*spawns, return_exceptions=True)
        (refused,) = [each for each in done if isinstance(each, NotAllowed)]
        (receipt,) = [each for each in done if isinstance(each, SpawnReceipt)]
        assert refused.rule == "spawn.children"
        folder = gateway.config.workspace("ann") / ".hobnob" / "attachments"
        assert [f".hobnob/attachments/{each.name}" for each in folder.iterdir()] == [
            (receipt.files or {})["relDir"]
        ]


async def test_a_spawn_that_was_planned_before_a_reload_is_checked_again(tmp_path: Path) -> None:
    """Attachments are written between plan and spawn, and the settings may change meanwhile."""
    settings = spawning_agents()
    async with rehearse(tmp_path, settings) as gateway:
        session = (await create_sessions(gateway, ANN))[0]
        cause, request = Cause(session, None, "call"), SpawnRequest(task="work", agent_id="bob")
        spawner = gateway.sessions._spawner
        plan = await gateway.store.read(spawner.plan, cause, request, attachments=True)
        settings["agents"]["list"][0]["subagents"] = {"allowAgents": []}
        gateway.config.reload(Config(Settings.model_validate(settings), tmp_path))
        with pytest.raises(NotAllowed, match="may not spawn"):
            await gateway.store.write(spawner.accept, cause, request, plan, None)
