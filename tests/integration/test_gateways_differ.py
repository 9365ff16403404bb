"""Gateways of which one does not know what another did: a message was lost, or their settings differ."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests import postgres, stores
from tests.integration.helpers import ANN, call_method, three_agents
from tests.waiting import LIMIT_S, until

from hobnob.api.server import open_server
from hobnob.chats import pump
from hobnob.cluster.postgres import PostgresCluster
from hobnob.delivery_routes import DeliveryRoute
from hobnob.errors import Conflict
from hobnob.events import EntryAppended, SessionChanged
from hobnob.gateway import Gateway, api_services
from hobnob.inbound import Inbound
from hobnob.store import deliveries
from hobnob.store.chats import inbox
from hobnob.testing import OWNER, rehearse, say

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
ROLE = "channel:pager:default"
CHANNEL = """
import asyncio
from hobnob.channels import Capabilities, Channel, Identity

class Pager(Channel):
    capabilities = Capabilities(chat_types=("direct",))
    webhook = True

    async def run(self, inbox, ready):
        ready(Identity("bot", "Bot"))
        await asyncio.Event().wait()

    async def send(self, part):
        return "sent"

def channel(account):
    return Pager(account)
"""


@pytest.fixture
def pager(tmp_path: Path) -> dict[str, Any]:
    """Settings of a channel that any gateway may get messages of, as of WhatsApp Cloud."""
    module = tmp_path / "pager.py"
    module.write_text(CHANNEL)
    module.chmod(0o600)
    return {"channels": {"pager": {"module": str(module), "dmPolicy": "open", "allowFrom": ["*"]}}}


@asynccontextmanager
async def two_gateways(tmp_path: Path, *settings: dict[str, Any]) -> AsyncIterator[tuple[Gateway, Gateway]]:
    url = postgres.new_database()
    async with AsyncExitStack() as stack:
        found = []
        for name, more in zip(("one", "two"), settings or ({}, {}), strict=True):
            (tmp_path / name).mkdir()
            own = merged(three_agents(), {"store": {"url": url}, "gateway": {"name": name, "port": 0}}, more)
            found.append(await stack.enter_async_context(rehearse(tmp_path / name, own)))
        await until(lambda: all(gateway.cluster.others == 1 for gateway in found))
        yield found[0], found[1]


def merged(*settings: dict[str, Any]) -> dict[str, Any]:
    """Settings together, section by section."""
    found: dict[str, Any] = {}
    for name, section in ((name, section) for each in settings for name, section in each.items()):
        found[name] = found.get(name, {}) | section
    return found


@contextmanager
def deaf(gateway: Gateway) -> Iterator[None]:
    """Messages to this gateway are lost."""
    assert isinstance(gateway.cluster, PostgresCluster)
    listener = gateway.cluster._listener
    hear, listener._on_payload = listener._on_payload, lambda _: None
    try:
        yield
    finally:
        listener._on_payload = hear


async def holder_of(role: str, gateways: tuple[Gateway, Gateway]) -> tuple[Gateway, Gateway]:
    """The gateway with a role, and the other one."""
    await until(lambda: any(role in gateway.cluster.roles for gateway in gateways))
    one, two = gateways
    return (one, two) if role in one.cluster.roles else (two, one)


@pytest.mark.promise("cluster.lost_messages_are_made_up_for")
async def test_a_chat_message_that_another_gateway_took_in_is_answered_although_the_news_of_it_was_lost(
    tmp_path: Path, pager: dict[str, Any]
) -> None:
    settings = pager | {"messages": {"inbound": {"debounceMs": 500}}}
    async with two_gateways(tmp_path, settings, settings) as gateways:
        holder, other = await holder_of(ROLE, gateways)
        with deaf(holder):
            message = Inbound.of_text("e1", "bob", "say: hello")
            await other.chats._inbox.accept("pager", "default", [message], None)
            async with asyncio.timeout(LIMIT_S):
                while (await holder.store.read(inbox.by_event_id, "e1"))[0].state != "turn":
                    await asyncio.sleep(0.05)


@pytest.mark.promise("cluster.lost_messages_are_made_up_for")
async def test_who_follows_a_session_learns_that_it_was_reset_although_the_news_of_it_was_lost(
    tmp_path: Path,
) -> None:
    async with two_gateways(tmp_path) as (here, there):
        await say(here, "say: first", ANN)
        api_services(here)
        subscription = here.hub.subscribe(topics_only=True)
        subscription.follow(ANN)
        await until(lambda: ANN in remote_transcripts(here))
        with deaf(here):
            after = await there.sessions.reset(OWNER, ANN)
            await say(there, "say: second", ANN)
        async with asyncio.timeout(LIMIT_S):
            while not (isinstance(event := await subscription.next(), SessionChanged)):
                pass
            assert (event.reason, event.session.session_id) == ("reset", after.session_id)
            entry = await subscription.next()  # followed by the last entry: the reader gets those before it
        assert isinstance(entry, EntryAppended)
        assert entry.entry.session_id == after.session_id


def remote_transcripts(gateway: Gateway) -> dict[str, str]:
    """The transcripts that a gateway takes for those of the sessions that are followed there."""
    assert isinstance(gateway.cluster, PostgresCluster)
    handler: Any = gateway.cluster._mailbox._handlers["changes"]
    transcripts: dict[str, str] = handler.__self__._transcripts
    return transcripts


async def test_settings_are_loaded_again_on_all_gateways_although_the_news_of_it_was_lost(
    tmp_path: Path,
) -> None:
    async with two_gateways(tmp_path) as (here, there):
        api_services(there)
        file = tmp_path / "two" / "hobnob.json5"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"messages": {"responsePrefix": "new"}}))
        with deaf(there):
            await call_method(here, "config.reload")
            await until(lambda: there.config.settings.messages.response_prefix == "new")


async def test_a_message_to_an_account_that_only_another_gateway_knows_is_sent_by_that_one(
    tmp_path: Path, pager: dict[str, Any]
) -> None:
    async with two_gateways(tmp_path, {}, pager) as gateways:
        older, newer = gateways
        await until(lambda: "deliveries" in older.cluster.roles)
        await until(lambda: ROLE in older.cluster.roles_elsewhere)
        for number in range(10):
            route = DeliveryRoute("pager", f"p{number}")
            await older.store.write(deliveries.create, route.delivery(ANN, "hello"))
        query = "select state, count(*) from deliveries group by state"
        url = newer.config.store_url
        await until(lambda: postgres.execute(url, query) == [("delivered", 10)])


async def test_a_message_to_an_account_that_no_gateway_knows_fails(
    tmp_path: Path, pager: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the name of one that another gateway has begins like its own."""
    monkeypatch.setattr(pump, "_UNKNOWN_MS", 0)
    async with two_gateways(tmp_path, {}, pager) as (older, newer):
        await until(lambda: ROLE in older.cluster.roles_elsewhere)
        route = DeliveryRoute("pager", "p", account_id="def")
        await older.store.write(deliveries.create, route.delivery(ANN, "hello"))
        query = "select state from deliveries"
        await until(lambda: postgres.execute(newer.config.store_url, query) == [("failed",)])


