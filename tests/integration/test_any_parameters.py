"""Whatever a client sends, it gets an answer without a trace of ours in it, and the gateway lives."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hobnob.api.auth import owner_token
from hobnob.api.rpc import METHODS
from hobnob.api.server import open_server
from hobnob.client import SyncClient, open_sync_client
from hobnob.errors import RpcFailed
from hobnob.gateway import api_services
from hobnob.testing import rehearse

WORDS = [
    "main",
    "agent:main:main",
    "hook:1",
    "..",
    "",
    "a" * 600,
    "\x00",
    "10",
    "true",
    "2026-02-31",
]
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=30),
)
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncClient]:
    """A gateway in a thread of its own, for as long as this file takes."""
    home = tmp_path_factory.mktemp("any")
    home.chmod(0o700)
    ready: list[tuple[str, str]] = []
    begun, over = threading.Event(), threading.Event()

    async def serve() -> None:
        gateway_settings = {"gateway": {"port": 0}, "agents": {"list": [{"id": "main"}, {"id": "helper"}]}}
        async with rehearse(home, gateway_settings) as gateway, open_server(api_services(gateway)) as url:
            ready.append((url, owner_token(gateway.config)))
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert begun.wait(10)
    with open_sync_client(*ready[0]) as client:
        yield client
    over.set()
    thread.join()


@pytest.mark.parametrize("method", sorted(METHODS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_parameters_get_an_answer(client: SyncClient, method: str, data: st.DataObject) -> None:
    known = [str(field.alias) for field in METHODS[method].parameters.model_fields.values()]
    names = st.sampled_from([*known, "bogus"]) if known else st.just("bogus")
    params: dict[str, Any] = data.draw(st.dictionaries(names, ANYTHING, max_size=6))
    needed = [str(f.alias) for f in METHODS[method].parameters.model_fields.values() if f.is_required()]
    for name in needed:  # else few would get past the first check
        params.setdefault(name, data.draw(ANYTHING))
    params.pop("timeoutMs", None)  # waiting is no answer
    try:
        client.call(method, **params)
    except RpcFailed as refused:
        assert "Traceback" not in refused.message
        assert "log says why" not in refused.message, params  # nothing we did not think of
    assert client.call("health")["ok"] is True
