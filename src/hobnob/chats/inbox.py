"""The inbox: takes messages from channels and makes turns of them.

`accept` stores messages with the verdict of `routing` on each, and the position of the channel, in one
transaction. A message that starts a turn at once does so in that transaction too. One that may be followed by
more of the same sender, or has files to fetch, waits as a row; `run` takes it up when it is due, also after a
restart. Messages of one chat become turns in the order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from hobnob import briefings, crashpoints, policy, redact, routing
from hobnob.channels import Channel, KnownChat
from hobnob.chat_types import BoundThread, InboxEvent, InboxState, Pairing
from hobnob.chats import inbox_rows
from hobnob.chats.accounts import Accounts
from hobnob.chats.media import FetchedMedia, MediaFetcher
from hobnob.config import Config, Settings
from hobnob.delivery_routes import DeliveryRoute
from hobnob.effects import Effects
from hobnob.errors import BadKey, HobnobError, StoreError
from hobnob.events import Change, InboxChanged
from hobnob.inbound import Address, Inbound
from hobnob.models.catalog import Catalog
from hobnob.policy import resets
from hobnob.records import replace
from hobnob.requests import check_message
from hobnob.routing import Decision, Facts
from hobnob.sessions import sending, slash_commands
from hobnob.sessions.sending import ChatOrigin, InboundMessage, TurnOptions
from hobnob.store import Store, Tx, deliveries, homes
from hobnob.store import exchanges as exchange_rows
from hobnob.store.chats import inbox, pairings, threads
from hobnob.store.chats.inbox import Chat
from hobnob.types import Delivery, now_ms

ALBUM_MS = 500  # for more files of the same message
_CONTEXT_CHARS = 4_000  # of one message that is shown as context
_ID_CHARS = 36  # of a delivery; in the key of a part its number follows
_STORE_RETRY_S = 1.0
_SILENT = ("send_policy.denied",)
_BROKEN = Decision(
    action="refuse", code="internal", why="Hobnob could not process the message; its log says why."
)
_log = logging.getLogger(__name__)


class ChatInbox:
    def __init__(
        self,
        store: Store,
        config: Config,
        models: Catalog,
        effects: Effects,
        accounts: Accounts,
        media: MediaFetcher,
    ) -> None:
        self._store = store
        self._config = config
        self._models = models
        self._effects = effects
        self._accounts = accounts
        self._media = media
        self._wakeup = asyncio.Event()
        self._working: dict[Chat, asyncio.Task[None]] = {}
        accounts.inbox_of = self.of_account

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    def of_account(self, channel: str, account_id: str) -> AccountInbox:
        """The inbox as one account of a channel sees it."""
        return AccountInbox(self, channel, account_id)

    async def accept(
        self, channel: str, account_id: str, events: Sequence[Inbound], cursor: str | None
    ) -> int:
        """Store messages and the position of the channel. Returns how many were new."""
        crashpoints.point("before-inbox")
        try:
            new = await self._store.write(self._take, channel, account_id, events, cursor)
        except StoreError:
            raise
        except Exception:  # a fault of ours: one message must not keep the channel from going on
            _log.exception("messages of %s not taken, they are taken one by one", channel)
            new = await self._take_singly(channel, account_id, events, cursor)
        crashpoints.point("after-inbox")
        for event in new:
            _log.log(
                logging.INFO if event.state == "refused" else logging.DEBUG,
                "message %s from %s on %s: %s%s",
                event.event_id,
                event.sender_id,
                channel,
                f"refused ({event.code}): {event.why}" if event.state == "refused" else event.state,
                f" To allow it: {event.fix}" if event.state == "refused" and event.fix else "",
            )
        return len(new)

    async def _take_singly(
        self, channel: str, account_id: str, events: Sequence[Inbound], cursor: str | None
    ) -> list[InboxEvent]:
        """Store messages one at a time; one that cannot be processed is refused, and the reason logged."""
        new: list[InboxEvent] = []
        for event in events:
            try:
                new += await self._store.write(self._take, channel, account_id, [event], None)
            except StoreError:
                raise
            except Exception:  # a fault of ours, logged and recorded: the messages behind it go on
                _log.exception("message %s of %s cannot be processed", event.event_id, channel)
                row = inbox_rows.row(channel, account_id, inbox_rows.bounded(event), _BROKEN)
                await self._store.write(inbox.add, row)
                new.append(row)
        await self._store.write(self._take, channel, account_id, [], cursor)
        return new

    async def run(self) -> None:
        """Make turns of the messages that wait, as they become due, until cancelled."""
        self._store.watch(self._on_changes)
        async with asyncio.TaskGroup() as group:
            while True:
                self._wakeup.clear()
                try:
                    due_at = self._start_due(group, await self._store.read(inbox.waiting))
                except StoreError as error:
                    _log.error("store unavailable, messages from chats wait: %s", error)
                    due_at = now_ms() + int(_STORE_RETRY_S * 1000)
                left_s = None if due_at is None else max(0, due_at - now_ms()) / 1000
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._wakeup.wait()

    def _start_due(self, group: asyncio.TaskGroup, waiting: list[InboxEvent]) -> int | None:
        """Start on the chats whose messages are due. Returns when the next ones are, in milliseconds."""
        chats: dict[Chat, list[InboxEvent]] = {}
        for event in waiting:
            if self._accounts.is_held(event.channel, event.account_id):
                chats.setdefault(Chat.of(event), []).append(event)
        times = []
        for chat, events in chats.items():
            if chat in self._working:
                continue  # it wakes this loop when it is done
            due_at = max(event.due_at_ms or 0 for event in events)
            if due_at > now_ms():
                times.append(due_at)
                continue
            task = group.create_task(self._take_up(chat, events), name=f"messages of {chat.chat_id}")
            self._working[chat] = task
        return min(times, default=None)

    async def _take_up(self, chat: Chat, events: list[InboxEvent]) -> None:
        """Make turns of the waiting messages of one chat, in order."""
        try:
            for joined in inbox_rows.joined(events, self._is_command):
                files = await self._fetch(chat, joined)
                await self._store.write(self._start_waiting, joined, files)
        except StoreError as error:
            _log.error("store unavailable, messages of %s wait: %s", chat.chat_id, error)
            await asyncio.sleep(_STORE_RETRY_S)
        except Exception:  # a fault of ours: these messages are given up, the others go on
            _log.exception("messages of %s cannot be processed", chat.chat_id)
            await self._give_up(events)
        finally:
            self._working.pop(chat, None)
            self._wakeup.set()

    async def _give_up(self, events: list[InboxEvent]) -> None:
        try:
            await self._store.write(inbox.settle, events, "refused", code=_BROKEN.code, why=_BROKEN.why)
        except StoreError as error:
            _log.error("store unavailable, messages wait: %s", error)
            await asyncio.sleep(_STORE_RETRY_S)

    async def _fetch(self, chat: Chat, events: list[InboxEvent]) -> FetchedMedia:
        media = [item for event in events for item in inbox_rows.body(event).media]
        if not media:
            return FetchedMedia()
        channel: Channel | None = self._accounts.find(chat.channel, chat.account_id)
        session = events[0].session_key or ""
        elsewhere = None
        if own := self._settings.home_name:
            elsewhere = await self._store.read(homes.elsewhere, session, own)
        return await self._media.fetch(
            channel, chat.channel, chat.account_id, session, media, elsewhere=elsewhere
        )

    def wake(self) -> None:
        """Look again: there may be more accounts to work for."""
        self._wakeup.set()

    def _on_changes(self, changes: list[Change]) -> None:
        if any(isinstance(change, InboxChanged) and change.event.state == "waiting" for change in changes):
            self._wakeup.set()

    # -- in a transaction

    def _take(
        self, tx: Tx, channel: str, account_id: str, events: Sequence[Inbound], cursor: str | None
    ) -> list[InboxEvent]:
        new = []
        for event in events:
            if name := inbox_rows.too_long(event):
                _log.warning("message on %s skipped: its %s is too long", channel, name)
            elif inbox.find(tx, channel, account_id, event.event_id) is None:
                new.append(self._take_or_refuse(tx, channel, account_id, inbox_rows.bounded(event)))
        if cursor is not None:
            inbox.set_cursor(tx, channel, account_id, cursor)
        return new

    def _take_or_refuse(self, tx: Tx, channel: str, account_id: str, event: Inbound) -> InboxEvent:
        """A message that cannot be handled must not hold up those behind it."""
        try:
            return self._take_one(tx, channel, account_id, event)
        except BadKey as error:
            _log.error("message %s on %s refused: %s", event.event_id, channel, error)
            decision = Decision(action="refuse", code="message.bad", why=str(error))
            row = inbox_rows.row(channel, account_id, event, decision)
            inbox.add(tx, row)
            return row

    def _take_one(self, tx: Tx, channel: str, account_id: str, event: Inbound) -> InboxEvent:
        decision = self._decide(tx, channel, account_id, event)
        row = inbox_rows.row(channel, account_id, event, decision)
        chat = Chat.of(row)
        match decision.action:
            case "turn":
                queued = inbox.waiting_in(tx, chat)
                if decision.debounce_ms or event.media or queued:
                    wait = max(decision.debounce_ms, ALBUM_MS if event.media else 0)
                    row = replace(row, state="waiting", due_at_ms=inbox_rows.due_at(queued, wait))
                    inbox.postpone(tx, chat, row.due_at_ms or 0)
                else:
                    row = self._start(tx, channel, account_id, [row], [event], decision, FetchedMedia())
            case "command" if not _is_urgent(event.text) and inbox.waiting_in(tx, chat):
                row = replace(row, state="waiting", due_at_ms=now_ms())
                inbox.postpone(tx, chat, now_ms())  # what was written before the command comes first
            case "command":
                row = self._start(tx, channel, account_id, [row], [event], decision, FetchedMedia())
            case "pair":
                self._pair(tx, channel, account_id, event)
            case "refuse" if decision.code == "command.not_owner" and event.chat_type == "direct":
                self._notify(tx, channel, account_id, event, "Commands are for the owners of this bot.")
        inbox.add(tx, row)
        if decision.action == "context":
            self._trim_context(tx, chat, event.thread_id, channel, account_id)
        return row

    def _start_waiting(self, tx: Tx, rows: list[InboxEvent], files: FetchedMedia) -> None:
        """Make one turn of messages that waited. The decision is taken again: settings may have changed."""
        rows = inbox.still_waiting(tx, rows)
        if not rows:
            return
        first, events = rows[0], [inbox_rows.body(row) for row in rows]
        decisions = [self._decide(tx, first.channel, first.account_id, event) for event in events]
        decision = replace(decisions[-1], addressed=any(each.addressed for each in decisions))
        if decision.action in ("turn", "command"):
            row = self._start(tx, first.channel, first.account_id, rows, events, decision, files)
            inbox.settle(
                tx,
                rows,
                row.state,
                code=row.code,
                why=row.why,
                fix=row.fix,
                session_key=row.session_key,
                turn_id=row.turn_id,
            )
        else:
            inbox.settle(tx, rows, "refused", code=decision.code, why=decision.why)

    def _start(
        self,
        tx: Tx,
        channel: str,
        account_id: str,
        rows: Sequence[InboxEvent],
        events: Sequence[Inbound],
        decision: Decision,
        files: FetchedMedia,
    ) -> InboxEvent:
        """Accept messages as one turn, or as a command. Returns the last row with what became of it."""
        last, row = events[-1], rows[-1]
        provenance = briefings.from_chat(channel, last, owner=decision.owner)
        if context := self._context(tx, Chat.of(row), last.thread_id, decision, rows[0].seq):
            provenance["context"] = context
        if notes := files.notes:
            provenance["notes"] = list(notes)
        text = "\n".join(filter(None, (event.text.strip() for event in events))) or "(a file without text)"
        group = decision.group
        message = InboundMessage(
            text,
            options=TurnOptions(extra_system=group.system_prompt if group else None),
            plain=decision.action != "command",
            provenance=provenance,
            chat=ChatOrigin(
                reply=inbox_rows.reply_address(channel, account_id, last, decision, joined=len(events) > 1),
                moves_route=decision.moves_route,
                display_name=inbox_rows.display_name(last, decision),
                images=files.images,
            ),
        )
        sender = policy.Operator(
            f"{channel}:{last.sender.id}",
            ("operator.admin",) if decision.owner else ("operator.write",),
            None if decision.owner else (decision.agent_id,),
        )
        try:
            check_message(self._settings, text)
            turn = sending.accept_message(
                tx, self._settings, self._models, self._effects, sender, decision.session_key, message
            )
        except HobnobError as error:
            code = error.reported_code
            if decision.addressed and code not in _SILENT:
                self._notify(tx, channel, account_id, last, f"⚠️ {error.message}")
            why = " ".join(filter(None, (error.message, error.fix)))
            return replace(row, state="refused", code=code, why=why, body=None)
        if files.stored and (own := self._settings.home_name):
            homes.settle(tx, turn.session_key, own)
        if bound := threads.of_session(tx, decision.session_key):
            threads.used(tx, bound)
        state: InboxState = "command" if decision.action == "command" else "turn"
        return replace(row, state=state, turn_id=turn.turn_id, session_key=turn.session_key)

    def _context(
        self, tx: Tx, chat: Chat, thread_id: str | None, decision: Decision, before: int | None
    ) -> list[dict[str, str]]:
        """What was said since the bot last answered, for the agent; it is shown once."""
        if not decision.history_limit:
            return []
        found = inbox.context(tx, chat, thread_id, decision.history_limit)
        earlier = [row for row in found if before is None or (row.seq or 0) < before]
        if earlier:
            inbox.shown(tx, chat, thread_id, earlier[-1].seq or 0)
        return [
            {"sender": row.sender_name or row.sender_id, "text": inbox_rows.body(row).text[:_CONTEXT_CHARS]}
            for row in earlier
        ]

    def _trim_context(self, tx: Tx, chat: Chat, thread_id: str | None, channel: str, account_id: str) -> None:
        """Keep the texts of the newest messages only."""
        account = self._accounts.settings_of(channel, account_id)
        limit = routing.history_limit(self._settings, account) if account else 0
        kept = inbox.context(tx, chat, thread_id, limit + 1)
        if len(kept) > limit:
            inbox.shown(tx, chat, thread_id, kept[0].seq or 0)

    def _decide(self, tx: Tx, channel: str, account_id: str, event: Inbound) -> Decision:
        facts = self._facts(tx, channel, account_id, event)
        return routing.decide(self._settings, channel, account_id, event, facts)

    def _facts(self, tx: Tx, channel: str, account_id: str, event: Inbound) -> Facts:
        pairing = pairings.find(tx, channel, account_id, event.sender.id)
        approved = pairing is not None and pairing.state == "approved"
        account = self._accounts.settings_of(channel, account_id)
        pairs = account is not None and account.dm_policy == "pairing" and event.chat_type == "direct"
        bound = self._bound_thread(tx, channel, account_id, event.address)
        bot_messages = 0
        if event.sender.is_bot:
            window = self._settings.channels.defaults.bot_loop_protection.window_seconds
            since = now_ms() - window * 1000
            chat = Chat(channel, account_id, event.chat_id)
            bot_messages = inbox.count_of_bot(tx, chat, event.sender.id, since)
        return Facts(
            paired=approved,
            paired_owner=approved and pairing is not None and pairing.is_owner,
            has_paired_owner=pairings.has_owner(tx, channel),
            pairing_pending=pairing is not None and not approved,
            open_requests=pairings.count_open(tx, channel, account_id) if pairs and pairing is None else 0,
            bound_to=bound.session_key if bound else None,
            bot_messages=bot_messages,
            is_command=self._is_command(event.text),
        )

    def _is_command(self, text: str) -> bool:
        """Whether a message is a slash command, or begins with a word that starts a new conversation."""
        triggers = self._settings.session.reset_triggers
        return slash_commands.parse(text) is not None or resets.split_trigger(triggers, text) is not None

    def _bound_thread(self, tx: Tx, channel: str, account_id: str, place: Address) -> BoundThread | None:
        """The binding of a thread; one that is over is given back."""
        bound = threads.at(tx, channel, account_id, place.to, place.thread_id) if place.thread_id else None
        if bound is None:
            return None
        reason = threads.expired(bound, now_ms())
        if bound.mode == "run" and not exchange_rows.open_of(tx, bound.session_key):
            reason = "the task is done"
        if reason is None:
            return bound
        threads.close(tx, bound, reason)
        return None

    def _pair(self, tx: Tx, channel: str, account_id: str, event: Inbound) -> None:
        pairing = pairings.request(
            tx,
            Pairing(
                channel=channel,
                account_id=account_id,
                sender_id=event.sender.id,
                sender_name=event.sender.name or event.sender.username,
                recipient=event.address.to,
                code=pairings.new_code(),
                expires_at_ms=now_ms() + pairings.VALID_MS,
            ),
        )
        text = (
            f"This bot does not know you yet. Your pairing code is {pairing.code}. "
            f"Its owner can let you in with: hobnob pairing approve {channel} {pairing.code} "
            "(valid for one hour)."
        )
        self._notify(tx, channel, account_id, event, text, pairing=True)

    def _notify(
        self, tx: Tx, channel: str, account_id: str, event: Inbound, text: str, *, pairing: bool = False
    ) -> None:
        """Tell the sender something that belongs to no session."""
        route = DeliveryRoute(channel, event.address.to, account_id, event.address.thread_id)
        deliveries.create(tx, route.delivery("", text, kind="pairing" if pairing else "notice"))


def _is_urgent(text: str) -> bool:
    """Whether a command does not wait for messages before it: it ends, or answers, what runs now."""
    parsed = slash_commands.parse(text)
    return parsed is not None and (parsed.command.immediate or parsed.command.name == "stop")


class AccountInbox:
    """The inbox of one account of a channel, as channels use it."""

    def __init__(self, chats: ChatInbox, channel: str, account_id: str) -> None:
        self._chats = chats
        self._channel = channel
        self._account_id = account_id

    async def accept(self, events: Sequence[Inbound], cursor: str | None = None) -> int:
        self._chats._accounts.received(self._channel, self._account_id, len(events))
        return await self._chats.accept(self._channel, self._account_id, events, cursor)

    async def cursor(self) -> str | None:
        return await self._chats._store.read(inbox.cursor, self._channel, self._account_id)

    async def chats(self) -> list[KnownChat]:
        rows = await self._chats._store.read(inbox.chats, self._channel, self._account_id)
        return [
            KnownChat(str(chat), thread, Address(str(to), reply_thread), str(event))
            for chat, thread, to, reply_thread, event in rows
        ]

    async def confirm(self, key: str, external_id: str) -> None:
        await self._chats._store.write(confirm, key, external_id)

    async def refute(self, key: str, why: str) -> None:
        await self._chats._store.write(refute, key, redact.text(why)[0])


def confirm(tx: Tx, key: str, external_id: str) -> None:
    """Settle a delivery that was ambiguous, by the key of one of its parts."""
    delivery, part = _delivery_of(tx, key)
    if delivery is not None and part.isdigit():
        deliveries.confirm(tx, delivery, int(part), external_id)


def refute(tx: Tx, key: str, why: str) -> None:
    """Fail a delivery that the platform had accepted, by the key of one of its parts."""
    delivery, _ = _delivery_of(tx, key)
    if delivery is not None:
        deliveries.refute(tx, delivery, why)


def _delivery_of(tx: Tx, key: str) -> tuple[Delivery | None, str]:
    return deliveries.find(tx, key[:_ID_CHARS]), key[_ID_CHARS + 1 :]
