"""What people see of a turn before it has ended: a reaction, typing, a draft of the answer, its progress.

All of this is best effort and nothing of it is stored. A failure is logged and otherwise ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field

import orjson

from hobnob import chat_replies
from hobnob.channels import Channel, Outgoing
from hobnob.channels.text import split
from hobnob.chats.accounts import Accounts
from hobnob.chats.drafts import EDIT_TIMEOUT_S, Drafts
from hobnob.config import Config
from hobnob.config.channels import ChannelAccount, StreamingMode
from hobnob.delivery_routes import WEBCHAT, ReplyAddress
from hobnob.events import AnswerDelta, Change, Event, ToolStarted, TurnChanged
from hobnob.hub import Hub
from hobnob.inbound import Address
from hobnob.store import Store
from hobnob.types import Delivery, Turn

FIRST_CHARS = 30  # of a draft; a control word is shorter
EDIT_PAUSE_S = 1.0
PROGRESS_AFTER_S = 1.5
MAX_LINES = 8
_KEPT_S = 120.0  # a draft waits so long for the delivery that completes it
_DEFAULT_MODES: dict[str, StreamingMode] = {"telegram": "progress", "slack": "progress"}
_EYES = "👀"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _LiveTurn:
    turn: Turn
    address: ReplyAddress
    channel: Channel
    account: ChannelAccount
    mode: StreamingMode
    text: str = ""
    lines: list[str] = field(default_factory=list)
    draft_id: str | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    active: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    editing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def to(self) -> Address:
        return Address(self.address.route.to, self.address.route.thread_id)


class Live(Drafts):
    def __init__(self, store: Store, config: Config, hub: Hub, accounts: Accounts) -> None:
        self._store = store
        self._config = config
        self._hub = hub
        self._accounts = accounts
        self._turns: dict[str, _LiveTurn] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Show the turns that come from chats until cancelled."""
        self._store.watch(self._on_changes)
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    async def take(self, delivery: Delivery, *, has_text: bool) -> str | None:
        live = self._turns.get(delivery.turn_id or "")
        if live is None or live.mode != "partial":
            return None
        live.ended.set()
        async with live.editing:
            draft_id, live.draft_id = live.draft_id, None
            live.finished.set()
            if delivery.kind != "reply" or not has_text:
                await self._discard(live, draft_id)
                return None
            return draft_id

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, TurnChanged) and '"reply"' in change.turn.options:
                turn = change.turn
                if turn.status == "ended":
                    if live := self._turns.get(turn.turn_id):
                        live.ended.set()
                        live.news.set()
                elif turn.status == "running" and turn.step != "command" and turn.turn_id not in self._turns:
                    self._begin(turn)

    def _begin(self, turn: Turn) -> None:
        address = ReplyAddress.from_json(orjson.loads(turn.options)["reply"])
        route = address.route
        channel = self._accounts.find(route.channel, route.account_id)
        account = self._accounts.settings_of(route.channel, route.account_id)
        if route.channel == WEBCHAT or channel is None or account is None or self._group is None:
            return
        if not self._accounts.is_held(route.channel, route.account_id):
            return
        mode = account.streaming.mode or _DEFAULT_MODES.get(route.channel, "off")
        live = _LiveTurn(turn, address, channel, account, mode if channel.capabilities.edits else "off")
        if live.mode == "off" and not self._acknowledges(live) and not self._types(live):
            return
        self._turns[turn.turn_id] = live
        self._group.create_task(self._show(live), name=f"show turn {turn.turn_id}")

    async def _show(self, live: _LiveTurn) -> None:
        subscription = self._hub.subscribe(lambda event: _concerns(event, live), topics_only=True)
        subscription.follow(live.turn.session_key)

        async def listen() -> None:
            async for event in subscription:
                _take(live, event)

        listener = asyncio.ensure_future(listen())
        try:
            shows = [self._acknowledge(live), self._type(live)]
            if live.mode == "partial":
                shows.append(self._draft(live))
            elif live.mode == "progress":
                shows.append(self._progress(live))
            await asyncio.gather(*(_tried(show) for show in shows))
            await live.ended.wait()
            is_held = self._accounts.is_held(live.address.route.channel, live.address.route.account_id)
            if not is_held:  # another gateway sends the answer as a new message
                await self._discard(live, live.draft_id)
            elif live.mode == "partial" and live.draft_id is not None:
                try:
                    async with asyncio.timeout(_KEPT_S):
                        await live.finished.wait()
                except TimeoutError:  # no delivery came: the agent chose to stay silent
                    await self._discard(live, live.draft_id)
        except Exception:  # a fault of ours: what is shown before the answer is optional
            _log.exception("turn %s not shown in its chat", live.turn.turn_id)
        finally:
            listener.cancel()
            subscription.close()
            self._turns.pop(live.turn.turn_id, None)

    async def _acknowledge(self, live: _LiveTurn) -> None:
        if (emoji := self._acknowledges(live)) and live.address.message_id:
            await live.channel.react(live.to, live.address.message_id, emoji)

    def _acknowledges(self, live: _LiveTurn) -> str | None:
        can = live.address.message_id and live.channel.capabilities.reactions
        return self._ack_emoji(live) if can else None

    def _ack_emoji(self, live: _LiveTurn) -> str | None:
        """The emoji that acknowledges a message; None where the settings want none."""
        messages, address = self._config.settings.messages, live.address
        direct = address.chat_type == "direct"
        wanted = {
            "off": False,
            "all": True,
            "direct": direct,
            "group-all": not direct,
            "group-mentions": not direct and address.owed,
        }
        if not wanted[messages.ack_reaction_scope]:
            return None
        agent = self._config.settings.agent(live.turn.agent_id)
        own = agent.identity.emoji if agent else None
        chosen = (live.account.ack_reaction, messages.ack_reaction, own, _EYES)
        return next(emoji for emoji in chosen if emoji is not None) or None

    async def _type(self, live: _LiveTurn) -> None:
        """Show typing from the beginning where the agent is addressed, else from its first activity."""
        if (every_s := self._types(live)) is None:
            return
        mode = self._config.settings.agents.defaults.typing_mode
        if mode in ("thinking", "message") or (mode is None and not live.address.owed):
            await _either(live.active, live.ended)
        while not live.ended.is_set():
            await live.channel.typing(live.to)
            await _within(live.ended, every_s * 0.8)

    def _types(self, live: _LiveTurn) -> float | None:
        """How long one sign of typing is shown, in seconds; None where none is."""
        if self._config.settings.agents.defaults.typing_mode == "never":
            return None
        return live.channel.capabilities.typing_every_s

    async def _draft(self, live: _LiveTurn) -> None:
        """One message with the growing answer."""
        limit, shown = live.channel.capabilities.text_limit, ""
        while not live.ended.is_set():
            live.news.clear()
            if len(live.text.strip()) >= FIRST_CHARS and live.text != shown:
                async with live.editing:
                    if live.ended.is_set():
                        return
                    shown = live.text
                    text = split(
                        chat_replies.spoken(shown) or shown, limit, live.channel.capabilities.measure
                    )[0]
                    await self._put(live, text)
                await _within(live.ended, EDIT_PAUSE_S)
            else:
                await live.news.wait()

    async def _progress(self, live: _LiveTurn) -> None:
        """One message that says what the agent is doing, removed when it is done."""
        if await _within(live.ended, PROGRESS_AFTER_S):
            return
        shown: list[str] | None = None
        while not live.ended.is_set():
            live.news.clear()
            if shown != live.lines:
                shown = list(live.lines)
                await self._put(live, "\n".join(["⏳ Working…", *shown[-MAX_LINES:]]))
                await _within(live.ended, EDIT_PAUSE_S)
            else:
                await live.news.wait()
        await self._discard(live, live.draft_id, "✓ Done.")

    async def _put(self, live: _LiveTurn, text: str) -> None:
        async with asyncio.timeout(EDIT_TIMEOUT_S):  # the answer waits for this
            await self._put_now(live, text)

    async def _put_now(self, live: _LiveTurn, text: str) -> None:
        if live.draft_id is None:
            part = Outgoing(key=f"draft:{live.turn.turn_id}", address=live.to, text=text)
            live.draft_id = await live.channel.send(part)
        else:
            await live.channel.edit(live.to, live.draft_id, text)

    async def _discard(self, live: _LiveTurn, draft_id: str | None, instead: str = "…") -> None:
        if draft_id is not None:
            live.draft_id = None
            await self.remove(live.channel, live.to, draft_id, instead)


def _concerns(event: Event, live: _LiveTurn) -> bool:
    return isinstance(event, AnswerDelta | ToolStarted) and event.turn_id == live.turn.turn_id


def _take(live: _LiveTurn, event: Event) -> None:
    live.active.set()
    if isinstance(event, ToolStarted):
        live.lines.append(f"• {event.name}")
        live.text = ""  # the answer begins anew after the tool
    elif isinstance(event, AnswerDelta) and not event.thinking:
        live.text = event.text if event.restart else live.text + event.text
    live.news.set()


async def _tried(step: Awaitable[None]) -> None:
    try:
        await step
    except Exception as error:  # whatever the channel raises: what is shown before the answer is optional
        _log.debug("not shown in a chat: %s", error)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event happens within a time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
