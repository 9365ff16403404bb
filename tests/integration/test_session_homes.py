"""Sessions on gateways that share a database but no disk: where they run, what they wait for, moving them."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests import postgres, stores
from tests.channels.line import Line
from tests.integration.helpers import ANN, BOB, spawning_agents, three_agents, use
from tests.waiting import LIMIT_S, until

from hobnob.channels import NotNow
from hobnob.cli.connection import LocalGateway
from hobnob.errors import BadInput, Conflict, NotAllowed, RpcFailed
from hobnob.gateway import Gateway
from hobnob.inbound import Media
from hobnob.policy import Operator
from hobnob.store import deliveries, entries, sessions, turns
from hobnob.testing import OWNER, rehearse, say
from hobnob.tools import Context, Tool, tool
from hobnob.types import Session, Turn

pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(3 * LIMIT_S),
]


class Machines:
    """Gateways on one database, each with a state directory of its own."""

    def __init__(self, folder: Path, files: str = "local") -> None:
        self.folder = folder
        self.store = {"url": postgres.new_database(), "files": files}

    def open(
        self, name: str, settings: dict[str, Any] | None = None, **more: Any
    ) -> AbstractAsyncContextManager[Gateway]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        own = (settings or three_agents()) | {"store": self.store, "gateway": {"name": name}}
        return rehearse(home, own, **more)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


async def row_of(gateway: Gateway, key: str = ANN) -> dict[str, Any]:
    page = await LocalGateway(gateway).call("sessions.list", keysOnly=[key])
    [row] = page["sessions"]
    described = await LocalGateway(gateway).call("sessions.describe", key=key)
    assert described["session"].get("homeState") == row.get("homeState")
    return dict(row)


async def ended(gateway: Gateway, turn: Turn) -> Turn:
    return await gateway.sessions.wait(turn.turn_id, LIMIT_S)


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()

    def tool(self) -> Tool:
        @tool(group="runtime")
        async def pass_gate(context: Context) -> str:
            """Wait until the gate opens."""
            self.entered.set()
            await self.opened.wait()
            return "through"

        return pass_gate


@pytest.mark.promise("store.sessions_stay_with_their_files")
async def test_a_session_stays_where_it_ran_first_and_finds_its_files_from_every_gateway(
    machines: Machines,
) -> None:
    async with machines.open("one") as one, machines.open("two") as two:
        await use(one, "write", path="notes.txt", content="the milk")
        await use(two, "write", BOB, path="notes.txt", content="the bread")
        for gateway in (two, one):
            turn = await say(gateway, "call read " + '{"path": "notes.txt"}', ANN)
            assert turn.claimed_by == one.cluster.gateway_id
            turn = await say(gateway, "call read " + '{"path": "notes.txt"}', BOB)
            assert turn.claimed_by == two.cluster.gateway_id
        assert (await row_of(one))["home"] == (await row_of(two))["home"] == "one"
        assert (await row_of(one))["homeState"] == "here"
        assert (await row_of(two))["homeState"] == "elsewhere"
    assert [path.read_text() for path in machines.folder.glob("one/**/notes.txt")] == ["the milk"]
    assert [path.read_text() for path in machines.folder.glob("two/**/notes.txt")] == ["the bread"]


async def test_no_gateway_keeps_transcripts_as_files_on_a_disk_of_its_own(machines: Machines) -> None:
    """Of a session that is deleted, the others would keep the copies that they wrote."""
    async with machines.open("one") as one, machines.open("two") as two:
        await say(one, "say: hello", ANN)
        await until(lambda: "maintenance" in [*one.cluster.roles, *two.cluster.roles])
        assert "mirror" not in [*one.cluster.roles, *two.cluster.roles]
        assert "transcriptPath" not in await row_of(one)
    assert list(machines.folder.glob("*/**/*.jsonl")) == []


async def test_what_a_session_spawns_has_the_same_home(machines: Machines) -> None:
    settings = spawning_agents()
    async with machines.open("one", settings) as one, machines.open("two", settings):
        receipt = await use(one, "sessions_spawn", task="say: done", agentId="bob")
        child = await ended(one, await one.sessions.queries.turn(receipt["runId"]))
        assert child.claimed_by == one.cluster.gateway_id
        assert (await one.store.read(sessions.get, receipt["childSessionKey"])).home == "one"


@pytest.mark.promise("store.gone_home_said")
async def test_a_message_to_a_session_whose_home_is_gone_waits_for_it_and_says_so(machines: Machines) -> None:
    async with machines.open("two") as two:
        async with machines.open("one") as one:
            await say(one, "say: first", ANN)
        turn = await two.sessions.send(OWNER, ANN, "say: later")
        assert (await row_of(two))["homeState"] == "gone"
        client = LocalGateway(two)
        waited = await client.call("agent.wait", runId=turn.turn_id, timeoutMs=0)
        assert waited["status"] == "timeout"
        assert "on the gateway one, which does not run" in waited["reason"]
        assert f"hobnob sessions move {ANN} NAME" in waited["reason"]
        answers = client.answers("agent", message="say: last", sessionKey=ANN, idempotencyKey="k")
        assert (await anext(answers))["reason"] == waited["reason"]
        await answers.aclose()
        # It is not the only one that waits, and those of others do not wait behind it.
        assert (await say(two, "say: mine", BOB)).reply == "mine"
        assert (await two.sessions.queries.turn(turn.turn_id)).status == "queued"
        async with machines.open("one") as one:
            done = await ended(two, turn)
            assert (done.reply, done.claimed_by) == ("later", one.cluster.gateway_id)


@pytest.mark.promise("store.sessions_can_be_moved")
async def test_a_session_whose_home_is_gone_is_moved_and_its_waiting_messages_run_there(
    machines: Machines,
) -> None:
    async with machines.open("two") as two, machines.open("three") as three:
        async with machines.open("one") as one:
            await say(one, "say: first", ANN)
        turn = await two.sessions.send(OWNER, ANN, "say: later")
        moved = await LocalGateway(two).call("sessions.patch", key=ANN, home="three")
        assert (moved["home"], moved["previousHome"]) == ("three", "one")
        assert moved["filesAt"] == {"gateway": "one", "workspace": "$HOBNOB_HOME/agents/ann/workspace"}
        done = await ended(two, turn)
        assert (done.reply, done.claimed_by) == ("later", three.cluster.gateway_id)
        assert (await row_of(three))["homeState"] == "here"


async def test_a_session_that_is_moved_anywhere_stays_where_it_runs_next(machines: Machines) -> None:
    async with machines.open("two") as two:
        async with machines.open("one") as one:
            await say(one, "say: first", ANN)
        turn = await two.sessions.send(OWNER, ANN, "say: later")
        await LocalGateway(two).call("sessions.patch", key=ANN, home=None)
        assert (await ended(two, turn)).reply == "later"
        assert (await row_of(two))["home"] == "two"


async def test_what_a_session_spawned_moves_with_it(machines: Machines) -> None:
    settings = spawning_agents()
    async with machines.open("two", settings) as two:
        async with machines.open("one", settings) as one:
            receipt = await use(one, "sessions_spawn", task="say: done", agentId="bob")
            await ended(one, await one.sessions.queries.turn(receipt["runId"]))
            await until(lambda: not one.runner.busy)
        await two.sessions.move(OWNER, ANN, "two")
        assert (await two.store.read(sessions.get, receipt["childSessionKey"])).home == "two"


@pytest.mark.promise("store.gone_home_said")
async def test_a_message_to_a_session_whose_home_is_drained_waits_and_says_so(machines: Machines) -> None:
    async with machines.open("one") as one:
        await say(one, "say: first", ANN)
        async with machines.open("two") as two:
            await two.cluster.drain(one.cluster.gateway_id, on=True)
            await until(lambda: one.cluster.draining)
            turn = await two.sessions.send(OWNER, ANN, "say: later")
            assert (await row_of(two))["homeState"] == (await row_of(one))["homeState"] == "drained"
            why = await two.sessions.queries.why_waiting(turn)
            assert "which is drained" in str(why) and "nodes drain one --off" in str(why)
            await two.cluster.drain(one.cluster.gateway_id, on=False)
            assert (await ended(two, turn)).claimed_by == one.cluster.gateway_id


async def test_a_session_is_not_moved_while_a_turn_of_it_runs(machines: Machines) -> None:
    gate = Gate()
    async with machines.open("one", tools=[gate.tool()]) as one:
        await say(one, "say: first", ANN)  # its home is one
        async with machines.open("two") as two:
            turn = await one.sessions.send(OWNER, ANN, "call pass_gate {}")
            async with asyncio.timeout(LIMIT_S):
                await gate.entered.wait()
            with pytest.raises(Conflict, match=f"A turn of {ANN} runs"):
                await two.sessions.move(OWNER, ANN, "two")
            assert (await row_of(two))["home"] == "one"
            gate.opened.set()
            await ended(two, turn)
            before, after = await two.sessions.move(OWNER, ANN, "two")
            assert (before.home, after.home) == ("one", "two")


async def test_a_session_is_moved_only_to_a_gateway_that_runs_unless_forced(machines: Machines) -> None:
    async with machines.open("one") as one:
        await say(one, "say: first", ANN)
        with pytest.raises(BadInput, match="No gateway with the name 'tow' runs") as refusal:
            await one.sessions.move(OWNER, ANN, "tow")
        assert "Those that run: one." in str(refusal.value.fix)
        await one.sessions.move(OWNER, ANN, "two", force=True)
        turn = await one.sessions.send(OWNER, ANN, "say: later")
        async with machines.open("two") as two:
            assert (await ended(one, turn)).claimed_by == two.cluster.gateway_id


async def test_who_may_only_write_moves_no_session_and_a_home_is_changed_alone(machines: Machines) -> None:
    async with machines.open("one") as one:
        await say(one, "say: first", ANN)
        with pytest.raises(NotAllowed):
            await one.sessions.move(Operator(scopes=("operator.read", "operator.write")), ANN, None)
        with pytest.raises(RpcFailed, match="home is changed alone, without label"):
            await LocalGateway(one).call("sessions.patch", key=ANN, home=None, label="x")


async def test_where_gateways_share_their_files_sessions_have_no_home(tmp_path: Path) -> None:
    machines = Machines(tmp_path, files="shared")
    async with machines.open("one") as one, machines.open("two") as two:
        await say(one, "say: first", ANN)
        assert not {"home", "homeState"} & (await row_of(two)).keys()
        with pytest.raises(BadInput, match="Sessions have no home here"):
            await two.sessions.move(OWNER, ANN, "two")
    assert (await _stored(machines, ANN)).home is None


async def _stored(machines: Machines, key: str) -> Session:
    async with machines.open("one") as one:
        return await one.store.read(sessions.get, key)


async def test_homes_are_ignored_when_the_files_are_shared_from_now_on(machines: Machines) -> None:
    async with machines.open("one") as one:
        await say(one, "say: first", ANN)
    machines.store["files"] = "shared"
    async with machines.open("two") as two:
        assert (await say(two, "say: second", ANN)).reply == "second"


async def test_a_gateway_that_stops_lets_its_turns_end_because_no_other_has_their_files(
    machines: Machines,
) -> None:
    gate = Gate()
    async with machines.open("two") as two:
        async with machines.open("one", tools=[gate.tool()], grace_s=LIMIT_S) as one:
            turn = await one.sessions.send(OWNER, ANN, "call pass_gate {}")
            async with asyncio.timeout(LIMIT_S):
                await gate.entered.wait()
            await until(lambda: one.cluster.others)
            asyncio.get_running_loop().call_later(0.2, gate.opened.set)  # while it stops
        done = await ended(two, turn)
        assert (done.outcome, done.claim) == ("ok", 1)


async def test_two_gateways_of_one_name_are_warned_about(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    async with machines.open("one"):
        with caplog.at_level(logging.WARNING, "hobnob.gateway"):
            async with machines.open("two"):
                assert "is also named" not in caplog.text
            settings = three_agents() | {"store": machines.store, "gateway": {"name": "one"}}
            async with rehearse(machines.folder, settings):
                assert "another gateway of this database is also named one" in caplog.text


async def test_turns_of_other_homes_do_not_hide_those_that_can_run(machines: Machines) -> None:
    async with machines.open("one") as one:
        for number in range(70):  # more than a gateway looks at
            session = await one.sessions.create(OWNER, f"hook:{number}")
            await one.sessions.move(OWNER, session.key, "away", force=True)
            await one.sessions.send(OWNER, session.key, "say: hidden")
        found = await one.store.read(turns.to_run, limit=64, home="one")
        assert found == []
        assert len(await one.store.read(turns.to_run, limit=64, home="away")) == 64
        assert (await say(one, "say: seen", ANN)).reply == "seen"


# -- files of chats


MAIN = "agent:main:main"


async def notes_of(gateway: Gateway, key: str = MAIN) -> list[str]:
    """What the agent is told about the files of the last message of a person."""
    session = await gateway.store.read(sessions.get, key)
    kept = await gateway.store.read(entries.history, session.session_id, limit=50)
    found: list[str] = [e.message for e in kept if e.role == "user"][-1]["provenance"]["notes"]
    return found


async def test_a_file_from_a_chat_makes_the_gateway_that_stored_it_the_home(machines: Machines) -> None:
    line = Line()
    line.files = {"a": b"some text"}
    media = (Media(ref="a", name="notes.txt"),)
    async with machines.open("two", line.settings()) as two, machines.open("one", line.settings()):
        await line.say("say hello", media=media)
        await line.posts()
        assert all("in your workspace" in note for note in await notes_of(two))
        assert (await row_of(two, MAIN))["home"] == "two"


async def test_an_agent_is_told_of_a_file_that_reached_another_gateway(machines: Machines) -> None:
    line = Line()
    line.files = {"a": b"some text"}
    media = (Media(ref="a", name="notes.txt"),)
    async with machines.open("two", line.settings()), machines.open("one", line.settings()) as one:
        await say(one, "say: first", MAIN)
        await line.say("say hello", media=media)
        await line.posts()
        assert await notes_of(one) == ["media unavailable: your workspace is on the gateway one"]
        assert not list(machines.folder.glob("*/agents/main/workspace/**/notes.txt"))


@pytest.mark.parametrize("has_file", [True, False])
async def test_a_file_is_sent_by_another_gateway_only_if_it_has_the_copy(
    machines: Machines, has_file: bool
) -> None:
    may_send = asyncio.Event()
    line = Line(media_out=True, trouble=lambda _: None if may_send.is_set() else NotNow("soon", 0.1))
    async with machines.open("two", line.settings()) as two, machines.open("one", line.settings()) as one:
        await use(one, "write", MAIN, path="plan.txt", content="the plan")
        await line.say("say hello")
        answer = await use(one, "message", MAIN, message="Here it is.", files=["plan.txt"])
        away = machines.folder / "two" if has_file else machines.folder
        (machines.folder / "one" / "outgoing").rename(away / "outgoing")  # as if it were on another machine
        may_send.set()
        if has_file:
            await line.until(lambda: any(part.file for part in line.sent))
            (file,) = (part.file for part in line.sent if part.file)
            assert file.path.read_text() == "the plan"
            return
        async with asyncio.timeout(LIMIT_S):
            while (found := await two.store.read(deliveries.find, answer["deliveryId"])).state != "failed":
                await asyncio.sleep(0.05)
        assert "plan.txt is not on the gateway that sends to this chat" in str(found.error)
