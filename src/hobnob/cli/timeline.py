"""Prints an exchange as a timeline: the messages, their times and cost, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from hobnob.cli import output
from hobnob.cli.output import escape
from hobnob.cli.transcript import short_name

Row = dict[str, Any]
GONE = "(deleted with one of the two sessions)"
_TEXT_COLUMN = 10  # after the seconds

_LOOP_ENDS = {
    "reply_skip": "{last} had nothing to add",
    "max_turns": "the limit of reply-back turns was reached",
    "empty": "{last} answered nothing",
    "failed": "a turn of {last} failed",
    "policy": "the send policy forbids another turn",
}
_ENDS = {
    "delivered": "the announcement was delivered",
    "no_route": "there was no chat to announce it to",
    "collected": "the result is kept for {requester}",
    "quiet": "no report was wanted",
    "announce_skip": "{target} chose to announce nothing",
    "reply_skip": "{target} chose not to answer",
    "empty": "{target} answered nothing",
    "policy": "the send policy forbids the next step",
    "failed": "a turn failed that later steps depend on",
    "undelivered": "the announcement could not be delivered",
    "ambiguous": "the announcement may have been delivered; its receipt was lost",
    "deleted": "one of the two sessions was deleted",
    "expired": "it was open for too long without progress",
}
_COLOURS = {"open": "yellow", "done": "green", "failed": "red", "expired": "red"}


def show(
    out: Console, exchange: Row, *, width: int | None = None, name: Callable[[str], str] | None = None
) -> None:
    """Print the steps in order, in seconds since the start. `name` turns a session key into a name."""
    name_of = name or (
        lambda key: short_name(key, exchange.get("label") if key == exchange["target"] else None)
    )
    steps: list[Row] = exchange["steps"]
    requester = exchange.get("requester")
    sender, target = name_of(requester) if requester else "a person", name_of(exchange["target"])
    verb = "hands over" if exchange["kind"] == "spawn" else "asks"
    _line(out, 0, f"{sender} → {target}", verb)
    _text(out, exchange["request"] or GONE, width)
    for step in steps:
        _step(out, exchange, step, sender, target, name_of, width)
    if delivery := exchange.get("delivery"):
        at = max((s.get("endedAt", 0) for s in steps), default=exchange["createdAt"])
        state = {"delivered": "delivered to"}.get(delivery["state"], f"{delivery['state']}:")
        error = f" ({delivery['error']})" if delivery.get("error") else ""
        _line(out, at - exchange["createdAt"], "gateway", f"{state} {delivery['channel']}{error}")
    out.print()
    if loop := exchange.get("loopEnd"):
        replies = [s for s in steps if s["step"] == "reply"]
        last = name_of(replies[-1]["sessionKey"]) if replies else target
        why = _LOOP_ENDS.get(loop, str(loop)).format(last=last)
        out.print(f"The conversation ended because {escape(why)} [dim]({escape(loop)})[/].")
    out.print(_ending(exchange, sender, target))


def _step(
    out: Console,
    exchange: Row,
    step: Row,
    sender: str,
    target: str,
    name_of: Callable[[str], str],
    width: int | None,
) -> None:
    at = step.get("endedAt") or step.get("startedAt") or step["acceptedAt"]
    own = name_of(step["sessionKey"])
    other = target if own == sender else sender
    spawned = exchange["kind"] == "spawn"
    match step["step"]:
        case "primary" if spawned:
            parties, verb = own, "works on it"
        case "primary":
            parties, verb = f"{own} → {other}", "answers"
        case "reply":
            parties, verb = f"{own} → {other}", "replies"
        case _:
            parties, verb = (
                f"{own} → {sender if spawned else 'its chat'}",
                "reports" if spawned else "announces",
            )
    if step["status"] in ("queued", "running"):
        verb = f"… {step['status']}"
    elif step.get("skipped"):
        parties, verb = own, "stays silent"
    elif step["status"] not in ("ok", "no_output"):
        verb = step["status"].replace("_", " ")
    elif not step.get("text"):
        verb = "answers nothing"
    _line(out, at - exchange["createdAt"], parties, verb, _usage(step))
    for text in filter(None, (step.get("text"), step.get("error"))):
        _text(out, text, width)


def _usage(step: Row) -> str:
    used = step.get("usage")
    if not used:
        return ""
    cost = f", ${used['costUsd']:.4f}" if used.get("costUsd") else ""
    return f"{output.count(used['input'])} in, {output.count(used['output'])} out{cost}"


def _ending(exchange: Row, sender: str, target: str) -> str:
    state = exchange["state"]
    if state == "open":
        return f"[yellow]Open[/], in its {escape(exchange.get('phase', 'first'))} phase."
    end = str(exchange.get("end", ""))
    why = _ENDS.get(end, end).format(requester=sender, target=target)
    return f"[{_COLOURS[state]}]{state.capitalize()}[/]: {escape(why)} [dim]({escape(end)})[/]."


def _line(out: Console, after_ms: int, parties: str, verb: str, right: str = "") -> None:
    tail = f"  [dim]{escape(right)}[/]" if right else ""
    seconds = f"{max(after_ms, 0) / 1000:.2f} s"
    out.print(f"[dim]{seconds:>8}[/]  [bold]{escape(output.clean(parties))}[/]  {escape(verb)}{tail}")


def _text(out: Console, text: str, width: int | None) -> None:
    out.print(output.paragraph(text, _TEXT_COLUMN, width=width))
