"""What agents were refused lately: waits that would never end, chains that grew too long.

Each refusal stands in the transcript of whoever was refused. This is for whoever watches, and holds the
newest of one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hobnob.errors import NotAllowed
from hobnob.sessions.sending import Cause
from hobnob.types import now_ms

KEPT = 200
RULES = ("deadlock", "hop_limit")


@dataclass(frozen=True, slots=True)
class Refusal:
    session_key: str
    rule: str
    why: str
    fix: str | None
    at_ms: int


class Refusals:
    def __init__(self) -> None:
        self.newest: deque[Refusal] = deque(maxlen=KEPT)

    @contextmanager
    def noted(self, cause: Cause) -> Iterator[None]:
        """Note a refusal that tells of how agents work together, and let it go on its way."""
        try:
            yield
        except NotAllowed as refused:
            if refused.rule in RULES:
                key = cause.session.key
                self.newest.append(Refusal(key, refused.rule, refused.message, refused.fix, now_ms()))
            raise
