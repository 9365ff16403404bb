"""An exchange on the terminal: who told whom what, when, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from hobnob.cli import output
from hobnob.cli.output import escape
from hobnob.cli.transcript import who

Row = dict[str, Any]
GONE = "(deleted with one of the two sessions)"
_TEXT = 10  # where the words begin: after the seconds

_LOOP = {
    "reply_skip": "{last} had nothing to add",
    "max_turns": "the limit of reply-back turns was reached",
    "empty": "{last} said nothing",
    "failed": "a turn of {last} failed",
    "policy": "the send policy forbids another turn",
}
_END = {
    "delivered": "the announcement was delivered",
    "no_route": "there was no chat to announce it to",
    "announce_skip": "{target} chose to announce nothing",
    "reply_skip": "{target} chose not to answer",
    "empty": "{target} said nothing",
    "policy": "the send policy forbids what was next",
    "failed": "a turn failed that the rest depends on",
    "undelivered": "the chat did not take the announcement",
    "ambiguous": "the announcement may have gone out; its receipt was lost",
    "deleted": "one of the two sessions was deleted",
    "expired": "nothing happened for too long",
}
_COLOURS = {"open": "yellow", "done": "green", "failed": "red", "expired": "red"}


def show(
    out: Console, exchange: Row, *, width: int | None = None, name: Callable[[str], str] | None = None
) -> None:
    """The whole exchange, oldest first, in seconds since it began. `name` says what to call a session."""
    named = name or (lambda key: who(key, exchange.get("label") if key == exchange["target"] else None))
    steps: list[Row] = exchange["steps"]
    requester = exchange.get("requester")
    sender, target = named(requester) if requester else "a person", named(exchange["target"])
    verb = "hands over" if exchange["kind"] == "spawn" else "asks"
    _line(out, 0, f"{sender} → {target}", verb)
    _words(out, exchange["request"] or GONE, width)
    for step in steps:
        _step(out, exchange, step, sender, target, named, width)
    if delivery := exchange.get("delivery"):
        last = max((s.get("endedAt", 0) for s in steps), default=exchange["createdAt"])
        state = {"delivered": "delivered to"}.get(delivery["state"], f"{delivery['state']}:")
        why = f" ({delivery['error']})" if delivery.get("error") else ""
        _line(out, last - exchange["createdAt"], "gateway", f"{state} {delivery['channel']}{why}")
    out.print()
    if loop := exchange.get("loopEnd"):
        replies = [s for s in steps if s["step"] == "reply"]
        last_said = named(replies[-1]["sessionKey"]) if replies else target
        said = _LOOP.get(loop, str(loop)).format(last=last_said)
        out.print(f"The conversation ended because {escape(said)} [dim]({escape(loop)})[/].")
    out.print(_ending(exchange, target))


def _step(
    out: Console,
    exchange: Row,
    step: Row,
    sender: str,
    target: str,
    named: Callable[[str], str],
    width: int | None,
) -> None:
    at = step.get("endedAt") or step.get("startedAt") or step["acceptedAt"]
    own = named(step["sessionKey"])
    other = target if own == sender else sender
    spawned = exchange["kind"] == "spawn"
    match step["step"]:
        case "primary" if spawned:
            parties, verb = own, "does it"
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
        verb = "says nothing"
    _line(out, at - exchange["createdAt"], parties, verb, _usage(step))
    for text in filter(None, (step.get("text"), step.get("error"))):
        _words(out, text, width)


def _usage(step: Row) -> str:
    used = step.get("usage")
    if not used:
        return ""
    cost = f", ${used['costUsd']:.4f}" if used.get("costUsd") else ""
    return f"{output.count(used['input'])} in, {output.count(used['output'])} out{cost}"


def _ending(exchange: Row, target: str) -> str:
    state = exchange["state"]
    if state == "open":
        return f"[yellow]Under way[/], in its {escape(exchange.get('phase', 'first'))} phase."
    why = str(exchange.get("end", ""))
    said = _END.get(why, why).format(target=target)
    return f"[{_COLOURS[state]}]{state.capitalize()}[/]: {escape(said)} [dim]({escape(why)})[/]."


def _line(out: Console, after_ms: int, parties: str, verb: str, right: str = "") -> None:
    tail = f"  [dim]{escape(right)}[/]" if right else ""
    seconds = f"{max(after_ms, 0) / 1000:.2f} s"
    out.print(f"[dim]{seconds:>8}[/]  [bold]{escape(output.clean(parties))}[/]  {escape(verb)}{tail}")


def _words(out: Console, text: str, width: int | None) -> None:
    out.print(output.paragraph(text, _TEXT, width=width))
