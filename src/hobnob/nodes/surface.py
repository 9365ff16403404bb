"""The surface of a node: which of the commands it declares may be approved and used. Pure functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from hobnob.config import Settings
from hobnob.config.fields import Scope
from hobnob.node_types import Node, Surface

USUAL = ("system.run", "system.run.prepare", "system.which", "system.notify")
_ADMIN = (
    "system.run",
    "system.run.*",
    "system.which",
    "system.execApprovals.*",
    "fs.listDir",
    "browser.proxy*",
)
MAX_NAMES, NAME_CHARS = 200, 100  # of capabilities, and of commands


def declared(settings: Settings, caps: Any, commands: Any) -> Surface:
    """What a node declares, as far as the settings permit it. Anything that is not a name is left out."""
    return Surface(_names(caps), tuple(name for name in _names(commands) if may_offer(settings, name)))


def effective(settings: Settings, node: Node) -> Surface:
    """What can be used of a node now: declared, approved, and still permitted."""
    if node.state != "approved":
        return Surface()
    now, approved = node.declared_surface, node.approved_surface
    return Surface(
        tuple(cap for cap in now.caps if cap in approved.caps),
        tuple(name for name in now.commands if name in approved.commands and may_offer(settings, name)),
    )


def may_offer(settings: Settings, command: str) -> bool:
    """Whether nodes may offer a command at all: the usual ones, and those the settings add."""
    rules = settings.gateway.nodes.commands
    return _matches(command, [*USUAL, *rules.allow]) and not _matches(command, rules.deny)


def needs_admin(command: str) -> bool:
    """Whether a command runs programs or reads files, so that only an owner may approve or invoke it."""
    return _matches(command, _ADMIN)


def runs_programs(command: str) -> bool:
    """Whether a command starts programs, which agents do through the tool exec only."""
    return _matches(command, ("system.run", "system.run.*", "system.execApprovals.*"))


def approve_scopes(surface: Surface) -> tuple[Scope, ...]:
    """The scopes that approving a surface needs."""
    if any(map(needs_admin, surface.commands)):
        return "operator.pairing", "operator.admin"
    if surface.commands:
        return "operator.pairing", "operator.write"
    return ("operator.pairing",)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    names = (item for item in value[:MAX_NAMES] if isinstance(item, str))
    return tuple(sorted({name for name in names if name.isprintable() and 0 < len(name) <= NAME_CHARS}))
