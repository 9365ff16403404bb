"""The pump: sends deliveries through their channels.

Each recipient has a lane: its deliveries are sent one at a time, in order, so that a chat that is slow or
limited holds up no other. A delivery is divided into parts when it is first claimed, and each part that went
out is recorded, so that no retry repeats it. If the receipt of a part was lost, the channel looks it up, or
the part is repeated where that has no second effect, or it is recorded as ambiguous.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any, Literal, Protocol

import orjson

from hobnob import crashpoints, redact
from hobnob.channels import LoginNeeded, NotNoted, NotNow, Outgoing, Undeliverable
from hobnob.channels.text import split
from hobnob.chats.accounts import OTHERS, Accounts
from hobnob.chats.drafts import Drafts
from hobnob.chats.media import outgoing_file
from hobnob.cluster import Cluster
from hobnob.config import Config
from hobnob.config.channels import default_account
from hobnob.effects import Effects
from hobnob.errors import Fenced, StoreError
from hobnob.events import Change, DeliveryChanged
from hobnob.inbound import Address
from hobnob.records import Struct, replace
from hobnob.store import Store, Tx, deliveries
from hobnob.store.deliveries import Lane
from hobnob.store.engine.tx import P, T, Verb
from hobnob.types import Delivery, DeliveryState, now_ms

MAX_ATTEMPTS = 12
MAX_AGE_MS = 24 * 3_600_000  # of a delivery that a rate limit keeps waiting
SEND_TIMEOUT_S = 60.0
_FIRST_RETRY_MS, _MAX_RETRY_MS = 1_000, 15 * 60_000
_MIN_LIMIT_S, _MAX_LIMIT_S = 0.25, 3_600.0
_PAUSED_S = 5.0  # between looks whether an account that an operator stopped was started
_UNKNOWN_MS = 60_000  # a delivery waits so long for another gateway that knows its account
_UNSURE_S = 0.25  # until a delivery is tried again that another gateway may have taken over
_SENDING_AT_A_TIME = 16  # per account
_STORE_RETRY_S = 1.0
_STOP_S = 5.0
_log = logging.getLogger(__name__)


class Outcome(Struct, frozen=True):
    """The result of an attempt to send one part.

    `sent` has the platform's id. `limited` and `released` are not counted as attempts. `lost`: it may have
    been sent, and whether it was can be looked up unless it is not `provable`. `tried_by`: the gateway of an
    earlier attempt that may have sent it. `undrafted`: its draft could not become it, and nothing was sent.
    """

    kind: Literal["sent", "limited", "released", "again", "refused", "lost", "undrafted"]
    external_id: str | None = None
    why: str | None = None
    after_s: float = 0.0
    provable: bool = True
    tried_by: str | None = None


class BuiltIn(Protocol):
    """A channel of the gateway itself. It takes whole deliveries, and may be given one again."""

    @property
    def name(self) -> str: ...

    async def post(self, delivery: Delivery) -> str:
        """Send a delivery. Returns an id of it. Raises what `Channel.send` may raise."""
        ...


class Pump:
    def __init__(
        self,
        store: Store,
        config: Config,
        effects: Effects,
        accounts: Accounts,
        built_in: Iterable[BuiltIn],
        cluster: Cluster,
    ) -> None:
        self._cluster = cluster
        self._roles: set[str] = set()  # whose interrupted deliveries this gateway has recovered
        self._store = store
        self._config = config
        self._effects = effects
        self._accounts = accounts
        self._built_in = {channel.name: channel for channel in built_in}
        self._group: asyncio.TaskGroup | None = None
        self._lanes: dict[Lane, asyncio.Event] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._paused_until: dict[tuple[str, str | None], float] = {}
        self._slots: dict[tuple[str, str | None], asyncio.Semaphore] = {}
        self._limits: set[asyncio.Timeout] = set()  # of what is being sent
        self.drafts = Drafts()

    async def run(self) -> None:
        """Recover the deliveries of an earlier process, then deliver until cancelled."""
        self._store.watch(self._on_changes)
        self._cluster.rechecks.append(self._recheck)
        self._cluster.polls.append(self._recheck)  # also when a gateway was found dead
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._cluster.lead(OTHERS, self._lead_others)

    async def _lead_others(self) -> None:
        """Alone, this gateway leads everything; else what belongs to no account."""
        async with self.serving(OTHERS if self._cluster.shared else None):
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def serving(self, role: str | None) -> AsyncIterator[None]:
        """Recover what a dead gateway was sending in this role, None for all roles; then send what waits."""
        await self._store.write(self._recover, {role or ""})
        self._roles.add(role or "")
        try:
            await self._wake_waiting()
            yield
        finally:
            self._roles.discard(role or "")

    async def _recheck(self) -> None:
        """Recover what gateways were sending that are found dead only now, and send what waits."""
        left = await self._store.read(deliveries.interrupted, self._cluster.gateway_id)
        if any(self._is_ours_to_recover(delivery, self._roles) for delivery in left):
            await self._store.write(self._recover, self._roles)
        await self._wake_waiting()

    async def _wake_waiting(self) -> None:
        """Wake the lanes of all that waits: the message of another gateway about it may have been lost."""
        if self._roles:
            for lane in await self._store.read(deliveries.lanes):
                self._wake(lane)

    async def stop(self) -> None:
        """Claim nothing more, and wait a little for what is being sent: cut off, it would be ambiguous."""
        self._stopping = True
        for wakeup in self._lanes.values():
            wakeup.set()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_STOP_S)

    def end_sends(self, within_s: float) -> None:
        """Give up what is still being sent by then: another gateway will send the next message."""
        at = asyncio.get_running_loop().time() + within_s
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(min(limit.when() or at, at))

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, DeliveryChanged):
                delivery = change.delivery
                # While another gateway was sending, what waits for the same recipient could not be claimed.
                if delivery.state == "pending" or delivery.claimed_by not in (None, self._cluster.gateway_id):
                    self._wake(Lane.of(delivery))

    def _serves(self, lane: Lane, roles: Collection[str] | None = None) -> bool:
        roles = self._roles if roles is None else roles
        role = self._accounts.role_of(lane.channel, lane.account_id)
        return "" in roles or (role in roles and not (role == OTHERS and self._is_served_elsewhere(lane)))

    def _is_served_elsewhere(self, lane: Lane) -> bool:
        """Whether another gateway has the account of a recipient: its settings may be newer."""
        root = self._config.settings.channels.configured.get(lane.channel)
        account_id = lane.account_id or (default_account(root) if root else None)
        if account_id is not None:
            return f"channel:{lane.channel}:{account_id}" in self._cluster.roles_elsewhere
        return any(role.startswith(f"channel:{lane.channel}:") for role in self._cluster.roles_elsewhere)

    def _wake(self, lane: Lane) -> None:
        if not self._serves(lane):
            return
        if (wakeup := self._lanes.get(lane)) is not None:
            wakeup.set()
        elif self._group is not None and not self._stopping:
            self._lanes[lane] = asyncio.Event()
            name = f"deliveries to {lane.channel} {lane.recipient}"
            task = self._group.create_task(self._serve(lane), name=name)
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, lane: Lane) -> None:
        """Send the deliveries of one recipient until none is left."""
        wakeup = self._lanes[lane]
        try:
            while True:
                wakeup.clear()
                if self._stopping or not self._serves(lane):
                    return
                try:
                    async with self._slot(lane):
                        await self._unpaused((lane.channel, lane.account_id))
                        found = await self._store.write(
                            self._effects.claim_delivery, lane, self._divide, self._cluster.gateway_id
                        )
                        if found.delivery is not None:
                            if await self._deliver(found.delivery, found.tried_by) and not wakeup.is_set():
                                return
                            continue
                except StoreError as error:  # for example a full disk: the row is as after a crash
                    _log.error("store unavailable, deliveries to %s wait: %s", lane.channel, error)
                    await asyncio.sleep(_STORE_RETRY_S)
                    continue
                except Exception:  # a fault of ours: the other lanes go on
                    _log.exception("deliveries to %s on %s stopped", lane.recipient, lane.channel)
                    return
                due_at_ms = found.due_at_ms
                if due_at_ms is None and not wakeup.is_set():
                    return
                left_s = None if due_at_ms is None else max(0, due_at_ms - now_ms()) / 1000
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):  # not wait_for: that can swallow a cancellation
                        await wakeup.wait()
        finally:
            del self._lanes[lane]

    def _divide(self, delivery: Delivery) -> list[dict[str, Any]]:
        """The parts of a delivery: its text, split for its channel, then its files."""
        account = self._accounts.settings_of(delivery.channel, delivery.account_id)
        channel = self._accounts.find(delivery.channel, delivery.account_id)
        if delivery.kind == "thread" or account is None or channel is None:
            return [{"text": delivery.text}]
        text, abilities = delivery.text, channel.capabilities
        if delivery.kind == "reply":
            prefix = account.response_prefix
            prefix = self._config.settings.messages.response_prefix if prefix is None else prefix
            text = f"{prefix} {text}" if prefix else text
        limit = min(account.text_chunk_limit or abilities.text_limit, abilities.text_limit)
        texts = split(text, limit, abilities.measure, account.streaming.chunk_mode) if text.strip() else []
        files = orjson.loads(delivery.files) if delivery.files else []
        parts: list[dict[str, Any]] = [{"text": each} for each in texts]
        parts += [{"text": "", "file": file} for file in files]
        mode = account.reply_to_mode or "off"
        for number, part in enumerate(parts):
            if delivery.reply_to and (mode == "all" or (mode in ("first", "batched") and number == 0)):
                part["reply_to"] = delivery.reply_to
        return parts or [{"text": text}]

    async def _deliver(self, delivery: Delivery, tried_by: str | None) -> bool:
        """Send the parts of a delivery that are left, and record what became of each.

        The first of them may have gone out by the gateway `tried_by`. Returns whether none is left for the
        recipient.
        """
        parts = orjson.loads(delivery.parts or "[]") or [{"text": delivery.text}]
        try:
            for number in range(len(orjson.loads(delivery.part_ids)), len(parts)):
                if self._serves(Lane.of(delivery)):
                    if number == 0:
                        delivery = await self._with_draft(delivery, parts[0])
                    outcome = await self._send(delivery, parts[number], number, tried_by)
                    if outcome.kind == "undrafted":
                        delivery = await self._stored(deliveries.note_draft, delivery, None)
                        outcome = await self._send(delivery, parts[number], number, tried_by)
                else:  # another gateway has the account now and goes on with this part
                    outcome = Outcome("released")
                outcome, tried_by = replace(outcome, tried_by=tried_by), None
                last = number == len(parts) - 1
                delivery, is_last = await self._recorded(delivery, outcome, last)
                if delivery.state != "sending":
                    return is_last
        except Fenced:
            why = "its session was deleted, or another gateway has taken it over"
            _log.info("result of delivery %s not recorded: %s", delivery.delivery_id, why)
        return False

    async def _recorded(self, delivery: Delivery, outcome: Outcome, last: bool) -> tuple[Delivery, bool]:
        """What was sent is recorded as soon as the store can: until then it counts as being sent."""
        return await self._stored(self._record_and_look, delivery, outcome, last)

    async def _stored(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write with retries, as long as the store is unavailable."""
        while True:
            try:
                return await self._store.write(verb, *args, **kwargs)
            except StoreError as error:
                _log.error("store unavailable, a delivery that is being sent waits: %s", error)
                await asyncio.sleep(_STORE_RETRY_S)

    async def _with_draft(self, delivery: Delivery, part: dict[str, Any]) -> Delivery:
        """Note the draft that is to become the first part, if there is one."""
        draft_id = delivery.external_id or await self.drafts.take(delivery, has_text="file" not in part)
        if draft_id is None or draft_id == delivery.external_id:
            return delivery
        try:
            return await self._stored(deliveries.note_draft, delivery, draft_id)
        except Fenced:  # another gateway sends the answer as a new message
            if channel := self._accounts.find(delivery.channel, delivery.account_id):
                await self.drafts.remove(channel, Address(delivery.recipient, delivery.thread_id), draft_id)
            raise

    def _slot(self, lane: Lane) -> asyncio.Semaphore:
        return self._slots.setdefault((lane.channel, lane.account_id), asyncio.Semaphore(_SENDING_AT_A_TIME))

    async def _unpaused(self, place: tuple[str, str | None]) -> None:
        """Wait while the platform limits the whole account."""
        left_s = self._paused_until.get(place, 0.0) - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _send(
        self, delivery: Delivery, part: dict[str, Any], number: int, tried_by: str | None
    ) -> Outcome:
        crashpoints.point("before-delivery")
        try:
            async with self._send_limit():
                outcome = await self._attempt(delivery, part, number, tried_by)
        except NotNow as limit:
            limit.after_s = limit.after_s if math.isfinite(limit.after_s) else _MIN_LIMIT_S
            if limit.scope == "account":
                place = (delivery.channel, delivery.account_id)
                until = asyncio.get_running_loop().time() + min(limit.after_s, _MAX_LIMIT_S)
                self._paused_until[place] = until
            outcome = Outcome("limited", why=str(limit), after_s=limit.after_s)
        except Undeliverable as refused:
            outcome = Outcome("again" if refused.again else "refused", why=str(refused))
        except LoginNeeded as error:
            self._accounts.login_needed(delivery.channel, delivery.account_id, str(error))
            outcome = Outcome("refused", why=str(error))
        except (Exception, asyncio.CancelledError) as fault:  # whether the message went out is unknown
            task = asyncio.current_task()
            if isinstance(fault, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            _log.warning("receipt of delivery %s lost: %s", delivery.delivery_id, redact.text(str(fault))[0])
            outcome = Outcome("lost", why=f"{type(fault).__name__}: {redact.text(str(fault))[0]}")
        crashpoints.point("after-delivery")
        return outcome

    @contextlib.asynccontextmanager
    async def _send_limit(self) -> AsyncIterator[None]:
        async with asyncio.timeout(SEND_TIMEOUT_S) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def _check_held(self, delivery: Delivery) -> None:
        """Refuse to send what another gateway may have taken over: it would come after the next message."""
        if not self._cluster.still_holds(delivery.claimed_by):
            raise NotNow("The others may take this gateway for dead.", _UNSURE_S)

    async def _attempt(
        self, delivery: Delivery, part: dict[str, Any], number: int, tried_by: str | None
    ) -> Outcome:
        self._check_held(delivery)
        if built_in := self._built_in.get(delivery.channel):
            return Outcome("sent", await built_in.post(delivery))
        channel = self._accounts.find(delivery.channel, delivery.account_id)
        if channel is None:
            why = f"The channel {delivery.channel} is not configured, or its account is disabled."
            if self._cluster.others and now_ms() - delivery.created_at_ms < _UNKNOWN_MS:
                raise NotNow(f"{why} Another gateway may have it.", _PAUSED_S)
            return Outcome("refused", why=why)
        if self._accounts.is_paused(delivery.channel, delivery.account_id):
            raise NotNow("An operator stopped the account; channels.start starts it.", _PAUSED_S)
        address = Address(delivery.recipient, delivery.thread_id)
        if delivery.kind == "thread":
            return Outcome("sent", await channel.open_thread(address, part["text"], delivery.reply_to))
        outgoing = Outgoing(
            key=f"{delivery.delivery_id}:{number}",
            address=address,
            text=part["text"],
            reply_to=part.get("reply_to"),
            file=outgoing_file(part.get("file"), self._config.home / "outgoing"),
        )
        if number == 0 and delivery.external_id is not None:
            done = await self.drafts.complete(channel, outgoing, delivery.external_id)
            return Outcome("sent", delivery.external_id) if done else Outcome("undrafted")
        if delivery.attempts > 1 and channel.capabilities.finds_sent:
            try:
                if found := await channel.find(outgoing):
                    return Outcome("sent", found)
            except NotNoted:
                if self._notes_are_elsewhere(tried_by):
                    why = "another gateway was sending it, and its notes are not on this disk"
                    return Outcome("lost", why=why, provable=False)
            self._check_held(delivery)  # looking took its time
        sent = await channel.send(outgoing)
        self._accounts.sent(delivery.channel, delivery.account_id)
        return Outcome("sent", str(sent))

    # -- in a transaction

    def _record_and_look(
        self, tx: Tx, delivery: Delivery, outcome: Outcome, last: bool
    ) -> tuple[Delivery, bool]:
        """Record a result. Also returns whether nothing more waits for the recipient."""
        after = self._record(tx, delivery, outcome, last)
        if after.state == "sending":
            return after, False
        return after, deliveries.head(tx, Lane.of(after), self._cluster.gateway_id) is None

    def _record(self, tx: Tx, delivery: Delivery, outcome: Outcome, last: bool) -> Delivery:
        """Record the result of an attempt to send the current part."""
        if outcome.kind == "lost" and outcome.provable and self._resend(delivery):
            outcome = Outcome("again", why=outcome.why, tried_by=delivery.claimed_by)
        if outcome.kind in ("sent", "lost"):
            if not last:
                return deliveries.progress(tx, delivery, outcome.external_id)
            delivery = deliveries.with_part(delivery, outcome.external_id)
            unknown = None in orjson.loads(delivery.part_ids)
            why = outcome.why or ("the receipt of a part was lost" if unknown else None)
            state: DeliveryState = "ambiguous" if unknown else "delivered"
            return self._effects.settle_delivery(tx, delivery, state=state, error=why)
        if outcome.kind == "released":
            tried_by = outcome.tried_by
            return self._effects.settle_delivery(
                tx, delivery, state="pending", counted=False, tried_by=tried_by
            )
        if outcome.kind == "limited":
            return self._postpone(tx, delivery, outcome)
        again = outcome.kind == "again" and delivery.attempts < MAX_ATTEMPTS
        pause = min(_FIRST_RETRY_MS * 2 ** (delivery.attempts - 1), _MAX_RETRY_MS)
        return self._effects.settle_delivery(
            tx,
            delivery,
            state="pending" if again else "failed",
            error=outcome.why,
            next_attempt_at_ms=now_ms() + pause if again else None,
            tried_by=outcome.tried_by,
        )

    def _postpone(self, tx: Tx, delivery: Delivery, outcome: Outcome) -> Delivery:
        """Wait for a rate limit to end; give up only when the delivery is a day old."""
        if now_ms() - delivery.created_at_ms > MAX_AGE_MS:
            why = f"given up after {MAX_AGE_MS // 3_600_000} hours: {outcome.why}"
            return self._effects.settle_delivery(tx, delivery, state="failed", error=why)
        after_s = min(max(outcome.after_s, _MIN_LIMIT_S), _MAX_LIMIT_S)
        after_s *= random.uniform(1.0, 1.05)  # noqa: S311 - spreads retries, no secret
        return self._effects.settle_delivery(
            tx,
            delivery,
            state="pending",
            error=outcome.why,
            next_attempt_at_ms=now_ms() + int(after_s * 1000),
            counted=False,
            tried_by=outcome.tried_by,
        )

    def _resend(self, delivery: Delivery) -> bool:
        """Whether a part whose receipt was lost may be tried again, because a repeat has no second effect."""
        if delivery.attempts >= MAX_ATTEMPTS:
            return False
        if delivery.channel in self._built_in:
            return True
        channel = self._accounts.find(delivery.channel, delivery.account_id)
        if channel is None or delivery.kind == "thread":
            return False
        if delivery.external_id is not None and delivery.part_ids == "[]":  # a draft is changed again
            return True
        age_s = (now_ms() - (delivery.part_started_at_ms or 0)) / 1000
        return channel.capabilities.finds_sent or age_s < channel.capabilities.repeatable_s

    def _notes_are_elsewhere(self, tried_by: str | None) -> bool:
        """Whether what its channel noted about an attempt may be on the disk of another gateway."""
        has_own_disk = self._cluster.shared and self._config.settings.home_name is not None
        return has_own_disk and tried_by not in (None, self._cluster.gateway_id)

    def _recover(self, tx: Tx, roles: Collection[str]) -> None:
        """Requeue deliveries a dead process was sending; a part that may have gone out is not sent again."""
        for delivery in deliveries.interrupted(tx, self._cluster.gateway_id):
            if self._is_ours_to_recover(delivery, roles):
                with contextlib.suppress(Fenced):  # its gateway lives after all and has recorded the result
                    self._requeue(tx, delivery)

    def _is_ours_to_recover(self, delivery: Delivery, roles: Collection[str]) -> bool:
        """Whether it is for whoever has these roles to recover a delivery that was interrupted.

        What this gateway has claimed is its own to recover, whatever roles it has.
        """
        lane = Lane.of(delivery)
        if lane in self._lanes:  # it is being sent here, since before the role was lost for a moment
            return False
        return delivery.claimed_by == self._cluster.gateway_id or self._serves(lane, roles)

    def _requeue(self, tx: Tx, delivery: Delivery) -> None:
        why = "Hobnob was stopped while it was being sent"
        tried_by = delivery.claimed_by
        if not self._resend(delivery):
            delivery, tried_by = deliveries.progress(tx, delivery, None), None
        done, parts = orjson.loads(delivery.part_ids), orjson.loads(delivery.parts or "[]") or [None]
        state: DeliveryState = "ambiguous" if len(done) >= len(parts) and None in done else "pending"
        self._effects.settle_delivery(tx, delivery, state=state, error=why, tried_by=tried_by)
