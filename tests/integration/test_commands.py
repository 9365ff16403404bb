"""What an owner tells a session instead of its agent."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import ANN, BOB, Gate, three_agents, use
from tests.waiting import LIMIT_S

from hobnob.errors import BadInput, NotAllowed, NotFound
from hobnob.policy import Operator
from hobnob.sessions import InboundMessage, slash_commands
from hobnob.store import sessions
from hobnob.testing import OWNER, calls, rehearse, say, script
from hobnob.types import text_of

WRITER = Operator("writer", ("operator.write",))


@pytest.mark.promise("send_policy.set_by_slash_command")
async def test_an_owner_turns_sending_off_and_on_with_a_message(tmp_path: Path, model_requests: Any) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        turn = await say(gateway, " /send off ", BOB)
        assert "now takes no messages" in str(turn.reply)
        refused = await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="hi")
        assert refused["code"] == "send_policy.denied"
        with pytest.raises(NotAllowed):
            await say(gateway, "hi", BOB)
        for word, policy in (("ON", "allow"), ("inherit", None)):
            await say(gateway, f"/send {word}", BOB)
            assert (await gateway.store.read(sessions.get, BOB)).send_policy == policy
        assert (await say(gateway, "say: hi", BOB)).reply == "hi"
    assert not [r for r in model_requests if r.session_key == BOB and "/send" in str(r.messages[-1])]


@pytest.mark.promise("send_policy.slash_command_only_for_owners")
async def test_from_anybody_else_the_command_changes_nothing(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        with pytest.raises(NotAllowed, match=r"operator\.admin"):
            await gateway.sessions.send(WRITER, BOB, "/send off")
        turn = await gateway.sessions.send(OWNER, BOB, InboundMessage("/send off", plain=True))
        assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).reply == "[rehearsal] You said: /send off"
        await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="/send off")
        assert (await gateway.store.read(sessions.get, BOB)).send_policy is None


@pytest.mark.promise("send_policy.slash_command_stands_alone")
@pytest.mark.parametrize(
    "text", ["please /send off", "/send off now", "/send", "/send maybe", "/send\noff off"]
)
async def test_within_other_text_the_command_changes_nothing(tmp_path: Path, text: str) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        assert (await say(gateway, text, BOB)).reply == f"[rehearsal] You said: {text}"
        assert (await gateway.store.read(sessions.get, BOB)).send_policy is None


@pytest.mark.parametrize("word", ["new", "reset"])
async def test_a_new_conversation_begins_and_the_old_one_stays_readable(tmp_path: Path, word: str) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: before", BOB)
        old = (await gateway.store.read(sessions.get, BOB)).session_id
        turn = await say(gateway, f"/{word}", BOB)
        assert old in str(turn.reply)
        now = await gateway.sessions.queries.history(OWNER, BOB)
        assert [text_of(m) for m in now["messages"]] == [f"/{word}", turn.reply]
        before = await gateway.sessions.queries.history(OWNER, old)
        assert "before" in [text_of(m) for m in before["messages"]]


async def test_stop_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    gate = Gate()
    slow = script(calls("hold"), "never said", session=BOB)
    async with rehearse(tmp_path, three_agents() | slow, tools=[gate.tool]) as gateway:
        running = await gateway.sessions.send(OWNER, BOB, "go")
        await gate.reached.wait()
        waiting = await gateway.sessions.send(OWNER, BOB, "and then")
        told = await say(gateway, "/stop", BOB)
        assert told.reply == "Stopped: 2 turns."
        for turn in (running, waiting):
            assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).outcome == "cancelled"
        assert (await say(gateway, "/stop", BOB)).reply == "Nothing was running."


async def test_the_model_the_thinking_level_and_verbosity_are_shown_and_chosen(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        assert "The model is rehearsal/rehearsal" in str((await say(gateway, "/model", BOB)).reply)
        assert "from now on" in str((await say(gateway, "/model rehearsal/rehearsal", BOB)).reply)
        assert (await say(gateway, "/think HIGH", BOB)).reply == "The thinking level is high from now on."
        assert "verbose full" not in str((await say(gateway, "/status", BOB)).reply)
        await say(gateway, "/verbose full", BOB)
        status = str((await say(gateway, "/status", BOB)).reply)
        assert "thinking high, verbose full" in status
        session = await gateway.store.read(sessions.get, BOB)
        assert (session.thinking_level, session.verbose_level) == ("high", "full")
        for word in ("/model default", "/think default", "/verbose default"):
            await say(gateway, word, BOB)
        session = await gateway.store.read(sessions.get, BOB)
        assert (session.model_override, session.thinking_level, session.verbose_level) == (None, None, None)


@pytest.mark.parametrize("text", ["/model no/such", "/think hard", "/verbose loud"])
async def test_a_command_with_a_wrong_word_is_refused_and_changes_nothing(tmp_path: Path, text: str) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: hi", BOB)
        before = await gateway.store.read(sessions.get, BOB)
        with pytest.raises(BadInput):
            await say(gateway, text, BOB)
        assert await gateway.store.read(sessions.get, BOB) == before


@pytest.mark.parametrize("text", ["/nope", "/status now", "/etc/passwd", "/", "/help\n/stop", "see /help"])
async def test_what_is_no_command_is_text(tmp_path: Path, text: str) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        assert (await say(gateway, text, BOB)).reply == f"[rehearsal] You said: {text}"


@pytest.mark.promise("policy.decides_slash_commands")
@pytest.mark.parametrize(
    ("scopes", "obeyed"),
    [
        (("operator.read",), set[str]()),
        (("operator.write",), {"status", "stop", "help"}),
        (("operator.admin",), set(slash_commands.COMMANDS) - {"allow", "deny"}),
    ],
)
async def test_each_command_needs_what_it_does(tmp_path: Path, scopes: Any, obeyed: set[str]) -> None:
    words = {"send": "/send on", "allow": "/allow 0123456", "deny": "/deny 0123456"}
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: hi", BOB)
        for name in slash_commands.COMMANDS:
            sent = gateway.sessions.send(Operator("x", scopes), BOB, words.get(name, f"/{name}"))
            if name in obeyed:
                assert (await gateway.sessions.wait((await sent).turn_id, LIMIT_S)).outcome == "ok"
            else:
                missing = (
                    NotFound if scopes == ("operator.admin",) else NotAllowed
                )  # there is no such question
                with pytest.raises(missing):
                    await sent


async def test_a_command_that_is_sent_again_under_its_key_is_obeyed_once(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        first = await gateway.sessions.send(OWNER, BOB, InboundMessage("/new", idempotency_key="k"))
        made = (await gateway.store.read(sessions.get, BOB)).session_id
        again = await gateway.sessions.send(OWNER, BOB, InboundMessage("/new", idempotency_key="k"))
        assert again.turn_id == first.turn_id
        assert (await gateway.store.read(sessions.get, BOB)).session_id == made
