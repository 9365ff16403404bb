"""`hobnob demo`: three offline agents use every session tool, live.

The gateway, the store and the tools are the real ones, in a folder that is gone afterwards. Only the model is
scripted. What is printed under the headings comes from the gateway's events, and at the end from its store.
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
from hobnob.cli import output, reach, timeline
from hobnob.cli.demo_script import COLOURS, NAMES, SETTINGS
from hobnob.cli.output import escape
from hobnob.errors import HobnobError
from hobnob.exchanges import is_skip
from hobnob.types import text_of

if TYPE_CHECKING:
    from hobnob.events import Event
    from hobnob.gateway import Gateway
    from hobnob.types import Exchange, Turn

_WIDTH = 78
_TEXT = 20  # where the words begin: after the seconds and the name
_PATIENCE_S = 30.0


def demo() -> None:
    """See what Hobnob is: three offline agents talk to each other. Takes seconds, leaves nothing behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the folder is to go, however this ends
    with tempfile.TemporaryDirectory(prefix="hobnob-demo-") as folder:
        try:
            asyncio.run(_demo(Path(folder)))
        except TimeoutError:
            raise HobnobError(
                f"The demo was not done after {_PATIENCE_S:.0f} seconds.",
                fix="The machine may be very busy. Try again.",
            ) from None


async def _demo(home: Path) -> None:
    from hobnob.gateway import open_gateway

    file = home / "hobnob.json5"
    file.write_bytes(orjson.dumps(SETTINGS))
    loaded = settings.load(file, env={"HOBNOB_HOME": str(home)})
    async with open_gateway(loaded, env={}, grace_s=0) as gateway, asyncio.timeout(_PATIENCE_S):
        await _play(Stage(gateway))


async def _play(stage: Stage) -> None:
    stage.narrate(
        "Hobnob is a gateway where AI agents live in sessions. A session is a conversation with one"
        " agent, and it is kept. With session tools the agents find each other, write to each other, and have"
        " work done in the background."
    )
    stage.narrate(
        "Three agents live here: Ada plans, Bo watches the weather, Cy keeps the books. Gateway, database and"
        " tools are real. Only the model is scripted, so this needs no key and no network."
    )
    stage.narrate("→ is a tool that an agent calls, ← what the tool gives back, ✉ a message to people.")
    stage.heading("1. People talk to agents, each in its own session")
    await stage.say("bo", "The street party is on Saturday. How is the weather?")
    await stage.say("cy", "Put 200 aside for the party.")
    stage.heading("2. One agent asks another")
    stage.narrate("Ada looks around first. Then she writes into Bo's session and waits for his answer.")
    await stage.say("ada", "Plan the street party on Saturday.")
    stage.narrate(
        "Ada has her answer. Now the two may go on by themselves, until one of them has nothing to add."
        " After that, Bo tells the people in his own chat what came of it."
    )
    exchange_id = await stage.over("send")
    stage.heading("3. A sub-agent works in the background")
    stage.narrate("Ada hands work over, looks after it, and ends her turn. The report will wake her.")
    await stage.say("ada", "Do we have enough chairs?")
    await stage.over("spawn")
    stage.heading("4. A refusal explains itself")
    stage.narrate("Cy is not among the agents that others may reach. Ada tries all the same.")
    await stage.say("ada", "What is in Cy's books?")
    stage.heading("Everything was kept. This is what Ada and Bo told each other, from the store:")
    await stage.timeline(exchange_id)
    await stage.close()


