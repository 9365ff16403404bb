"""`hobnob demo`: three offline agents use every session tool, live.

The gateway, the store and the tools are real, in a temporary folder. Only the model is scripted. The lines
under the headings come from the gateway's events, the timeline at the end from its store.
"""

from __future__ import annotations

import asyncio
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.text import Text

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import connection, output, timeline
from hobnob.cli.demo_script import COLOURS, NAMES, SETTINGS
from hobnob.cli.output import escape
from hobnob.errors import HobnobError
from hobnob.exchanges import is_skip
from hobnob.types import text_of

if TYPE_CHECKING:
    from hobnob.events import Event
    from hobnob.gateway import Gateway
    from hobnob.types import Exchange, Turn

_MAX_WIDTH = 78
_INDENT = 20  # after the seconds and the name
_TIMEOUT_S = 30.0


def demo() -> None:
    """Watch three offline agents talk to each other. Takes seconds and leaves no files behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C, so that the folder is removed
    with tempfile.TemporaryDirectory(prefix="hobnob-demo-") as folder:
        try:
            asyncio.run(_demo(Path(folder)))
        except TimeoutError:
            raise HobnobError(
                f"The demo did not finish within {_TIMEOUT_S:.0f} seconds.",
                fix="The machine may be very busy. Try again.",
            ) from None


async def _demo(home: Path) -> None:
    from hobnob.gateway import open_gateway

    file = home / "hobnob.json5"
    file.write_bytes(orjson.dumps(SETTINGS))
    loaded = settings.load(file, env={"HOBNOB_HOME": str(home)})
    async with (
        open_gateway(loaded, env={}, grace_s=0, scheduling=False) as gateway,
        asyncio.timeout(_TIMEOUT_S),
    ):
        await _play(Screen(gateway))


async def _play(screen: Screen) -> None:
    screen.narrate(
        "Hobnob is a gateway where AI agents live in sessions. A session is a stored conversation with one"
        " agent. With session tools, agents find each other, send messages to each other, and start"
        " sub-agents in the background."
    )
    screen.narrate(
        "This demo has three agents: Ada plans, Bo watches the weather, Cy keeps the books. Gateway, database"
        " and tools are real. Only the model is scripted, so the demo needs no key and no network."
    )
    screen.narrate("→ is a tool call, ← its result, ✉ a message to the people in a chat.")
    screen.heading("1. People talk to agents, each in its own session")
    await screen.say("bo", "The street party is on Saturday. How is the weather?")
    await screen.say("cy", "Put 200 aside for the party.")
    screen.heading("2. One agent asks another")
    screen.narrate(
        "Ada looks through the sessions. Then she sends into Bo's session and waits for his answer."
    )
    await screen.say("ada", "Plan the street party on Saturday.")
    screen.narrate(
        "Ada has her answer. Now the two reply to each other in the background until one has nothing to add."
        " Then Bo announces the result to the people in his own chat."
    )
    exchange_id = await screen.exchange_ended("send")
    screen.heading("3. A sub-agent works in the background")
    screen.narrate("Ada starts a sub-agent, checks on it, and ends her turn. The report starts her next one.")
    await screen.say("ada", "Do we have enough chairs?")
    await screen.exchange_ended("spawn")
    screen.heading("4. Several sub-agents at once, with typed results")
    screen.narrate(
        "Ada starts three sub-agents that report to nobody, and waits for all of them. Each has to give its"
        " result in the form of a JSON schema."
    )
    await screen.say("ada", "How many tables do we have?")
    screen.heading("5. A budget is checked before it is spent")
    screen.narrate("Ada gives a sub-agent a budget. Each model call reserves what it may cost at most.")
    await screen.say("ada", "Design an invitation.")
    screen.heading("6. A refusal names its rule and the fix")
    screen.narrate("The settings do not allow other agents to reach Cy. Ada tries it anyway.")
    await screen.say("ada", "What is in Cy's books?")
    screen.heading("Everything is stored. The exchange between Ada and Bo, read from the store:")
    await screen.timeline(exchange_id)
    await screen.close()


class Screen:
    """Prints the gateway's events as they happen, and headings and text between them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._out = output.console()
        self._width = min(self._out.width, _MAX_WIDTH)
        self._events = gateway.hub.subscribe()
        self._started_at = time.monotonic()
        self._turns = 0
        self._last_text = ""
        self._after_blank_line = False
        self._labels: dict[str, str] = {}  # of sub-agents, by session key
        self._ended_turns: dict[str, asyncio.Future[None]] = {}  # by turn id
        self._ended_exchanges: dict[str, asyncio.Future[str]] = {}  # by kind
        gateway.store.watch(self._on_changes)

    def narrate(self, text: str) -> None:
        """Print a paragraph between blank lines, with the agents' names in their colours."""
        markup = output.paragraph(text, 0, width=self._width)
        for agent, name in NAMES.items():
            markup = re.sub(rf"\b{name}\b", f"[{COLOURS[agent]}]{name}[/]", markup)
        self._print_block(markup)

    def heading(self, text: str) -> None:
        self._print_block(f"[bold yellow]{escape(text)}[/]")

    def _print_block(self, markup: str) -> None:
        self._out.print(markup + "\n" if self._after_blank_line else f"\n{markup}\n")
        self._after_blank_line = True

    async def say(self, agent: str, text: str) -> None:
        """Send a message to an agent as a person, and show events until its turn has ended."""
        from hobnob.policy import Operator

        turn = await self._gateway.sessions.send(Operator(), f"agent:{agent}:main", text)
        await self._show_until(self._future(self._ended_turns, turn.turn_id))

    async def exchange_ended(self, kind: str) -> str:
        """Show events until the exchange of that kind has ended. Returns its id."""
        future = self._future(self._ended_exchanges, kind)
        await self._show_until(future)
        exchange_id: str = future.result()
        return exchange_id

    async def timeline(self, exchange_id: str) -> None:
        from hobnob.policy import Operator

        exchange = await self._gateway.sessions.queries.exchange(Operator(), exchange_id)
        timeline.show(self._out, exchange, width=self._width, name=self._name)
        self._after_blank_line = False

    async def close(self) -> None:
        from hobnob.policy import Operator

        page = await self._gateway.sessions.queries.list(Operator())
        tokens = sum(row.get("totalTokens", 0) for row in page["sessions"])
        seconds = time.monotonic() - self._started_at
        totals = f"{self._turns} turns in {page['count']} sessions, {tokens:,} tokens, {seconds:.1f} seconds."
        self.narrate(f"{totals} All files were in a temporary folder, which is now removed.")
        self.heading("Next steps")
        for command, purpose in (
            ("hobnob serve", "run a gateway, offline until you set a model"),
            ('hobnob agent -m "what is 6 * 7?"', "talk to it from another terminal"),
        ):
            self._out.print(f"  [bold]{escape(command):<33}[/] {purpose}")

    async def _show_until(self, done: asyncio.Future[Any]) -> None:
        async for event in connection.items_until(done, self._events.next):
            self._show(event)

    def _on_changes(self, changes: Sequence[Any]) -> None:
        from hobnob.events import ExchangeChanged

        for change in changes:
            if isinstance(change, ExchangeChanged):
                self._exchange(change.exchange)

    def _exchange(self, exchange: Exchange) -> None:
        if exchange.label:
            self._labels[exchange.target_key] = exchange.label
        if exchange.kind == "send" and exchange.state != "open":
            _set_once(self._future(self._ended_exchanges, "send"), exchange.exchange_id)

    def _show(self, event: Event) -> None:
        from hobnob import events

        match event:
            case events.EntryAppended(key, entry):
                self._entry(key, entry.role, entry.message)
            case events.ToolStarted(key, _, _, name, arguments):
                text = ", ".join(f"{k} {_shown(v)}" for k, v in arguments.items())
                self._line(key, f"[yellow]→ {name}[/]", text)
            case events.WebchatMessage(key, delivery):
                text = _without_stats(delivery.text)
                repeated = text == self._last_text
                posted = f"posted to the people in {self._name(key)}'s chat"
                self._line(key, "[blue]✉[/]", posted if repeated else f"{posted}: {text}")
            case events.TurnChanged(turn) if turn.status == "ended":
                self._turn_ended(turn)

    def _turn_ended(self, turn: Turn) -> None:
        self._turns += turn.step != "note"
        if turn.error:
            self._line(turn.session_key, "[red]✗[/]", turn.error)
        if turn.step in ("wake", "note"):  # the requester has read the report
            _set_once(self._future(self._ended_exchanges, "spawn"), str(turn.exchange_id))
        _set_once(self._future(self._ended_turns, turn.turn_id), None)

    def _entry(self, key: str, role: str, message: dict[str, Any]) -> None:
        text = text_of(message)
        if role == "toolResult":
            self._line(key, "[red]✗[/]" if message.get("isError") else "[dim]←[/]", _summary(message))
        elif role == "assistant" and text:
            self._line(key, "", f"{text} (nothing to add)" if is_skip(text) else text)
        elif role == "user":
            self._input(key, message.get("provenance"), text)

    def _input(self, key: str, source: dict[str, Any] | None, text: str) -> None:
        """The input of a turn. A message from another agent was shown as that agent's output."""
        if source is None:
            self._line(None, f"to {self._name(key)}:", text)
        elif source["sourceTool"] == "sessions_spawn" and keys.parse(source["sourceSessionKey"]).is_child:
            self._line(key, "[blue]gets a report:[/]", _without_stats(text))

    def _name(self, key: str) -> str:
        name = NAMES.get(keys.agent_of(key), keys.agent_of(key))
        return f"{name}/{self._labels.get(key, 'sub')}" if keys.parse(key).is_child else name

    def _line(self, key: str | None, mark: str, text: str) -> None:
        name, colour = ("You", "bold") if key is None else (self._name(key), COLOURS[keys.agent_of(key)])
        self._last_text, self._after_blank_line = text, False
        at = f"{time.monotonic() - self._started_at:.2f}s"
        label = Text.from_markup(mark).plain
        body = output.paragraph(f"{label} {text}".strip(), _INDENT, width=self._width)[_INDENT:]
        self._out.print(f"[dim]{at:>7}[/]  [{colour}]{name:<10}[/] {mark}{body.removeprefix(escape(label))}")

    @staticmethod
    def _future(futures: dict[str, asyncio.Future[Any]], name: str) -> asyncio.Future[Any]:
        return futures.setdefault(name, asyncio.get_running_loop().create_future())


