"""Many messages and many sessions, put straight into the store."""

import asyncio

from tests.browser.house import Visit

from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.store import Tx, entries, sessions
from hobnob.types import Session

AT_ONCE = 5_000
_TO_THE_END = """async ([last, most_ms]) => {
    const box = document.querySelector('.rows');
    const foot = document.querySelector('.list-foot');
    const end = performance.now() + most_ms;
    while (foot.textContent !== last && performance.now() < end) {
        box.scrollTop = box.scrollHeight;
        await new Promise(requestAnimationFrame);
    }
    box.scrollTop = box.scrollHeight;
    return foot.textContent;
}"""


async def say_many(
    inside: Gateway,
    key: str,
    numbers: range,
    *,
    text: str = "This is number {} of many.",
    at_once: int = 50,
    pause_s: float = 0.01,
) -> None:
    """Numbered messages, of a person and of the agent in turn, some of them at a time."""
    session = await inside.store.read(sessions.get, key)

    def add(tx: Tx, part: range) -> None:
        for n in part:
            message = {
                "role": "user" if n % 2 else "assistant",
                "content": [{"type": "text", "text": text.format(n)}],
                "timestamp": 1_700_000_000_000 + n,
            }
            entries.append(tx, session.session_id, message)

    for at in range(0, len(numbers), at_once):
        await inside.store.write(add, numbers[at : at + at_once])
        await asyncio.sleep(pause_s)


async def make_many(inside: Gateway, count: int) -> None:
    """Sessions of bob, `hook:00000` used last."""

    def make(tx: Tx, numbers: range) -> None:
        for n in numbers:
            sessions.create(tx, Session.of(parse(f"agent:bob:hook:{n:05}"), updated_at_ms=1_000_000 - n))

    for at in range(0, count, AT_ONCE):
        await inside.store.write(make, range(count)[at : at + AT_ONCE])


def scroll_to_the_end(one: Visit, count: int, within_s: float = 15) -> None:
    """Scroll down the list of sessions until all of them were read, a step with each frame."""
    last = f"{count:,} sessions"
    assert one.tab.evaluate(_TO_THE_END, [last, within_s * 1000]) == last
