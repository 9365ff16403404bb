"""A gateway as a member of a cluster on PostgreSQL.

It beats twice a second on a connection of its own, which also holds its locks, and looks for gateways that
are dead. A gateway that cannot beat for six seconds ends what it does (`on_fence`): two seconds later the
others take it for dead and run its turns. Fencing numbers protect rows, but not what a program does.

A gateway whose lock is free is found dead at once, though it may live: its connection broke. So the others
run its turns, but do not send to its chats before eight seconds without a beat; it sends nothing after six.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson
import psycopg

from hobnob.cluster import SILENT_AFTER_S, GatewayInfo, Handler, Interest, members
from hobnob.cluster.activity import Activity, loop_was_blocked, stood_still
from hobnob.cluster.listener import CHANNEL, STEP_S, Listener, own_channel
from hobnob.cluster.mailbox import Mailbox
from hobnob.cluster.members import Beat, Member
from hobnob.errors import HobnobError, StoreClosed, StoreInUse, unwrap_exception_group
from hobnob.store.engine import postgres_server as server
from hobnob.store.engine.postgres import PostgresStore
from hobnob.store.engine.tx import Store

T = TypeVar("T")

BEAT_S = 0.5
FENCE_AFTER_S = 6.0  # without a confirmed beat
ROLE_POLL_S = 0.5
RECHECK_S = 2.0
POLL_S = 5.0
_CALL_LIMIT_S = 4.0  # of one look at the database
_REMOVE_ATTEMPTS = 5  # a gateway may beat between the look and its removal
_LISTENING = "listening"  # the kind of the message that a gateway sends when it begins to hear
_CLIENTS = 50  # connected clients that other gateways can show
_log = logging.getLogger(__name__)


def _boot_time() -> float:
    """Seconds that never go back, with those in which the machine was suspended, where the system tells."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class NotMember(Exception):
    """Another gateway has taken this one for dead."""


