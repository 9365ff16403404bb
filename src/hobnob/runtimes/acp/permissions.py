"""What a harness may do, by the kind of its tool call.

A harness states the kind of a call itself, so its statement alone decides nothing: a call counts as the
strictest kind that was stated for it in this turn, or that its input or content shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hobnob.config.external import PermissionMode
from hobnob.policy.toolsets import BUILT_IN

# Every kind of the protocol, the mildest first.
KINDS = ("think", "search", "read", "fetch", "switch_mode", "move", "edit", "delete", "other", "execute")
STRICTEST = KINDS[-1]
MCP_SERVER = "hobnob"  # the name under which a harness knows our MCP server
SESSION_TOOLS = frozenset(BUILT_IN["sessions"])
_READS = ("think", "search", "read")
_PLACES = {"session/update": "update", "session/request_permission": "toolCall"}
_MAX_DEPTH = 8
# Words in the names of input fields that hold a command or program. `code` counts only as the whole name.
_COMMAND_WORDS = frozenset(
    "args argv bash cmd cmds command commands exec execute program script scripts shell".split()
)
_EDIT_WORDS = frozenset("diff patch".split())
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def may_use(mode: PermissionMode, kind: str) -> bool:
    """Whether a harness may use a tool of this kind."""
    return mode == "approve-all" or (mode == "approve-reads" and kind in _READS)


def is_session_tool(title: str, kind: str) -> bool:
    """Whether a call is one of our session tools, by the name that harnesses give tools of MCP servers.

    Our server checks such a call itself. A call that shows a command or a change of files is none.
    """
    name = title.strip().removeprefix(f"mcp__{MCP_SERVER}__").removeprefix(f"mcp.{MCP_SERVER}.")
    return kind == "other" and name != title.strip() and name in SESSION_TOOLS


def strictest(kinds: Iterable[str | None]) -> str | None:
    """The strictest of these kinds; an unknown one counts as `execute`. None if none was stated."""
    known = [kind if kind in KINDS else STRICTEST for kind in kinds if kind is not None]
    return max(known, key=KINDS.index, default=None)


def evident_kind(update: Any) -> str | None:
    """The kind an update shows by its input, content or metadata, whatever it states."""
    shown = [_kind_of_input(update.raw_input)]
    shown += [{"terminal": "execute", "diff": "edit"}.get(item.type) for item in update.content or ()]
    shown += ["execute" for name in update.field_meta or {} if name.startswith("terminal_")]
    return strictest(shown)


def with_known_kind(message: dict[str, Any]) -> dict[str, Any]:
    """The message itself, or a copy in which the strictest kind replaces one that the protocol lacks.

    The protocol package would ignore such a kind.
    """
    place, params = _PLACES.get(str(message.get("method")), ""), message.get("params")
    call = params.get(place) if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(call, dict):
        return message
    if call.get("kind") is None or call["kind"] in KINDS:
        return message
    return message | {"params": params | {place: call | {"kind": STRICTEST}}}


def _kind_of_input(value: Any, depth: int = 0) -> str | None:
    """The kind shown by the names in an input. One that is no object could be a command itself."""
    if not value:
        return None
    if depth > _MAX_DEPTH or (depth == 0 and not isinstance(value, dict)):
        return STRICTEST
    if isinstance(value, dict):
        kinds = [_kind_of_field(str(name)) for name, held in value.items() if held]
        return strictest([*kinds, *(_kind_of_input(held, depth + 1) for held in value.values())])
    if isinstance(value, list):
        return strictest(_kind_of_input(item, depth + 1) for item in value)
    return None


def _kind_of_field(name: str) -> str | None:
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _COMMAND_WORDS or name.lower() == "code":
        return "execute"
    return "edit" if words & _EDIT_WORDS else None
