"""The accounts of channels: start them, keep them connected, and tell how they are doing."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import random
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hobnob import redact, statedir
from hobnob.channels import Account, Channel, Disconnected, Identity, Inbox, LoginNeeded, Unreadable
from hobnob.cluster import Alone, Cluster
from hobnob.config import Config
from hobnob.config.channels import ChannelAccount, OwnChannel, account_ids, account_of, default_account
from hobnob.delivery_routes import DeliveryRoute
from hobnob.errors import BadConfig, Problem
from hobnob.inbound import Address
from hobnob.processes import Processes
from hobnob.records import Struct, replace
from hobnob.types import now_ms
from hobnob.workspaces.guest.process import GuestError
from hobnob.workspaces.guest_processes import GuestProcesses, host_spec

if TYPE_CHECKING:
    import aiohttp

State = Literal["starting", "connected", "reconnecting", "stopped"]
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
_STABLE_S = 60.0  # a connection that lasted this long was a good one: the next pause is short again
_THREAD_CHECK_S = 10.0
_GUESTS = 2  # processes that read content from outside, at a time
_log = logging.getLogger(__name__)
AccountKey = tuple[str, str]
OTHERS = "deliveries"  # the role for what belongs to no configured account
ELSEWHERE = "another gateway is connected for this account"


class Status(Struct, frozen=True):
    """How an account is doing. `stopped` means that it does not try again: `last_error` says why."""

    channel: str
    account_id: str
    state: State = "starting"
    identity: Identity | None = None
    last_error: str | None = None
    connected_at_ms: int | None = None
    last_inbound_at_ms: int | None = None
    last_outbound_at_ms: int | None = None
    reconnects: int = 0


@dataclass(slots=True)
class _Running:
    channel: Channel
    settings: ChannelAccount
    task: asyncio.Task[None] | None = None
    paused: bool = False
    status: Status = field(kw_only=True)


class Accounts:
    """All accounts of all channels. `inbox_of` is set by the inbox.

    `serving` is entered while this gateway is the one that works for an account.
    """

    def __init__(
        self, config: Config, processes: Processes | None = None, cluster: Cluster | None = None
    ) -> None:
        self._config = config
        self._cluster = cluster or Alone()
        self._holding: dict[AccountKey, asyncio.Task[None]] = {}
        self.serving: Callable[[str], AbstractAsyncContextManager[None]] = lambda role: nullcontext()
        self._guests = GuestProcesses(processes, max_running=_GUESTS) if processes else None
        self._running: dict[AccountKey, _Running] = {}
        self._failed: dict[AccountKey, Status] = {}
        self._ending: dict[AccountKey, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._http: aiohttp.ClientSession | None = None
        self.inbox_of: Callable[[str, str], Inbox]

    def names(self) -> set[str]:
        """The channels that have an account."""
        return {channel for channel, _ in self._wanted()}

    def find(self, channel: str, account_id: str | None) -> Channel | None:
        """The channel object of an account; without an id, of the default account."""
        running = self._found(channel, account_id)
        return running.channel if running else None

    def _found(self, channel: str, account_id: str | None) -> _Running | None:
        root = self._config.settings.channels.configured.get(channel)
        return self._running.get((channel, account_id or default_account(root))) if root else None

    def role_of(self, channel: str, account_id: str | None) -> str:
        """What a gateway must lead to work for an account; one role is for all that are not configured."""
        root = self._config.settings.channels.configured.get(channel)
        key = (channel, account_id or (default_account(root) if root else ""))
        return f"channel:{key[0]}:{key[1]}" if key in self._wanted() else OTHERS

    def is_held(self, channel: str, account_id: str | None) -> bool:
        """Whether this gateway is the one that works for an account."""
        return not self._cluster.shared or self._cluster.leads(self.role_of(channel, account_id))

    def settings_of(self, channel: str, account_id: str | None) -> ChannelAccount | None:
        """The settings of an account in effect."""
        root = self._config.settings.channels.configured.get(channel)
        return account_of(root, account_id or default_account(root)) if root else None

    def statuses(self) -> list[Status]:
        """How every account of every channel is doing, also those that do not run."""
        found = {key: running.status for key, running in self._running.items()} | self._failed
        for name, root in self._config.settings.channels.configured.items():
            for account_id in account_ids(root):
                enabled = root.enabled and account_of(root, account_id).enabled
                why = "the gateway is not running" if enabled else "disabled in the settings"
                found.setdefault((name, account_id), Status(name, account_id, "stopped", last_error=why))
        return [found[key] for key in sorted(found)]

    async def run(self) -> None:
        """Run every enabled account until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self.apply()
                await asyncio.Event().wait()
        finally:
            self._group = None

    def apply(self) -> None:
        """Start, stop and restart accounts so that they are as the settings say.

        An account is restarted when a setting of its platform changed, such as a token. Rules that hold for
        every channel are read anew for each message.
        """
        wanted = self._wanted()
        for key in [*self._running]:
            new = wanted.get(key)
            if new is None or _connection(new) != _connection(self._running[key].settings):
                self._stop(key)
        self._failed = {key: status for key, status in self._failed.items() if key in wanted}
        for key, settings in wanted.items():
            if key not in self._running:
                self._start(key, settings)
            self._launch(key)
        self._hold(wanted)

    def _hold(self, wanted: Collection[AccountKey]) -> None:
        """Among several gateways, wait to be the one that works for each account."""
        if self._group is None or not self._cluster.shared:
            return
        for key in [*self._holding]:
            if key not in wanted:
                self._holding.pop(key).cancel()
        for key in wanted:
            if key not in self._holding:
                work = self._cluster.lead(self.role_of(*key), partial(self._held, key))
                self._holding[key] = self._group.create_task(work, name=f"hold channel {key[0]} {key[1]}")

    async def _held(self, key: AccountKey) -> None:
        """Keep an account connected, until another gateway does or the settings no longer have it."""
        try:
            async with self.serving(self.role_of(*key)):
                self._launch(key)
                await asyncio.Event().wait()
        finally:
            running = self._running.get(key)
            if running is not None and running.task is not None and not running.channel.webhook:
                task, running.task = running.task, None
                running.status = replace(running.status, state="stopped", last_error=ELSEWHERE)
                task.cancel()
                await asyncio.wait([task])

    def stop(self, channel: str, account_id: str) -> None:
        """Stop an account until it is started again."""
        if running := self._running.get((channel, account_id)):
            if running.task:
                running.task.cancel()
            running.paused = True
            running.status = replace(running.status, state="stopped", last_error="stopped by an operator")

    async def taken_over(self, channel: str, account_id: str) -> Channel:
        """The channel object of an account that is stopped now, for a login. Raises BadConfig."""
        self.stop(channel, account_id)
        running = self._running.get((channel, account_id))
        if running is not None and running.task is not None:
            await asyncio.wait([running.task])  # two connections of one account would disturb each other
        settings = self.settings_of(channel, account_id)
        assert settings is not None
        return running.channel if running else self.make(channel, account_id, settings)

    def start(self, channel: str, account_id: str) -> None:
        """Start an account that is stopped."""
        key = (channel, account_id)
        if (settings := self._wanted().get(key)) is not None:
            self._stop(key)
            self._start(key, settings)
            self._launch(key)

    def received(self, channel: str, account_id: str, count: int) -> None:
        if count and (running := self._running.get((channel, account_id))):
            running.status = replace(running.status, last_inbound_at_ms=now_ms())

    def sent(self, channel: str, account_id: str | None) -> None:
        if running := self._found(channel, account_id):
            running.status = replace(running.status, last_outbound_at_ms=now_ms())

    def is_paused(self, channel: str, account_id: str | None) -> bool:
        """Whether an operator stopped an account: then it sends nothing either."""
        running = self._found(channel, account_id)
        return running is not None and running.paused

    def login_needed(self, channel: str, account_id: str | None, why: str) -> None:
        """The platform refused the credentials of an account in another call: stop it."""
        if (running := self._found(channel, account_id)) and running.task:
            running.task.cancel()
            running.status = replace(running.status, state="stopped", last_error=why)

    async def why_no_thread(self, route: DeliveryRoute | None) -> str | None:
        """Why no thread can be opened in a chat; None if one can."""
        if route is None:
            return "nobody has written to this session from a chat"
        channel = self.find(route.channel, route.account_id)
        account = self.settings_of(route.channel, route.account_id)
        if channel is None or account is None or not channel.capabilities.threads:
            return f"the chat of this session is on {route.channel}, where it cannot open threads"
        shared = self._config.settings.session.thread_bindings.enabled
        own = account.thread_bindings.enabled
        if not (shared if own is None else own):
            return "the setting session.threadBindings.enabled, or that of the channel, is false"
        try:
            async with asyncio.timeout(_THREAD_CHECK_S):
                return await channel.can_open_thread(Address(route.to, route.thread_id))
        except Exception as error:  # whatever the channel raises: it cannot be asked
            return f"the channel {route.channel} could not be asked: {redact.text(str(error))[0]}"

    def make(self, channel: str, account_id: str, settings: ChannelAccount) -> Channel:
        """The channel object of an account that is not running. Raises BadConfig."""
        folder = statedir.private_dir(self._config.home / "channels" / channel / account_id)

        def current() -> ChannelAccount:
            return self.settings_of(channel, account_id) or settings

        account = Account(
            channel=channel,
            account_id=account_id,
            current=current,
            folder=folder,
            http=self._client,
            guest=self._guest,
        )
        made: Channel = _module(self._config, channel).channel(account)
        return made

    def _wanted(self) -> dict[AccountKey, ChannelAccount]:
        return {
            (name, account_id): account
            for name, root in self._config.settings.channels.configured.items()
            if root.enabled
            for account_id in account_ids(root)
            if (account := account_of(root, account_id)).enabled
        }

    def _start(self, key: AccountKey, settings: ChannelAccount) -> None:
        try:
            channel = self.make(*key, settings)
        except Exception as error:  # also any fault of a user's own channel
            _log.error("channel %s, account %s not started: %s", *key, error)
            self._failed[key] = Status(*key, state="stopped", last_error=str(error))
            return
        self._failed.pop(key, None)
        status = (
            Status(*key) if self._connects(key, channel) else Status(*key, "stopped", last_error=ELSEWHERE)
        )
        self._running[key] = _Running(channel, settings, status=status)

    def _launch(self, key: AccountKey) -> None:
        """Connect an account that is set up. Before `run`, accounts can send but do not receive."""
        running = self._running.get(key)
        if running is None or not self._connects(key, running.channel):
            return
        if running.task is None and self._group is not None:
            running.status = replace(running.status, state="starting", last_error=None)
            running.task = self._group.create_task(
                self._keep(key, running), name=f"channel {key[0]} {key[1]}"
            )

    def _connects(self, key: AccountKey, channel: Channel) -> bool:
        """Whether this gateway receives for an account. A platform may call the webhook of any of them."""
        return channel.webhook or self.is_held(*key)

    def _stop(self, key: AccountKey) -> None:
        if (running := self._running.pop(key, None)) and running.task:
            running.task.cancel()
            self._ending[key] = running.task

    async def _keep(self, key: AccountKey, running: _Running) -> None:
        """Run an account, again and again with growing pauses, until its credentials are refused."""
        if (old := self._ending.pop(key, None)) is not None:
            await asyncio.wait([old])  # two connections of one account would disturb each other
        pause = FIRST_PAUSE_S
        inbox = self.inbox_of(*key)
        loop = asyncio.get_running_loop()

        def ready(identity: Identity) -> None:
            _log.info("channel %s, account %s connected as %s", *key, identity.name or identity.id)
            status = replace(running.status, state="connected", identity=identity, last_error=None)
            running.status = replace(status, connected_at_ms=now_ms())

        while True:
            began = loop.time()
            try:
                await running.channel.run(inbox, ready)
                why = "the connection ended"
            except LoginNeeded as error:
                why = redact.text(str(error))[0]
                _log.error("channel %s, account %s stopped: %s", *key, why)
                running.status = replace(running.status, state="stopped", last_error=why)
                return
            except (Disconnected, OSError) as error:
                why = redact.text(str(error))[0] or type(error).__name__
                _log.warning("channel %s, account %s disconnected: %s", *key, why)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                why = "the channel cancelled itself"
                _log.error("channel %s, account %s failed: %s", *key, why)
            except Exception as fault:  # a fault of one channel must not end the others
                why = f"{type(fault).__name__}: {redact.text(str(fault))[0]}"
                _log.exception("channel %s, account %s failed", *key)
            if loop.time() - began > _STABLE_S:
                pause = FIRST_PAUSE_S
            running.status = replace(
                running.status,
                state="reconnecting",
                last_error=why,
                reconnects=running.status.reconnects + 1,
            )
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects, no secret
            pause = min(2 * pause, MAX_PAUSE_S)

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            import aiohttp

            # Not `trust_env`: a `~/.netrc` would add a second Authorization header. See `http.proxy_for`.
            self._http = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._http

    async def _guest(self, module: str, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Read bytes from outside in a process of their own. Raises Unreadable."""
        if self._guests is None:
            raise Unreadable("No gateway is running.")
        try:
            return await self._guests.run(host_spec(module), job, timeout_s=timeout_s)
        except TimeoutError:
            raise Unreadable(f"It took longer than {timeout_s:g} seconds.") from None
        except (GuestError, OSError) as error:
            raise Unreadable(str(getattr(error, "message", error))) from None

    async def close(self) -> None:
        """Close the HTTP client. Deliveries may use it after `run` has ended."""
        if self._http is not None:
            await self._http.close()


def _connection(settings: ChannelAccount) -> dict[str, Any]:
    """The settings of the platform itself, without the rules that every channel has."""
    names = type(settings).model_fields.keys() - ChannelAccount.model_fields.keys() - {"accounts"}
    names -= settings.rules()
    return {name: getattr(settings, name) for name in names}


def _module(config: Config, channel: str) -> Any:
    """The module of a channel: one of ours by name, or the file the settings name."""
    root = config.settings.channels.configured.get(channel)
    if not isinstance(root, OwnChannel):
        return importlib.import_module(f"hobnob.channels.{channel}")
    base = config.source.parent if config.source else config.home
    path = (base / Path(root.module).expanduser()).absolute()
    where = f"channels.{channel}.module"
    source = str(config.source or "")
    if not path.is_file():
        raise BadConfig(source, [Problem(where, f"there is no file {path}")])
    if statedir.mode(path) & 0o002:
        raise BadConfig(source, [Problem(where, f"other users can write to {path}: chmod o-w {path}")])
    spec = importlib.util.spec_from_file_location(f"hobnob_own_channel_{channel}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as fault:  # any fault of the user's code is reported as one
        raise BadConfig(source, [Problem(where, f"{path} cannot be loaded: {fault}")]) from fault
    if not callable(getattr(module, "channel", None)):
        raise BadConfig(source, [Problem(where, f"{path} has no function `channel`")])
    return module