class Stage:
    """What happens, on the terminal, as it happens."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._out = output.console()
        self._width = min(self._out.width, _WIDTH)
        self._heard = gateway.hub.subscribe()
        self._began = time.monotonic()
        self._turns = 0
        self._last = ""
        self._apart_already = False  # whether an empty line was printed last
        self._labels: dict[str, str] = {}  # of sub-agents, by key
        self._ended: dict[str, asyncio.Future[None]] = {}
        self._over: dict[str, asyncio.Future[str]] = {}
        gateway.store.watch(self._changed)

    def narrate(self, text: str) -> None:
        """A paragraph between empty lines. The agents have their colours in it."""
        told = output.paragraph(text, 0, width=self._width)
        for agent, name in NAMES.items():
            told = re.sub(rf"\b{name}\b", f"[{COLOURS[agent]}]{name}[/]", told)
        self._apart(told)

    def heading(self, text: str) -> None:
        self._apart(f"[bold yellow]{escape(text)}[/]")

    def _apart(self, markup: str) -> None:
        self._out.print(markup + "\n" if self._apart_already else f"\n{markup}\n")
        self._apart_already = True

    async def say(self, agent: str, text: str) -> None:
        """Say something to an agent, as a person, and show what happens until its turn has ended."""
        from hobnob.policy import Operator

        turn = await self._gateway.sessions.send(Operator(), f"agent:{agent}:main", text)
        await self._show_until(self._future(self._ended, turn.turn_id))

    async def over(self, kind: str) -> str:
        """Show what happens until the exchange of that kind is over. Returns its id."""
        future = self._future(self._over, kind)
        await self._show_until(future)
        exchange_id: str = future.result()
        return exchange_id

    async def timeline(self, exchange_id: str) -> None:
        from hobnob.policy import Operator

        exchange = await self._gateway.sessions.queries.exchange(Operator(), exchange_id)
        timeline.show(self._out, exchange, width=self._width, name=self._name)
        self._apart_already = False

    async def close(self) -> None:
        from hobnob.policy import Operator

        page = await self._gateway.sessions.queries.list(Operator())
        tokens = sum(row.get("totalTokens", 0) for row in page["sessions"])
        took = time.monotonic() - self._began
        done = f"{self._turns} turns in {page['count']} sessions, {tokens:,} tokens, {took:.1f} seconds."
        self.narrate(f"{done} It took place in a temporary folder, which is removed now.")
        self.heading("What to do next")
        for command, what in (
            ("hobnob serve", "run a gateway of your own, offline at first"),
            ('hobnob agent -m "what is 6 * 7?"', "talk to it from another terminal"),
        ):
            self._out.print(f"  [bold]{escape(command):<33}[/] {what}")

    async def _show_until(self, last: asyncio.Future[Any]) -> None:
        async for event in reach.until(last, self._heard.next):
            self._show(event)

    def _changed(self, changes: Sequence[Any]) -> None:
        from hobnob.events import ExchangeChanged

        for change in changes:
            if isinstance(change, ExchangeChanged):
                self._exchange(change.exchange)

    def _exchange(self, exchange: Exchange) -> None:
        if exchange.label:
            self._labels[exchange.target_key] = exchange.label
        if exchange.kind == "send" and exchange.state != "open":
            _settle(self._future(self._over, "send"), exchange.exchange_id)

    def _show(self, event: Event) -> None:
        from hobnob import events

        match event:
            case events.EntryAppended(key, entry):
                self._entry(key, entry.role, entry.message)
            case events.ToolStarted(key, _, _, name, arguments):
                given = ", ".join(f"{k} {orjson.dumps(v).decode()}" for k, v in arguments.items())
                self._line(key, f"[yellow]→ {name}[/]", given)
            case events.WebchatMessage(key, delivery):
                said = _first_lines(delivery.text)
                told = "" if self._last == said else f": {said}"  # not twice in a row
                self._line(key, "[blue]✉[/]", f"posted to the people in {self._name(key)}'s chat{told}")
            case events.TurnChanged(turn) if turn.status == "ended":
                self._turn_ended(turn)

    def _turn_ended(self, turn: Turn) -> None:
        self._turns += turn.step != "note"
        if turn.error:
            self._line(turn.session_key, "[red]✗[/]", turn.error)
        if turn.step in ("wake", "note"):  # the report has been read: the spawn is over
            _settle(self._future(self._over, "spawn"), str(turn.exchange_id))
        _settle(self._future(self._ended, turn.turn_id), None)

    def _entry(self, key: str, role: str, message: dict[str, Any]) -> None:
        said = text_of(message)
        if role == "toolResult":
            self._line(key, "[red]✗[/]" if message.get("isError") else "[dim]←[/]", _result(message))
        elif role == "assistant" and said:
            self._line(key, "", f"{said} (nothing to add)" if is_skip(said) else said)
        elif role == "user":
            self._input(key, message.get("provenance"), said)

    def _input(self, key: str, source: dict[str, Any] | None, said: str) -> None:
        """What a turn begins with. Words of another agent were shown when that agent said them."""
        if source is None:
            self._line(None, f"to {self._name(key)}:", said)
        elif source["sourceTool"] == "sessions_spawn" and keys.parse(source["sourceSessionKey"]).is_child:
            self._line(key, "[blue]is given a report:[/]", _first_lines(said))

    def _name(self, key: str) -> str:
        name = NAMES.get(keys.agent_of(key), keys.agent_of(key))
        return f"{name}/{self._labels.get(key, 'sub')}" if keys.parse(key).is_child else name

    def _line(self, key: str | None, mark: str, text: str) -> None:
        name, colour = ("You", "bold") if key is None else (self._name(key), COLOURS[keys.agent_of(key)])
        self._last, self._apart_already = text, False
        at = f"{time.monotonic() - self._began:.2f}s"
        shown = Text.from_markup(mark).plain
        body = output.paragraph(f"{shown} {text}".strip(), _TEXT, width=self._width)[_TEXT:]
        self._out.print(f"[dim]{at:>7}[/]  [{colour}]{name:<10}[/] {mark}{body.removeprefix(escape(shown))}")

    @staticmethod
    def _future(kept: dict[str, asyncio.Future[Any]], name: str) -> asyncio.Future[Any]:
        return kept.setdefault(name, asyncio.get_running_loop().create_future())


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _first_lines(text: str) -> str:
    """A report without its last line, which is for machines."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("Stats:"))


def _result(message: dict[str, Any]) -> str:
    """What a tool gave back, in a few words."""
    answer = orjson.loads(text_of(message))
    if message.get("isError"):
        return " ".join(filter(None, (answer["error"], answer.get("fix"), f"({answer.get('code')})")))
    match message["toolName"]:
        case "sessions_list":
            return f"{answer['count']} sessions that she may see: " + ", ".join(
                row["key"] for row in answer["sessions"]
            )
        case "sessions_search":
            return "; ".join(f"in {hit['sessionKey']}: {hit['snippet']}" for hit in answer["results"])
        case "sessions_history":
            return f"{len(answer['messages'])} messages of {answer['sessionKey']}"
        case "sessions_send":
            return f"{answer['status']}: {answer.get('reply', '')}"
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
            return f"{answer['status']}: her turn is over, and a report will wake her"
    return text_of(message)
