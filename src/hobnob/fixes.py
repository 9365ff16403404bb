"""Fixes: settings that would allow what was refused, as a command that can be pasted into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

import orjson

from hobnob.records import Struct

_PLAIN = re.compile(r"[A-Za-z_./*~][A-Za-z0-9_./*:@~+-]*")
_JSON5_WORDS = ("true", "false", "null", "NaN", "Infinity")


class Fix(Struct, frozen=True):
    """A setting and the value that would allow the request. `session`: a setting of that session."""

    path: str
    value: Any
    session: str | None = None


def command(fixes: Iterable[Fix]) -> str:
    """One line that makes all the changes: `hobnob config set PATH VALUE [PATH VALUE]…`."""
    fixes = list(fixes)
    words = [word for fix in fixes if fix.session is None for word in (fix.path, written(fix.value))]
    lines = [shlex.join(["hobnob", "config", "set", *words])] if words else []
    for fix in fixes:
        if fix.session is not None:
            words = ["hobnob", "sessions", "patch", fix.session, f"--{fix.path}", str(fix.value)]
            lines.append(shlex.join(words))
    return " && ".join(lines)


def config_set(path: str, value: Any) -> str:
    """The command that sets one setting."""
    return command([Fix(path, value)])


def written(value: Any) -> str:
    """A value as `hobnob config set` takes it: JSON, or a plain word for a text."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _JSON5_WORDS:
        return value
    return orjson.dumps(value).decode()