async def test_an_mcp_client_is_served_by_any_gateway(tmp_path: Path) -> None:
    """As through a load balancer, with a protocol that has sessions."""
    shared = {
        "gateway": {"auth": {"token": "the-token-of-both"}},
        "store": {"secretKey": "the key of both, long"},
    }
    async with two_gateways(tmp_path, shared, shared) as gateways, AsyncExitStack() as stack:
        await say(gateways[0], "say: hello", ANN)
        grant = await call_method(gateways[0], "mcp.grants.create", sessionKey=ANN)
        headers = {
            "Authorization": f"Bearer {grant['payload']['token']}",
            "Accept": "application/json, text/event-stream",
        }
        http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        urls = [await stack.enter_async_context(open_server(api_services(each))) for each in gateways]
        here, there = (f"{url.replace('ws:', 'http:')}/mcp" for url in urls)
        client = {"capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        begin = {"method": "initialize", "params": {"protocolVersion": "2025-06-18"} | client}
        async with http.post(here, json={"jsonrpc": "2.0", "id": 1} | begin) as answer:
            assert answer.status == 200
            session = {name: answer.headers[name] for name in ("Mcp-Session-Id",) if name in answer.headers}
        session["MCP-Protocol-Version"] = "2025-06-18"
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        async with http.post(there, json=listing, headers=session) as answer:
            assert answer.status == 200
            assert "sessions_send" in await answer.text()


async def test_an_account_is_logged_out_only_by_the_gateway_that_is_connected_for_it(
    tmp_path: Path, pager: dict[str, Any]
) -> None:
    async with two_gateways(tmp_path, pager, pager) as gateways:
        holder, other = await holder_of(ROLE, gateways)
        with pytest.raises(
            Conflict, match="Another gateway works for the account default of pager"
        ) as refusal:
            await other.chats.logout("pager", None)
        assert refusal.value.fix is not None and ROLE in refusal.value.fix
        await holder.chats.logout("pager", None)
