"""What a child is: its name, its model, its limits, what it sees, and how it is put away."""

from pathlib import Path
from typing import Any

import pytest
from tests.channels.line import Line
from tests.integration.helpers import (
    ANN,
    BOB,
    Gate,
    create_sessions,
    spawn_and_wait,
    spawning_agents,
    texts,
    use,
    wait_until_idle,
)
from tests.integration.sandboxed import needs_sandbox
from tests.waiting import LIMIT_S

from hobnob import policy
from hobnob.channels import NotNow
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.maintenance import Maintenance
from hobnob.requests import SearchQuery
from hobnob.store import Tx, deliveries, entries, exchanges, sessions, turns
from hobnob.store.costs import usage as usage_rows
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.tools import Context, tool
from hobnob.types import Session, Usage, now_ms

HELD = {"*": [calls("hold"), "done", "ok"]}


async def sweep(gateway: Gateway, at_ms: int | None = None) -> None:
    await Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces).run_once(at_ms)


@pytest.mark.promise("spawn.needs_a_task")
async def test_a_spawn_without_a_task_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", label="x")
        assert answer["status"] == "error"
        assert "task is required" in answer["error"]


@pytest.mark.promise("spawn.never_blocks", "spawn.child_key")
async def test_a_spawn_answers_while_the_child_is_still_at_work(tmp_path: Path) -> None:
    gate = Gate()
    async with rehearse(tmp_path, spawning_agents(HELD), tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Wait.")
        assert answer["status"] == "accepted"
        agent, word, child_id = answer["childSessionKey"].split(":")[1:]
        assert (agent, word, len(child_id)) == ("ann", "subagent", 36)
        turn = await gateway.store.read(turns.get, answer["runId"])
        assert (turn.session_key, turn.status != "ended") == (answer["childSessionKey"], True)
        gate.open.set()
        await exchange_ended(gateway, answer["exchangeId"])


@pytest.mark.promise("spawn.label")
async def test_a_label_names_the_child(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say done", label=" counter ")
        listed = await use(gateway, "sessions_list", label="counter")
        assert [(row["key"], row["label"]) for row in listed["sessions"]] == [(ended["target"], "counter")]


@pytest.mark.promise("spawn.model")
async def test_the_model_that_was_asked_for_is_the_one_that_is_called(tmp_path: Path) -> None:
    """There is no key for it, so that the turn fails and says which model it was."""
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", task="say done", model="anthropic/claude")
        assert answer["model"] == "anthropic/claude"
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert ended["outcome"] == "failed"
        assert "ANTHROPIC_API_KEY" in ended["steps"][0]["error"]


@pytest.mark.promise("spawn.thinking", "spawn.receipt_tells_what_runs")
@pytest.mark.parametrize(("asked", "runs"), [({}, "low"), ({"thinking": " HIGH "}, "high")])
async def test_the_answer_tells_what_the_child_then_runs_with(
    tmp_path: Path, model_requests: Any, asked: dict[str, str], runs: str
) -> None:
    @tool()
    async def shout(context: Context) -> str:
        """Shout."""
        return "HEY"

    settings = spawning_agents(subagents={"thinking": "low", "runTimeoutSeconds": 77})
    async with rehearse(tmp_path, settings, tools=[shout]) as gateway:
        answer = await use(gateway, "sessions_spawn", task="say done", **asked)
        await exchange_ended(gateway, answer["exchangeId"])
        turn = await gateway.store.read(turns.get, answer["runId"])
    first = next(r for r in model_requests if r.session_key == answer["childSessionKey"])
    assert answer["thinking"] == first.thinking == runs
    assert answer["tools"] == sorted(t.name for t in first.tools)
    assert "shout" in answer["tools"]
    assert answer["runTimeoutSeconds"] == turn.timeout_s == 77
    assert (answer["model"], answer["sandbox"]) == ("rehearsal/rehearsal", False)


@pytest.mark.promise("spawn.children_limit_default", "spawn.ended_children_do_not_count")
async def test_without_a_setting_five_children_can_be_at_work_and_ended_ones_do_not_count(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with rehearse(tmp_path, spawning_agents(HELD), tools=[gate.tool]) as gateway:
        answers = [await use(gateway, "sessions_spawn", task=f"Wait {n}.") for n in range(5)]
        assert {answer["status"] for answer in answers} == {"accepted"}
        refused = await use(gateway, "sessions_spawn", task="Wait.")
        assert refused["code"] == "spawn.children"
        gate.open.set()
        for answer in answers:
            await exchange_ended(gateway, answer["exchangeId"])
        assert (await use(gateway, "sessions_spawn", task="Go."))["status"] == "accepted"


@pytest.mark.promise("spawn.child_is_isolated")
async def test_a_child_sees_its_task_and_nothing_its_requester_said_or_heard(
    tmp_path: Path, model_requests: Any
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        await say(gateway, "remember: the zebra is ours", ANN)
        ended = await spawn_and_wait(gateway, task="say done")
        first = next(r for r in model_requests if r.session_key == ended["target"])
        assert len(first.messages) == 1
        assert "zebra" not in str(first)
        ann, child = [await gateway.store.read(sessions.get, key) for key in (ANN, ended["target"])]
        assert ann.session_id != child.session_id
        kept = await gateway.store.read(entries.history, ann.session_id)
        assert not [e for e in kept if e.turn_id == ended["steps"][0]["runId"]]


@pytest.mark.promise("spawn.child_is_silent")
async def test_of_a_child_only_the_report_is_delivered(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": ["I counted aloud.", "Counted."]})) as gateway:
        await say(gateway, "hi", ANN)
        ended = await spawn_and_wait(gateway, task="Count.")
        assert (await gateway.sessions.queries.deliveries(OWNER, ended["target"]))[1] == []
        [posted] = (await gateway.sessions.queries.deliveries(OWNER, ANN))[1]
        assert posted.text.startswith("Status: completed\nResult: Counted.")


@pytest.mark.promise("spawn.no_timeout_by_default")
@pytest.mark.parametrize("asked", [{}, {"runTimeoutSeconds": 0}])
async def test_without_a_time_limit_a_child_has_none(tmp_path: Path, asked: dict[str, int]) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", task="say done", **asked)
        assert answer["runTimeoutSeconds"] == 0
        assert (await gateway.store.read(turns.get, answer["runId"])).timeout_s is None


@pytest.mark.promise("spawn.session_mode_needs_a_thread")
@pytest.mark.parametrize(
    ("mode", "status"), [({}, "accepted"), ({"mode": "run"}, "accepted"), ({"mode": "session"}, "error")]
)
async def test_a_lasting_session_needs_a_thread_and_a_run_does_not(
    tmp_path: Path, mode: dict[str, str], status: str
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", task="say done", **mode)
        assert answer["status"] == status
        if status == "error":
            assert "thread" in answer["error"]


@needs_sandbox
@pytest.mark.promise("spawn.sandbox_is_inherited")
async def test_the_child_of_a_sandboxed_session_stays_in_a_sandbox_whatever_its_agent_is_set_to(
    tmp_path: Path,
) -> None:
    settings = spawning_agents()
    ann, bob, _ = settings["agents"]["list"]
    ann["sandbox"], bob["sandbox"] = {"mode": "all"}, {"mode": "non-main"}
    async with rehearse(tmp_path, settings) as gateway:
        answer = await use(gateway, "sessions_spawn", task="say done", agentId="bob")
        assert (answer["status"], answer["sandbox"]) == ("accepted", True)
        await exchange_ended(gateway, answer["exchangeId"])
    bob["sandbox"] = {"mode": "off"}
    async with rehearse(tmp_path, settings) as gateway:
        child = await gateway.store.read(sessions.get, answer["childSessionKey"])
        assert policy.is_sandboxed(gateway.config.settings, child)


@pytest.mark.promise("attachments.written", "attachments.where", "attachments.private", "attachments.receipt")
async def test_files_of_a_spawn_lie_in_a_private_folder_of_the_childs_workspace(tmp_path: Path) -> None:
    gate = Gate()
    files = [
        {"name": "note.txt", "content": "grüß dich"},
        {"name": "data.bin", "content": "AAH/", "encoding": "base64"},
    ]
    async with rehearse(tmp_path, spawning_agents(HELD), tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Read.", agentId="bob", attachments=files)
        await gate.reached.wait()
        receipt = answer["attachments"]
        folder = gateway.config.workspace("bob") / receipt["relDir"]
        assert folder.parent == gateway.config.workspace("bob") / ".hobnob" / "attachments"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
        assert (folder / "note.txt").read_text() == "grüß dich"
        assert (folder / "data.bin").read_bytes() == b"\x00\x01\xff"
        assert [(f["name"], len(f["sha256"])) for f in receipt["files"]] == [
            ("note.txt", 64),
            ("data.bin", 64),
        ]
        gate.open.set()
        await exchange_ended(gateway, answer["exchangeId"])


@pytest.mark.promise("attachments.limits_are_settings", "spawn.refused_creates_nothing")
async def test_a_spawn_with_too_many_files_is_refused_by_the_setting_and_makes_nothing(
    tmp_path: Path,
) -> None:
    settings = spawning_agents()
    settings["tools"]["sessions_spawn"] = {"attachments": {"maxFiles": 1}}
    files = [{"name": str(n), "content": "x"} for n in range(2)]
    async with rehearse(tmp_path, settings) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Read.", attachments=files)
        assert (answer["status"], answer["code"]) == ("forbidden", "attachments.files")
        assert not (gateway.config.workspace("ann") / ".hobnob").exists()
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 0


# -- the report


@pytest.mark.promise("report.turn_in_the_child")
async def test_the_report_is_written_in_one_turn_of_the_child(tmp_path: Path, model_requests: Any) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": ["I counted to 42.", "Forty-two."]})) as gateway:
        ended = await spawn_and_wait(gateway, task="Count.")
        assert [(s["step"], s["sessionKey"]) for s in ended["steps"]] == [
            ("primary", ended["target"]),
            ("announce", ended["target"]),
        ]
        assert ended["report"].startswith("Status: completed\nResult: Forty-two.\n")
    announcing = [r for r in model_requests if r.session_key == ended["target"]][-1]
    assert "Sub-agent announce step." in announcing.system
    assert "I counted to 42." in announcing.system


@pytest.mark.promise("report.post_by_default")
async def test_by_default_nobody_is_asked_about_a_report(tmp_path: Path, model_requests: Any) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say done")
        asked = [r for r in model_requests if r.session_key == ANN]
        assert not [r for r in asked if "Status: completed" in str(r.messages[-1])]
        assert (await texts(gateway, ANN, "user"))[-1] == ended["report"]


@pytest.mark.promise("report.cost_when_known")
@pytest.mark.parametrize(("cost", "shown"), [(0.0, None), (0.25, "cost $0.2500")])
async def test_the_report_gives_the_cost_when_it_is_known(
    tmp_path: Path, cost: float, shown: str | None
) -> None:
    books: list[Any] = []

    @tool()
    async def pay(context: Context) -> str:
        """Book a call of a model that costs something."""
        session = context.session
        usage = Usage(
            day=usage_rows.today(),
            agent_id=session.agent_id,
            session_key=session.key,
            model="m/m",
            cost_usd=cost,
        )
        await books[0].write(usage_rows.add, usage)
        return "paid"

    async with rehearse(
        tmp_path, spawning_agents({"*": [calls("pay"), "done", "Done."]}), tools=[pay]
    ) as gateway:
        books.append(gateway.store)
        ended = await spawn_and_wait(gateway, task="Pay.")
        stats = ended["report"].splitlines()[-1]
        assert stats.startswith("Stats: runtime")
        assert ("cost $" in stats) == (shown is not None)
        assert shown is None or shown in stats


# -- putting away


@pytest.mark.promise("archive.delete")
async def test_a_child_to_be_deleted_stays_until_its_report_was_handed_over(tmp_path: Path) -> None:
    """The requester's chat is on a channel that takes nothing at the moment, so that the report waits."""
    group = "agent:ann:line:group:ops"
    line = Line(trouble=lambda _: NotNow("busy", 3600))
    async with rehearse(
        tmp_path, spawning_agents({group: []}) | line.settings(groups={"ops": {}})
    ) as gateway:
        await line.say("say hi", room="ops", mentioned=True)
        answer = await use(gateway, "sessions_spawn", group, task="say done", cleanup="delete")
        for turn_id in (answer["runId"], *[t.turn_id for t in await announcing(gateway, answer)]):
            await gateway.sessions.wait(turn_id, LIMIT_S)
        found = await gateway.sessions.queries.exchange(OWNER, answer["exchangeId"])
        assert (found["state"], found["phase"], found["delivery"]["state"]) == ("open", "delivery", "pending")
        await sweep(gateway)
        assert await gateway.store.read(sessions.find, answer["childSessionKey"]) is not None

        def hand_over(tx: Tx) -> None:
            (report,) = deliveries.of_exchange(tx, answer["exchangeId"])
            gateway.effects.settle_delivery(tx, deliveries.claim(tx, report), state="delivered")

        await gateway.store.write(hand_over)
        await sweep(gateway)
        assert await gateway.store.read(sessions.find, answer["childSessionKey"]) is None


async def announcing(gateway: Gateway, answer: dict[str, Any]) -> list[Any]:
    await gateway.sessions.wait(answer["runId"], LIMIT_S)
    return await gateway.store.read(exchanges.turns, answer["exchangeId"])


@pytest.mark.promise("archive.keep_is_the_default")
async def test_a_child_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say done")
        await sweep(gateway, now_ms() + 10**9)
        assert await gateway.store.read(sessions.find, ended["target"]) is not None
        read = await use(gateway, "sessions_history", sessionKey=ended["target"])
        assert read["messages"][0]["content"] == "say done"


@pytest.mark.promise("archive.hidden")
async def test_search_leaves_archived_children_out(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say zebra")
        found = await gateway.sessions.queries.search(
            OWNER, SearchQuery(query="zebra", session_key=ended["target"])
        )
        assert found["count"] > 0
        await gateway.sessions.archive(OWNER, ended["target"])
        assert (
            await gateway.sessions.queries.search(
                OWNER, SearchQuery(query="zebra", session_key=ended["target"])
            )
        )["count"] == 0


# -- subagents


@pytest.mark.promise("more.subagents_lists")
async def test_subagents_lists_the_callers_own_children_and_no_others(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        mine = await spawn_and_wait(gateway, task="say done", label="mine")
        await spawn_and_wait(gateway, BOB, task="say done", label="theirs")
        listed = await use(gateway, "subagents")
        assert (listed["total"], listed["active"]) == (1, [])
        [child] = listed["recent"]
        assert (child["childSessionKey"], child["label"], child["status"]) == (
            mine["target"],
            "mine",
            "completed",
        )


@pytest.mark.promise("more.subagents_cancels", "more.only_its_own_tree")
@pytest.mark.parametrize("name", ["childSessionKey", "runId", "label", "last"])
async def test_a_child_is_cancelled_by_any_of_its_names_and_only_by_its_own_requester(
    tmp_path: Path, name: str
) -> None:
    gate = Gate()
    async with rehearse(tmp_path, spawning_agents(HELD), tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Wait.", label="counter")
        await gate.reached.wait()
        target = {"label": "counter", "last": "last"}.get(name) or answer[name]
        other = await use(gateway, "subagents", BOB, action="cancel", target=target)
        assert other["status"] == "error"
        stopped = await use(gateway, "subagents", action="cancel", target=target)
        assert stopped["runIds"] == [answer["runId"]]
        assert (await gateway.sessions.wait(answer["runId"], LIMIT_S)).outcome == "cancelled"
        await exchange_ended(gateway, answer["exchangeId"])
        await wait_until_idle(gateway, ANN)


@pytest.mark.promise("more.subagents_cancels")
async def test_cancelling_a_child_ends_what_it_spawned_itself(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {"*": [calls("hold"), "done"]}
    async with rehearse(
        tmp_path, spawning_agents(scripts, {"maxSpawnDepth": 2}), tools=[gate.tool]
    ) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Wait.")
        await gate.reached.wait()
        child = await gateway.store.read(sessions.get, answer["childSessionKey"])
        grandchild = Session.of(parse("agent:ann:subagent:g"), spawned_by=child)
        await gateway.store.write(sessions.create, grandchild)
        deeper = await gateway.sessions.send(OWNER, grandchild.key, "go")
        stopped = await use(gateway, "subagents", action="cancel", target="all")
        assert sorted(stopped["runIds"]) == sorted([answer["runId"], deeper.turn_id])
        assert (await gateway.sessions.wait(deeper.turn_id, LIMIT_S)).outcome == "cancelled"


@pytest.mark.promise("more.search_gives_snippets", "more.search_is_bounded")
async def test_a_search_gives_short_pieces_and_not_too_many_of_them(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:ann:hook:1")
        long = "word " * 2_000 + "zebra" + " word" * 2_000

        def fill(tx: Tx) -> None:
            for _ in range(40):
                entries.append(tx, hook.session_id, {"role": "user", "content": long})

        await gateway.store.write(fill)
        answer = await use(gateway, "sessions_search", query="zebra", sessionKey="hook:1", limit=999)
        assert (answer["count"], answer["truncated"]) == (25, True)
        assert all("zebra" in row["snippet"] and len(row["snippet"]) <= 300 for row in answer["results"])
