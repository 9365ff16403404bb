"""One agent tells another something for a Telegram group, and `hobnob serve` is killed on the way.

Somebody writes to Ann directly. Ann calls `sessions_send` for Bob's session in the room. Bob answers, and
then announces the result in the room. The gateway that is started afterwards has to finish what was begun.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.channels.fake_telegram import FORUM
from tests.channels.gateways import deliveries_in, gateway_process, settings_for, settled
from tests.channels.telegram_platform import TelegramPlatform
from tests.integration.helpers import ANN, three_agents

from hobnob.testing import OWNER, calls, exchange_ended, rehearse

# Visits of crash points on the way. There are three turns: Ann's, Bob's, and the one in which Bob announces.
# Left out are visits that find the same rows as another, such as `before-model` after `after-claim`. Not on
# the way are `after-accept` (a question from a chat comes through the inbox instead) and `after-spawn`.
BEFORE_THE_ANNOUNCEMENT = (
    "before-inbox",
    "after-inbox",
    "after-claim:1",
    "after-claim:2",
    "after-claim:3",
    "after-step",
    "before-tool",
    "after-tell",
    "after-end:1",
)
DURING_THE_ANNOUNCEMENT = (
    "after-tool",
    "after-tool-result",
    "before-model:4",
    "after-model:4",
    "before-end:2",
    "before-end:3",
    "after-end:2",
    "after-end:3",
    "before-delivery:1",
    "before-delivery:2",
    "after-delivery:1",
    "after-delivery:2",
)
BOB_IN_ROOM = f"agent:bob:telegram:group:{FORUM}:topic:1"
ANSWER, ANNOUNCEMENT = "Bob says 42.", "Ann asked, and it is 42."
SCRIPTS: dict[str, Any] = {
    ANN: [calls("sessions_send", sessionKey=BOB_IN_ROOM, message="What is it?"), ANSWER],
    BOB_IN_ROOM: ["Bob is here.", "It is 42.", ANNOUNCEMENT],
}


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramPlatform]:
    platform = TelegramPlatform()
    await platform.start()
    yield platform
    await platform.stop()


def settings_of(telegram: TelegramPlatform) -> dict[str, Any]:
    """Ann answers direct messages, Bob answers in the room. Ann does not ask back."""
    room = {"channel": "telegram", "peer": {"kind": "group", "id": telegram.room_id()}}
    return settings_for(telegram) | three_agents(
        SCRIPTS,
        bindings=[{"agentId": "bob", "match": room}],
        session={"agentToAgent": {"maxPingPongTurns": 0}},
    )


async def _greet(telegram: TelegramPlatform) -> None:
    await telegram.say("hello", sender="bob", room=True, mention=True)


async def _begin(home: Path) -> None:
    telegram = TelegramPlatform()
    await telegram.start()
    async with rehearse(home, settings_of(telegram)):
        await _greet(telegram)
        assert await settled(home, 1) == ["delivered"]
    await telegram.stop()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a gateway after Bob was greeted in the room."""
    home = tmp_path_factory.mktemp("begun")
    asyncio.run(_begin(home))
    return home


@pytest.mark.promise("channels.announced_once_after_a_kill")
@pytest.mark.parametrize("kill", BEFORE_THE_ANNOUNCEMENT + DURING_THE_ANNOUNCEMENT)
async def test_an_announcement_in_a_group_survives_a_kill(
    telegram: TelegramPlatform, begun: Path, tmp_path: Path, kill: str
) -> None:
    home = shutil.copytree(begun, tmp_path / "home")
    settings = settings_of(telegram)
    await _greet(telegram)  # the numbers of updates go on from there
    await telegram.say("ask Bob")  # Telegram keeps it until the gateway is there
    async with gateway_process(home, settings, kill) as process:
        await process.killed()
    async with rehearse(home, settings) as gateway:
        await settled(home, 3)
        page = await gateway.sessions.queries.exchanges(OWNER)
        [exchange] = page["exchanges"]
        ended = await exchange_ended(gateway, exchange["id"])
    states = dict(deliveries_in(home, "recipient, state")[1:])
    assert states.keys() == {telegram.user_id("ann"), telegram.room_id()}
    assert (ended["state"], ended["end"]) == ("done", states[telegram.room_id()])
    if kill in BEFORE_THE_ANNOUNCEMENT:
        assert ended["end"] == "delivered"
    expected = {telegram.user_id("ann"): ANSWER, telegram.room_id(): ANNOUNCEMENT}
    posts = Counter((str(sent.chat_id), sent.text) for sent in telegram.fake.sent)
    assert posts.keys() <= expected.items(), "something was posted elsewhere"
    for chat, text in expected.items():
        allowed = {"delivered": (1,), "ambiguous": (0, 1)}[states[chat]]
        assert posts[chat, text] in allowed
