"""What an owner tells a session instead of its agent."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.team import ANN, BOB, team, use

from hobnob.errors import NotAllowed
from hobnob.policy import Operator
from hobnob.store import sessions
from hobnob.testing import rehearse, say

WRITER = Operator("writer", ("operator.write",))


@pytest.mark.promise("send_policy.set_by_slash_command")
async def test_an_owner_turns_sending_off_and_on_with_a_message(tmp_path: Path, heard: Any) -> None:
    async with rehearse(tmp_path, team()) as gateway:
        turn = await say(gateway, " /send off ", BOB)
        assert "takes no messages now" in str(turn.reply)
        refused = await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="hi")
        assert refused["code"] == "send_policy.denied"
        with pytest.raises(NotAllowed):
            await say(gateway, "hi", BOB)
        for word, policy in (("ON", "allow"), ("inherit", None)):
            await say(gateway, f"/send {word}", BOB)
            assert (await gateway.store.read(sessions.get, BOB)).send_policy == policy
        assert (await say(gateway, "say: hi", BOB)).reply == "hi"
    assert not [r for r in heard if r.session_key == BOB and "/send" in str(r.messages[-1])]


@pytest.mark.promise("send_policy.slash_command_only_for_owners")
async def test_from_anybody_else_the_command_changes_nothing(tmp_path: Path) -> None:
    async with rehearse(tmp_path, team()) as gateway:
        turn = await gateway.sessions.send(WRITER, BOB, "/send off")
        assert (await gateway.sessions.wait(turn.turn_id, 5)).reply == "[rehearsal] You said: /send off"
        await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="/send off")
        assert (await gateway.store.read(sessions.get, BOB)).send_policy is None


@pytest.mark.promise("send_policy.slash_command_stands_alone")
@pytest.mark.parametrize(
    "text", ["please /send off", "/send off now", "/send", "/send maybe", "/send\noff off"]
)
async def test_within_other_text_the_command_changes_nothing(tmp_path: Path, text: str) -> None:
    async with rehearse(tmp_path, team()) as gateway:
        assert (await say(gateway, text, BOB)).reply == f"[rehearsal] You said: {text}"
        assert (await gateway.store.read(sessions.get, BOB)).send_policy is None
