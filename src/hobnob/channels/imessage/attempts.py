"""Attempts to send: what was about to be sent when, so that its echo can be recognised after a crash.

Messages has no key for a message. Before a part is sent, the position in the database of Messages is noted
in a file. A later message of our own with the same text, after that position, is this part and no other.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import orjson

from hobnob import statedir
from hobnob.records import Struct, asdict

_KEEP_S = 2 * 24 * 3600  # longer than a delivery is tried
_PLAIN = re.compile(r"[^A-Za-z0-9-]")


class Attempt(Struct, frozen=True):
    """`after` is the position before the part was sent, `message_id` its id once that is known."""

    after: int
    message_id: str | None = None


class Attempts:
    def __init__(self, folder: Path) -> None:
        self._folder = statedir.private_dir(folder / "attempts")

    def of(self, key: str) -> Attempt | None:
        """The last attempt to send a part; None if there was none."""
        try:
            return Attempt(**orjson.loads(self._file(key).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def note(self, key: str, attempt: Attempt) -> None:
        """Write an attempt to disk. An earlier position is kept: the part may have been sent since then."""
        fd = statedir.open_private(self._file(key), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        with os.fdopen(fd, "wb") as file:
            file.write(orjson.dumps(asdict(attempt)))
            file.flush()
            os.fsync(file.fileno())

    def forget_old(self) -> None:
        for file in self._folder.iterdir():
            if time.time() - file.stat().st_mtime > _KEEP_S:
                file.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._folder / _PLAIN.sub("_", key)


def same_text(sent: str, seen: str) -> bool:
    """Whether two texts are the same, apart from white space and the marks of files."""
    return sent.split() == seen.replace("\ufffc", " ").split()
