"""Chats as a whole: the parts that run together, and the verbs of operators on channels and pairings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hobnob import redact
from hobnob.channels import Disconnected, Identity, LoginNeeded, Undeliverable
from hobnob.channels.http import Unanswered
from hobnob.chat_types import InboxEvent, Pairing
from hobnob.chats.accounts import OTHERS, Accounts, Status
from hobnob.chats.inbox import ChatInbox
from hobnob.chats.live import Live
from hobnob.chats.logins import Logins, can_login
from hobnob.chats.media import MediaFetcher
from hobnob.chats.pump import Pump
from hobnob.chats.webchat import Webchat
from hobnob.chats.webhook import Webhook
from hobnob.cluster import Cluster
from hobnob.config import Config
from hobnob.config.channels import account_ids, account_of, default_account
from hobnob.delivery_routes import WEBCHAT, DeliveryRoute
from hobnob.effects import Effects
from hobnob.errors import BadInput, Conflict, NotFound
from hobnob.hub import Hub
from hobnob.models.catalog import Catalog
from hobnob.store import Store, Tx, deliveries, idempotency
from hobnob.store.chats import inbox, pairings
from hobnob.types import Delivery
from hobnob.workspaces.service import Workspaces

PROBE_TIMEOUT_S = 30.0


class Chats:
    def __init__(
        self,
        store: Store,
        config: Config,
        models: Catalog,
        effects: Effects,
        hub: Hub,
        workspaces: Workspaces,
        accounts: Accounts,
        cluster: Cluster,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._config = config
        self.accounts = accounts
        self._pump = Pump(store, config, effects, accounts, [Webchat(hub), Webhook(config)], cluster)
        self._pump.drafts = self._live = Live(store, config, hub, accounts)
        media = MediaFetcher(config, workspaces)
        self._inbox = ChatInbox(store, config, models, effects, accounts, media)
        self.logins = Logins(accounts)
        accounts.serving = self._serving
        cluster.polls.append(self._look_at_inbox)
        cluster.on("channels.start", lambda place: self._start_account(*place))
        cluster.on("channels.stop", lambda place: self._stop_account(*place))

    @contextlib.asynccontextmanager
    async def _serving(self, role: str) -> AsyncIterator[None]:
        async with self._pump.serving(role):
            self._inbox.wake()
            yield

    async def _look_at_inbox(self) -> None:
        """The message about what another gateway took in by a webhook may have been lost."""
        self._inbox.wake()

    def start(self, group: asyncio.TaskGroup) -> tuple[asyncio.Task[None], list[asyncio.Task[None]]]:
        """Start the channels and the rest. Returns both, because the channels are stopped first."""
        self.accounts.apply()  # before the pump: what it recovers depends on what the channels can do
        rest = [
            group.create_task(self._pump.run(), name="deliveries"),
            group.create_task(self._inbox.run(), name="inbox"),
            group.create_task(self._live.run(), name="live"),
        ]
        return group.create_task(self.accounts.run(), name="channels"), rest

    async def stop_deliveries(self) -> None:
        """Let deliveries that are being sent end; what is left is sent after the next start."""
        await self.logins.close()
        await self._pump.stop()

    def end_sends(self, within_s: float) -> None:
        """Give up what is being sent to chats, before another gateway sends the next messages."""
        self._pump.end_sends(within_s)

    async def queued(self) -> dict[str, int]:
        """How many deliveries wait, by channel."""
        rows = await self._store.read(deliveries.count_open)
        counts: dict[str, int] = {}
        for channel, _, number in rows:
            assert isinstance(number, int)
            counts[str(channel)] = counts.get(str(channel), 0) + number
        return counts

    def statuses(self) -> list[Status]:
        return self.accounts.statuses()

    async def probe(self, channel: str, account_id: str | None = None) -> tuple[Identity | None, str | None]:
        """Ask the platform who an account is. Returns the identity, or why there is none."""
        found = self.accounts.find(channel, account_id)
        if found is None:
            self._check_account(channel, account_id)
            return None, "the account is not running: it is disabled, or its settings have a problem"
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await found.probe(), None
        except TimeoutError:
            return None, f"no answer within {PROBE_TIMEOUT_S:g} seconds"
        except (LoginNeeded, Disconnected, Undeliverable, Unanswered) as error:
            return None, redact.text(str(error))[0]
        except Exception as fault:  # a fault of the channel is the answer to the question
            return None, f"{type(fault).__name__}: {redact.text(str(fault))[0]}"

    def capabilities(self, channel: str, account_id: str | None = None) -> dict[str, Any]:
        """What a channel can do."""
        found = self.accounts.find(channel, account_id)
        if found is None:
            self._check_account(channel, account_id)
            raise NotFound(f"The account {account_id or 'default'} of {channel} is not running.")
        names = found.capabilities.__struct_fields__
        return {name: getattr(found.capabilities, name) for name in names if name != "measure"}

    def start_account(self, channel: str, account_id: str | None) -> None:
        self._start_account(channel, account_id)
        self._cluster.tell("channels.start", [channel, account_id])

    def _start_account(self, channel: str, account_id: str | None) -> None:
        for each in self._accounts_of(channel, account_id):
            self.accounts.start(channel, each)

    def stop_account(self, channel: str, account_id: str | None) -> None:
        self._stop_account(channel, account_id)
        self._cluster.tell("channels.stop", [channel, account_id])

    def _stop_account(self, channel: str, account_id: str | None) -> None:
        for each in self._accounts_of(channel, account_id):
            self.accounts.stop(channel, each)

    def login_account(self, channel: str, account_id: str | None) -> tuple[str, bool]:
        """The account that a login is for, and whether the channel has one. Raises NotFound, BadConfig."""
        self._check_account(channel, account_id)
        account = account_id or default_account(self._config.settings.channels.configured[channel])
        self._check_held(channel, account)
        found = self.accounts.find(channel, account)
        settings = self.accounts.settings_of(channel, account)
        if found is None and settings is not None:
            found = self.accounts.make(channel, account, settings)
        return account, can_login(found)

    def can_login(self, channel: str, account_id: str) -> bool:
        """Whether an account is linked with a phone."""
        return can_login(self.accounts.find(channel, account_id))

    async def logout(self, channel: str, account_id: str | None) -> None:
        """Stop an account and forget the credentials that a login obtained."""
        accounts = self._accounts_of(channel, account_id)
        for each in accounts:
            self._check_held(channel, each)
        for each in accounts:
            found = self.accounts.find(channel, each)
            self.accounts.stop(channel, each)
            if found is not None:
                await found.logout()
            await self._store.write(inbox.forget_cursor, channel, each)

    async def messages(self, event_id: str | None = None, *, limit: int = 50) -> list[InboxEvent]:
        """The newest messages from chats with the verdict on each; or those with an event id."""
        if event_id is not None:
            return await self._store.read(inbox.by_event_id, event_id)
        return await self._store.read(inbox.recent, limit=limit)

    async def pairings(self) -> list[Pairing]:
        return await self._store.read(pairings.all_pairings)

    async def approve(
        self,
        code: str,
        *,
        channel: str | None = None,
        account_id: str | None = None,
        owner: bool = False,
        notify: bool = True,
    ) -> Pairing:
        """Let in the sender who has this code. Raises NotFound.

        `owner`: the sender becomes an owner if the channel has none. `notify`: tell the sender.
        """

        def approved(tx: Tx) -> Pairing:
            wanted = owner and not self._has_owner(channel)
            pairing = pairings.approve(tx, code, channel=channel, account_id=account_id, owner=wanted)
            if notify:
                route = DeliveryRoute(pairing.channel, pairing.recipient, pairing.account_id)
                text = "You are let in. What can I do for you?"
                deliveries.create(tx, route.delivery("", text, kind="notice"))
            return pairing

        return await self._store.write(approved)

    async def revoke(self, channel: str, account_id: str, sender_id: str) -> None:
        """Remove a pairing request or an approval. Raises NotFound."""
        await self._store.write(pairings.revoke, channel, account_id, sender_id)

    async def send(self, route: DeliveryRoute, text: str, *, idempotency_key: str | None = None) -> Delivery:
        """Send a message to a chat, outside of any session."""
        if route.channel == WEBCHAT or route.channel not in self.accounts.names():
            known = ", ".join(sorted(self.accounts.names())) or "none"
            raise BadInput(f"There is no channel {route.channel!r}. Channels that are set up: {known}.")

        def queue(tx: Tx) -> Delivery:
            earlier = idempotency.recall(tx, "send-to-chat", idempotency_key) if idempotency_key else None
            if earlier and (found := deliveries.find(tx, earlier)):
                return found
            delivery = deliveries.create(tx, route.delivery("", text))
            if idempotency_key:
                idempotency.remember(tx, "send-to-chat", idempotency_key, delivery.delivery_id)
            return delivery

        return await self._store.write(queue)

    def _has_owner(self, channel: str | None) -> bool:
        settings = self._config.settings
        configured = settings.channels.configured
        roots = [configured[channel]] if channel in configured else list(configured.values())
        accounts = [account_of(root, each) for root in roots for each in account_ids(root)]
        return bool(settings.commands.owner_allow_from) or any(account.owners for account in accounts)

    def _check_held(self, channel: str, account_id: str) -> None:
        """Refuse what must be done by the gateway that is connected for an account."""
        role = self.accounts.role_of(channel, account_id)
        if role != OTHERS and not self.accounts.is_held(channel, account_id):
            raise Conflict(
                f"Another gateway works for the account {account_id} of {channel}, and has its login.",
                fix=f"Run this at the gateway that has the role {role} in `hobnob nodes list`, with --url.",
            )

    def _accounts_of(self, channel: str, account_id: str | None) -> list[str]:
        self._check_account(channel, account_id)
        root = self._config.settings.channels.configured[channel]
        return [account_id] if account_id else account_ids(root)

    def _check_account(self, channel: str, account_id: str | None) -> None:
        configured = self._config.settings.channels.configured
        if channel not in configured:
            known = ", ".join(sorted(configured)) or "none yet"
            raise NotFound(
                f"There is no channel {channel!r} in the settings. Channels that are set up: {known}.",
                fix=f"hobnob channels add {channel}",
            )
        if account_id is not None and account_id not in account_ids(configured[channel]):
            known = ", ".join(account_ids(configured[channel]))
            raise NotFound(f"The channel {channel} has no account {account_id!r}. It has: {known}.")