def _set_once(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _shown(argument: Any) -> str:
    """An argument of a tool call; of an object only that it is one."""
    return "{…}" if isinstance(argument, dict) else orjson.dumps(argument).decode()


def _without_stats(text: str) -> str:
    """A report without its statistics line."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("Stats:"))


def _result(row: dict[str, Any]) -> str:
    """The result of one sub-agent."""
    if "structured" in row:
        return f"{row['label']} {orjson.dumps(row['structured']).decode()}"
    return f"{row['label']}: {row['status']}"


def _summary(message: dict[str, Any]) -> str:
    """A tool result in one line."""
    answer = orjson.loads(text_of(message))
    if message.get("isError"):
        return " ".join(filter(None, (answer["error"], answer.get("fix"), f"({answer.get('code')})")))
    match message["toolName"]:
        case "sessions_list":
            return f"{answer['count']} visible sessions: " + ", ".join(
                row["key"] for row in answer["sessions"]
            )
        case "sessions_search":
            return "; ".join(f"in {hit['sessionKey']}: {hit['snippet']}" for hit in answer["results"])
        case "sessions_history":
            return f"{len(answer['messages'])} messages of {answer['sessionKey']}"
        case "sessions_send":
            return f"{answer['status']}: {answer.get('reply', '')}"
        case "agents_wait":
            return f"{answer['status']}: " + ", ".join(map(_result, answer["completed"]))
        case "structured_output":
            return "the result fits its schema"
        case "agents_list":
            return "may start " + ", ".join(agent["id"] for agent in answer["agents"])
        case "sessions_spawn":
            return f"{answer['status']}: {answer['childSessionKey']}"
        case "subagents":
            return ", ".join(f"{row.get('label')} is {row['status']}" for row in answer["active"])
        case "session_status":
            used = answer["inputTokens"] + answer["outputTokens"]
            return f"{answer['key']} is {answer['status']}, {used:,} tokens so far"
        case "sessions_yield":
            return f"{answer['status']}: her turn ends; the report starts the next one"
    return text_of(message)
