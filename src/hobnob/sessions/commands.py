"""What an owner can tell a session instead of its agent: a message that is nothing but a command.

`/send off` has the session take no messages, `/send on` take them whatever the rules say, `/send inherit` go
by the rules again. From anybody else, or within a longer message, it is text like any other.
"""

from __future__ import annotations

import re
from typing import Literal

import orjson

from hobnob.store import Tx, turns
from hobnob.store import sessions as rows
from hobnob.types import Session, Turn

Policy = Literal["allow", "deny"] | None
_SEND = re.compile(r"/send\s+(on|allow|off|deny|inherit|default|reset)", re.IGNORECASE)
_WORDS: dict[str, Policy] = {"on": "allow", "allow": "allow", "off": "deny", "deny": "deny"}
_DONE = {
    "allow": "This session takes messages now, whatever the rules say.",
    "deny": "This session takes no messages now. `/send on` or `/send inherit` changes that.",
    None: "This session goes by the rules of session.sendPolicy again.",
}


def read(text: str) -> str | None:
    """The word of a command, when a message is nothing but one."""
    found = _SEND.fullmatch(text.strip())
    return found[1].lower() if found else None


def obey(tx: Tx, session: Session, word: str, text: str) -> Turn:
    """Do what an owner said. It is answered as a turn is, without asking a model."""
    policy = _WORDS.get(word)
    rows.patch(tx, session.key, send_policy=policy)
    answer = orjson.dumps({"answer": _DONE[policy]}).decode()
    return turns.accept(tx, Turn.of(session, text.strip(), step="command", options=answer))
