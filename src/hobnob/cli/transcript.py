"""Prints the messages of a transcript."""

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


def short_name(key: str, label: str | None = None) -> str:
    """A session in a word: the agent of a main session, `agent/label` of a child."""
    if not key.startswith("agent:"):
        return key
    parsed = keys.parse(key)
    if parsed.is_child:
        return f"{parsed.agent}/{label or parsed.id[:8]}"
    return parsed.agent if parsed.kind == "main" else f"{parsed.agent}:{keys.rest_of(key)}"


def show(out: Console, messages: Iterable[Message], agent: str) -> None:
    """Print each message under a line with its author; `agent` is the agent of the session."""
    for message in messages:
        _show_message(out, message, agent)


def _show_message(out: Console, message: Message, agent: str) -> None:
    when = f" · {output.ago(message['timestamp'])}" if "timestamp" in message else ""
    style = _STYLES.get(message["role"], "white")
    author = escape(output.clean(_author(message, agent)))
    out.print(f"[{style}]{author}[/] [dim]#{message.get('seq', '?')}{when}[/]")
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        _show_part(out, part, dim=message["role"] == "toolResult")
    if why := message.get("errorMessage"):
        out.print(f"[red]{output.paragraph(f'failed: {why}', 2)}[/]")
    out.print()


def _author(message: Message, agent: str) -> str:
    match message["role"]:
        case "assistant":
            facts = message.get("compaction")
            return f"summary of messages 1 to {facts['covers'][1]}" if isinstance(facts, dict) else agent
        case "toolResult":
            return f"result of {message.get('toolName', 'a tool')}"
    source = message.get("provenance")
    if isinstance(source, dict) and source.get("kind") == "inter_session":
        return f"{source.get('sourceSessionKey', 'another session')} ({source.get('sourceTool', 'session')})"
    return "user"


def _show_part(out: Console, part: Any, *, dim: bool) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        text = output.paragraph(str(part.get("text", "")), 2)
        out.print(f"[dim]{text}[/]" if dim else text)
    elif kind == "thinking":
        out.print(f"[dim italic]{output.paragraph(str(part.get('thinking', '')), 2)}[/]")
    elif kind == "toolCall":
        arguments = orjson.dumps(part.get("arguments"), default=str).decode()
        name = str(part.get("name"))
        width = (out.width if out.is_terminal else 10**6) - 6 - len(name)
        out.print(f"  [yellow]→ {escape(name)}[/] [dim]{escape(output.cut(arguments, width))}[/]")
    elif kind is not None:
        out.print(f"  [dim]({escape(str(kind))})[/]")
