"""Chats that begin anew: by rule when a person writes, and by a word."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import texts

from hobnob.policy import Operator
from hobnob.sessions import sending
from hobnob.store import entries, sessions
from hobnob.testing import rehearse, say
from hobnob.types import now_ms

MAIN = "agent:main:main"
IDLE = {"session": {"reset": {"mode": "idle", "idleMinutes": 30}}}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the clock that decides about resets."""

    def set_clock(minutes: int) -> None:
        monkeypatch.setattr(sending, "now_ms", lambda: now_ms() + minutes * 60_000)

    return set_clock


@pytest.mark.promise("life.reset_rules")
async def test_after_a_pause_a_message_begins_a_new_conversation(tmp_path: Path, later: Any) -> None:
    async with rehearse(tmp_path, IDLE) as gateway:
        old = await say(gateway, "say One.")
        later(29)
        assert (await say(gateway, "say Two.")).session_id == old.session_id
        later(31)
        new = await say(gateway, "say Three.")
        assert new.session_id != old.session_id
        assert await texts(gateway, MAIN, "user") == ["say Three."]
        kept = await gateway.store.read(entries.history, old.session_id)
        assert len(kept) == 4  # the old one stays readable by its id


@pytest.mark.promise("life.reset_rules")
async def test_what_no_person_wrote_neither_resets_nor_keeps_a_chat_alive(tmp_path: Path, later: Any) -> None:
    hook = {"kind": "hook", "hook": "ci"}
    async with rehearse(tmp_path, IDLE) as gateway:
        old = await say(gateway, "say One.")
        later(40)
        assert (await say(gateway, "say Ping.", provenance=hook)).session_id == old.session_id
        assert (await say(gateway, "say Two.")).session_id != old.session_id


@pytest.mark.promise("life.reset_triggers")
async def test_a_trigger_with_a_message_begins_a_conversation_with_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"session": {"resetTriggers": ["/new", "reboot"]}}) as gateway:
        old = await say(gateway, "say One.")
        turn = await say(gateway, "Reboot say Hello.")
        assert (turn.reply, turn.session_id != old.session_id) == ("Hello.", True)
        assert await texts(gateway, MAIN, "user") == ["say Hello."]
        alone = await say(gateway, "reboot")
        assert alone.reply is not None and alone.reply.startswith("A new conversation begins.")


async def test_a_trigger_with_a_model_chooses_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        old = await say(gateway, "say One.")
        turn = await say(gateway, "/new rehearsal/rehearsal")
        session = await gateway.store.read(sessions.get, MAIN)
        assert session.model_override == "rehearsal/rehearsal"
        assert turn.session_id != old.session_id and "The model is rehearsal/rehearsal" in (turn.reply or "")


async def test_a_credential_that_may_not_reset_cannot_use_a_trigger(tmp_path: Path) -> None:
    from hobnob.errors import NotAllowed

    async with rehearse(tmp_path) as gateway:
        await say(gateway, "say One.")
        with pytest.raises(NotAllowed):
            await gateway.sessions.send(Operator("w", ("operator.write",)), "main", "/new hello")