class PostgresCluster:
    """See `Cluster`. Opened by `open_cluster`."""

    shared = True

    def __init__(self, store: PostgresStore, name: str, files: str) -> None:
        self._store = store
        self._name = name
        self._files = files  # whether they are shared, as the settings say
        self.url: str | None = None  # where this gateway listens
        self.gateway_id = ""
        self.hung = False
        self.draining = False
        self._mailbox = Mailbox(store.instance, self._notify)
        self.messages = self._mailbox.counts
        self.members: list[Member] = []
        self.interests: list[Interest] = []
        self.rechecks: list[Callable[[], Awaitable[None]]] = []
        self.polls: list[Callable[[], Awaitable[None]]] = []
        self.on_fence: list[Callable[[], None]] = []
        self.announcements: list[Callable[[], None]] = []
        self.running_turns: Callable[[], int] = lambda: 0
        self.clients: Callable[[], list[Any]] = list
        self.on_clients: Callable[[], None] = lambda: None
        self.reloads = 0
        self.on_reload: Callable[[], None] = lambda: None
        self.roles_elsewhere: set[str] = set()
        self._reloads_seen: dict[str, int] | None = None  # by instance; None before the first look
        self._mailbox.on(_LISTENING, self._on_listening)
        self._joined = asyncio.Event()
        self._confirmed_at = -math.inf  # when the last beat began that was confirmed, by `_boot_time`
        self._activity = Activity()  # when a beat was last confirmed
        self._ticks = 0  # of the event loop, one with each look at the age of the last beat
        self._paused_at = -math.inf  # when this gateway looked again after it had not for seconds
        self._left = False
        self._roles: dict[str, asyncio.Event] = {}  # those held, with an event for their loss
        self._connection: server.Connection | None = None
        self._backend = 0  # the process of the server that serves the connection
        self._opened_at = -math.inf  # the connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cluster")
        self._clock_ahead_s = 0.0  # of the database, to the monotonic clock here
        self._recheck = asyncio.Event()
        self._poll = asyncio.Event()
        self._loop = loop = asyncio.get_running_loop()
        self._listener = Listener(
            store.url,
            store.instance,
            members.application(store.instance),
            loop,
            self._mailbox.take,
            self._on_gap,
        )

    @property
    def others(self) -> int:
        return sum(member.gateway_id != self.gateway_id for member in self.members)

    @property
    def can_take_over(self) -> bool:
        others = (member for member in self.members if member.gateway_id != self.gateway_id)
        return any(not member.draining for member in others)

    def clients_elsewhere(self) -> list[Any]:
        others = (member for member in self.members if member.gateway_id != self.gateway_id)
        return [client for member in others for client in orjson.loads(member.clients)]

    @property
    def gateway_ids(self) -> set[str]:
        return {member.gateway_id for member in self.members}

    @property
    def is_member(self) -> bool:
        return self._joined.is_set()

    @property
    def lease_left_s(self) -> float:
        """How long this gateway may go on with what it has claimed, if no further beat is confirmed."""
        return self._confirmed_at + FENCE_AFTER_S - _boot_time()

    def still_holds(self, gateway_id: str | None) -> bool:
        return self._joined.is_set() and gateway_id == self.gateway_id and self.lease_left_s > 0

    @property
    def roles(self) -> list[str]:
        return sorted(role for role in self._roles if self.leads(role))

    async def joined(self) -> None:
        await self._joined.wait()

    def leads(self, role: str) -> bool:
        lost = self._roles.get(role)
        return lost is not None and not lost.is_set()

    async def lead(self, role: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._joined.wait()
            if self.draining or not await self._take_role(role):
                await asyncio.sleep(ROLE_POLL_S)
                continue
            if self.draining:  # since a beat that was under way
                await self._give_up_role(role)
                continue
            lost = self._roles[role] = asyncio.Event()
            _log.info("this gateway now does: %s", role)
            try:
                if await _done_before(work, lost):
                    return
            except HobnobError as error:  # begun again, here or elsewhere
                _log.warning("%s interrupted: %s", role, error)
                await asyncio.sleep(ROLE_POLL_S)
            finally:
                if self._roles.get(role) is lost:  # else it was taken again here, by a later call
                    del self._roles[role]
                await self._give_up_role(role)

    def tell(self, kind: str, payload: Any) -> None:
        if self.others and not self._left:
            self._mailbox.tell(kind, payload)

    def on(self, kind: str, handler: Handler) -> None:
        self._mailbox.on(kind, handler)

    async def gateways(self) -> list[GatewayInfo]:
        return [member.info for member in await self._call(members.listed)]

    async def refresh(self) -> None:
        if self._joined.is_set():
            with contextlib.suppress(HobnobError, NotMember):  # the next beat deals with it
                await self._look()

    async def drain(self, gateway_id: str, *, on: bool) -> None:
        await self._call(lambda connection: members.drain(connection, gateway_id, on=on))

    async def remove(self, gateway_id: str) -> bool:
        def removed(connection: server.Connection) -> bool:
            for _ in range(_REMOVE_ATTEMPTS):
                found = [each for each in members.listed(connection) if each.gateway_id == gateway_id]
                if not found or members.remove_dead(connection, found[0]):
                    return bool(found)
            return False

        done = await self._call(removed)
        self._poll.set()
        return done

    # -- membership

    async def start(self) -> None:
        """Join, before anything else of this gateway runs."""
        await self._call(self._join)
        key = await self._call(members.message_key)
        self._joined.set()
        await self._look()
        self._mailbox.open(key, self._clock)
        self._listener.start()

    async def run(self) -> None:
        """Stay a member until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(), name="cluster beats")
            group.create_task(self._watch_beats(), name="cluster fence")
            group.create_task(self._mailbox.handle(), name="cluster messages")
            group.create_task(_repeat(self._recheck, RECHECK_S, self.rechecks), name="cluster rechecks")
            group.create_task(_repeat(self._poll, POLL_S, self.polls), name="cluster polls")

    async def leave(self) -> None:
        """Tell the others what is left to tell, and be no member any more."""
        await self._mailbox.sent(_CALL_LIMIT_S)
        if self._joined.is_set():
            with contextlib.suppress(HobnobError):
                await self._call(lambda connection: members.leave(connection, self.gateway_id))
        self._left = True
        await asyncio.to_thread(self._listener.stop)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._connection is not None:
            self._connection.close()

    async def _keep(self) -> None:
        reached = True
        while True:
            try:
                self._store.check_writable()
                await self._look()
                if not reached:
                    _log.info("the database can be reached again")
                reached = True
            except StoreInUse as error:
                self._confirmed_at = -math.inf  # another one may do it all as soon as this one has left
                self.fence(f"{error.message} {error.fix}")
                with contextlib.suppress(HobnobError):  # the others find out that it is silent
                    await self._call(lambda connection: members.leave(connection, self.gateway_id))
                return
            except NotMember:
                self.fence("another gateway has taken this one for dead")
                continue  # and join again at once
            except HobnobError as error:  # logged once per outage
                _log.log(logging.WARNING if reached else logging.DEBUG, "no beat: %s", error)
                reached = False
            await asyncio.sleep(BEAT_S)

    async def _watch_beats(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._ticks += 1
            if self._joined.is_set() and self.lease_left_s <= 0:
                self.fence("the database could not be reached for too long")

    def fence(self, why: str) -> None:
        """End what this gateway does: others may be doing it already."""
        if not self._joined.is_set():
            return
        self._joined.clear()
        before, now = self._activity, self._activity_now()
        self.hung = loop_was_blocked(before, now)
        if stood_still(before, now) and -math.inf < self.lease_left_s <= 0:
            why = f"this process or its machine stood still for {FENCE_AFTER_S - self.lease_left_s:.0f} s"
        if self.hung:
            why = "the event loop was blocked for too long by code that runs here, a tool for instance"
        _log.error("%s: turns and programs end here, other gateways continue them", why)
        self._lose_roles()
        for callback in self.on_fence:
            callback()

    def _clock(self) -> float:
        """The time by the clock of the database, which all gateways share."""
        return time.monotonic() + self._clock_ahead_s

    def _activity_now(self) -> Activity:
        steps_s, ticks_s = self._listener.steps * STEP_S, self._ticks * BEAT_S
        return Activity(time.monotonic(), time.process_time(), steps_s, ticks_s)

    def _lose_roles(self) -> None:
        for lost in self._roles.values():
            lost.set()

    async def _look(self) -> None:
        """Beat, and see who else is alive."""
        began = _boot_time()
        if began - self._confirmed_at > SILENT_AFTER_S:
            self._paused_at = began
        rejoining = not self._joined.is_set()
        clients = orjson.dumps(self.clients()[:_CLIENTS]).decode()
        roles = orjson.dumps(sorted(self._roles)).decode()
        beat = Beat(self.running_turns(), clients, roles, self.url, self.reloads)

        def look(connection: server.Connection) -> tuple[bool, list[Member], list[Member]]:
            if rejoining:
                self._join(connection)
            answer = members.beat(connection, self.gateway_id, beat)
            if answer is None:
                raise NotMember
            drains, clock_s = answer
            ahead_s = clock_s - time.monotonic()
            if abs(ahead_s - self._clock_ahead_s) > SILENT_AFTER_S:  # the clock of the database was set
                self._paused_at = _boot_time()
            self._clock_ahead_s = ahead_s
            connection.execute("select pg_notify(%s, '')", (own_channel(self._store.instance),))
            found = members.listed(connection)
            if _boot_time() - began > SILENT_AFTER_S:
                self._paused_at = _boot_time()
            connected_s, watched_s = (_boot_time() - at for at in (self._opened_at, self._paused_at))
            others = (each for each in found if each.gateway_id != self.gateway_id)
            dead = [each for each in others if members.is_dead(each, connected_s, watched_s)]
            alive = [each for each in found if each not in dead]
            return drains, alive, [each for each in dead if members.remove_dead(connection, each)]

        draining, found, removed = await self._call(look)
        self._confirmed_at = began
        self._activity = self._activity_now()
        known = self.gateway_ids
        elsewhere = self.clients_elsewhere()
        self.members = found
        others = [member for member in found if member.gateway_id != self.gateway_id]
        self.roles_elsewhere = {role for member in others for role in orjson.loads(member.roles)}
        self._follow_reloads(others)
        if elsewhere != self.clients_elsewhere():
            self.on_clients()
        if draining and not self.draining:
            _log.info("draining: this gateway starts no more turns and gives up its roles")
            self._lose_roles()
        elif self.draining and not draining:
            _log.info("no longer draining: this gateway starts turns again")
            self._poll.set()
        self.draining = draining
        if rejoining:
            self._joined.set()
            _log.info("this gateway is a member again")
        for dead in removed:
            _log.warning("found dead, its turns are taken over: %s", dead.described)
        if removed or rejoining or known - self.gateway_ids:  # there may be something to take over
            self._poll.set()
        if self.gateway_ids - known:
            self._announce()

    def _follow_reloads(self, others: list[Member]) -> None:
        seen, now = self._reloads_seen, {each.instance: each.reloads for each in others}
        self._reloads_seen = (seen or {}) | now
        if seen is not None and any(count > seen.get(each, 0) for each, count in now.items()):
            self.on_reload()

    def _join(self, connection: server.Connection) -> None:
        self.gateway_id = members.join(
            connection,
            self._store.instance,
            self._name,
            self.url,
            files=self._files,
            earlier=self.gateway_id or None,
            draining=self.draining,
            hung=self.hung,
        )

    # -- the connection of its own

    async def _call(self, function: Callable[[server.Connection], T]) -> T:
        """Use the connection, in its thread. Raises HobnobError when the database does not answer."""
        if self._left:
            raise StoreClosed
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._with_connection, function)
        done, _ = await asyncio.wait([future], timeout=_CALL_LIMIT_S)
        if not done and (connection := self._connection) is not None:
            server.cut(connection)
        return await future

    def _with_connection(self, function: Callable[[server.Connection], T]) -> T:
        with server.translate_errors(self._store.url):
            connection = self._connection
            if connection is None or connection.closed:
                connection = self._open()
            try:
                return function(connection)
            except psycopg.Error as error:
                if server.is_lost(error):  # else it keeps its locks
                    connection.close()
                raise

    def _open(self) -> server.Connection:
        """A new connection. If this gateway is still known as alive, it takes its lock again."""
        connection = server.connect(self._store.url, name=members.application(self._store.instance))
        if self._connection is not None:  # the locks of the roles were those of the lost connection
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._lose_roles)
        try:
            if self._connection is not None and self._joined.is_set():
                members.lock_again(connection, self.gateway_id, self._backend)
        except BaseException:
            connection.close()
            raise
        self._connection, self._backend = connection, connection.info.backend_pid
        self._opened_at = _boot_time()
        return connection

    async def _take_role(self, role: str) -> bool:
        taking = asyncio.ensure_future(self._call(lambda connection: members.take_role(connection, role)))
        try:
            return await asyncio.shield(taking)
        except HobnobError:
            return False
        except asyncio.CancelledError:
            await asyncio.wait([taking])
            if taking.exception() is None and taking.result():
                await self._give_up_role(role)
            raise

    async def _give_up_role(self, role: str) -> None:
        with contextlib.suppress(HobnobError):
            await self._call(lambda connection: members.give_up_role(connection, role))

    # -- messages

    async def _notify(self, payloads: list[str]) -> None:
        def notify(connection: server.Connection) -> None:
            connection.execute("select pg_notify(%s, each) from unnest(%s::text[]) each", (CHANNEL, payloads))

        await self._call(notify)

    def _on_gap(self) -> None:
        self._recheck.set()
        self._poll.set()
        self.tell(_LISTENING, self.gateway_id)

    async def _on_listening(self, gateway_id: str) -> None:
        """Another gateway hears from now on: tell it what it may have missed."""
        if gateway_id in self.gateway_ids:
            self._announce()
        else:  # it has just joined
            await self.refresh()

    def _announce(self) -> None:
        for announcement in self.announcements:
            announcement()


async def _done_before(work: Callable[[], Awaitable[None]], event: asyncio.Event) -> bool:
    """Work until it is done, or cancel it when the event is set. Returns whether it was done."""
    task = asyncio.ensure_future(work())
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        ended = task.done()
        if not ended:
            task.cancel()
            await asyncio.wait([task])
    if ended or not task.cancelled():
        task.result()
    return ended


async def _repeat(
    wakeup: asyncio.Event, interval_s: float, functions: list[Callable[[], Awaitable[None]]]
) -> None:
    """Call functions every so often, and when woken."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await wakeup.wait()
        wakeup.clear()
        for function in functions:
            try:
                await function()
            except HobnobError as error:
                _log.warning("look into the store failed, it is repeated: %s", error)


@asynccontextmanager
async def open_cluster(store: Store, name: str, files: str) -> AsyncIterator[PostgresCluster]:
    """Join the gateways of a database; leave them on exit."""
    assert isinstance(store, PostgresStore)
    cluster = PostgresCluster(store, name, files)
    await cluster.start()
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.run(), name="cluster")
            try:
                yield cluster
            finally:
                task.cancel()
                await asyncio.wait([task])
                await cluster.leave()
