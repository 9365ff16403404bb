"""Messages of a transcript on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from rich.console import Console

from hobnob import keys
from hobnob.cli import output
from hobnob.cli.output import escape

Message = dict[str, Any]
_STYLES = {"user": "cyan", "assistant": "green", "toolResult": "magenta"}


def who(key: str, label: str | None = None) -> str:
    """A session in a word: its agent for a main session, else what sets it apart."""
    if not key.startswith("agent:"):
        return key
    named = keys.parse(key)
    if named.is_child:
        return f"{named.agent}/{label or named.id[:8]}"
    return named.agent if named.kind == "main" else f"{named.agent}:{keys.rest_of(key)}"


def show(out: Console, messages: Iterable[Message], own: str) -> None:
    """Each message under a line that says whose it is; `own` is the agent of the session."""
    for message in messages:
        one(out, message, own)


def one(out: Console, message: Message, own: str) -> None:
    when = f" · {output.ago(message['timestamp'])}" if "timestamp" in message else ""
    style = _STYLES.get(message["role"], "white")
    out.print(
        f"[{style}]{escape(output.clean(_author(message, own)))}[/] [dim]#{message.get('seq', '?')}{when}[/]"
    )
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        _part(out, part, quiet=message["role"] == "toolResult")
    out.print()


def _author(message: Message, own: str) -> str:
    match message["role"]:
        case "assistant":
            return own
        case "toolResult":
            return f"result of {message.get('toolName', 'a tool')}"
    source = message.get("provenance")
    if isinstance(source, dict) and source.get("kind") == "inter_session":
        return f"{source.get('sourceSessionKey', 'another session')} ({source.get('sourceTool', 'session')})"
    return "user"


def _part(out: Console, part: Any, *, quiet: bool) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        text = output.paragraph(str(part.get("text", "")), 2)
        out.print(f"[dim]{text}[/]" if quiet else text)
    elif kind == "thinking":
        out.print(f"[dim italic]{output.paragraph(str(part.get('thinking', '')), 2)}[/]")
    elif kind == "toolCall":
        arguments = orjson.dumps(part.get("arguments"), default=str).decode()
        room = (out.width if out.is_terminal else 10**6) - 6 - len(str(part.get("name")))
        out.print(
            f"  [yellow]→ {escape(str(part.get('name')))}[/] [dim]{escape(output.cut(arguments, room))}[/]"
        )
    elif kind is not None:
        out.print(f"  [dim]({escape(str(kind))})[/]")
