"""One limit for a message, wherever it comes in; and a request that is far too large is not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import call_method, texts
from tests.integration.test_wire import frame
from tests.integration.web import HOOK_TOKEN, HOOKS, OWNER_TOKEN, Web, web_of
from tests.waiting import LIMIT_S
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from hobnob.api.rpc import METHODS
from hobnob.parameters import LONG_TEXTS
from hobnob.testing import OWNER, calls, say, script

LIMIT = 1000
LONG = "é" * (LIMIT // 2) + "x"  # one byte too many, in few characters
MAIN = "agent:ann:main"
SETTINGS = {
    "messages": {"maxBytes": LIMIT},
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "hooks": HOOKS | {"mappings": [{"match": {"path": "gh"}, "messageTemplate": "{{a}}{{a}}"}]},
}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with web_of(tmp_path, SETTINGS) as web:
        await web.gateway.sessions.create(OWNER, MAIN)
        yield web


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("chat.send", {"sessionKey": MAIN, "message": LONG, "idempotencyKey": "k"}),
        ("agent", {"message": LONG, "idempotencyKey": "k"}),
        ("sessions.send", {"key": MAIN, "message": LONG}),
        ("sessions.steer", {"key": MAIN, "message": LONG}),
        ("sessions.create", {"key": "agent:ann:dashboard:new", "message": LONG}),
        ("sessions.spawn", {"key": MAIN, "task": LONG}),
        ("chat.inject", {"sessionKey": MAIN, "message": LONG}),
    ],
)
async def test_a_method_refuses_a_message_beyond_the_limit(web: Web, method: str, params: Any) -> None:
    answer = await call_method(web.gateway, method, **params)
    assert answer["error"]["details"]["code"] == "input.too_large"
    assert "has 1,001 bytes; the limit is 1,000" in answer["error"]["message"]
    assert "messages.maxBytes" in answer["error"]["details"]["fix"]
    sessions = await web.gateway.sessions.queries.list(OWNER)
    assert [row["key"] for row in sessions["sessions"]] == [MAIN]


@pytest.mark.parametrize(
    ("path", "body", "token"),
    [
        ("/rpc/chat.send", {"params": {"sessionKey": MAIN, "message": LONG, "idempotencyKey": "k"}}, None),
        ("/v1/chat/completions", {"model": "hobnob", "messages": [{"role": "user", "content": LONG}]}, None),
        (
            "/v1/chat/completions",
            {
                "model": "hobnob",
                "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "hi"}],
            },
            None,
        ),
        ("/hooks/agent", {"message": LONG}, HOOK_TOKEN),
        ("/hooks/wake", {"text": LONG}, HOOK_TOKEN),
        ("/hooks/gh", {"a": LONG[: LIMIT // 2]}, HOOK_TOKEN),
    ],
)
async def test_a_route_refuses_a_message_beyond_the_limit(
    web: Web, path: str, body: Any, token: str | None
) -> None:
    answer = await web.ask("POST", path, body, token=token or OWNER_TOKEN)
    assert (answer.status, answer.json["error"]["code"]) == (413, "input.too_large")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("sessions_send", {"agentId": "bob", "message": LONG}), ("sessions_spawn", {"task": LONG})],
)
async def test_an_agent_is_refused_a_message_beyond_the_limit(
    tmp_path: Path, tool: str, arguments: Any
) -> None:
    async with web_of(tmp_path, SETTINGS | script(calls(tool, **arguments), "Done.")) as web:
        await say(web.gateway, "go", MAIN)
        [result] = await texts(web.gateway, MAIN, "toolResult")
        assert json.loads(result)["code"] == "input.too_large"
        assert "messages.maxBytes" in result


async def test_a_name_of_megabytes_is_refused_in_a_few_words(web: Web) -> None:
    for method in METHODS.values():
        for name, field in method.parameters.model_fields.items():
            if "str" not in str(field.annotation) or name in LONG_TEXTS:
                continue
            others = {each: MAIN for each in ("key", "sessionKey") if each in method.parameters.model_fields}
            answer = await call_method(
                web.gateway, method.name, **others | {field.alias or name: "x" * 1_000_000}
            )
            assert (answer["ok"], len(json.dumps(answer)) < 3000) == (False, True), f"{method.name} {name}"


async def test_the_name_of_an_unknown_method_is_cut_and_the_nearest_is_named(web: Web) -> None:
    long = await call_method(web.gateway, "x" * 1_000_000)
    assert len(json.dumps(long)) < 1000
    near = await call_method(web.gateway, "sesions.list")
    assert near["error"]["details"]["fix"] == "Did you mean sessions.list?"


async def test_a_key_of_any_length_is_not_kept(web: Web) -> None:
    answer = await call_method(
        web.gateway, "chat.send", sessionKey=MAIN, message="hi", idempotencyKey="k" * 257
    )
    assert "at most 256 characters" in answer["error"]["message"]


async def test_a_frame_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    limits = {"limits": {"requestBytes": 100_000}}
    async with web_of(tmp_path, gateway=limits) as web:
        async with connect(web.url.replace("http", "ws"), compression=None) as socket:
            await frame(socket)
            hello = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": OWNER_TOKEN}}
            await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
            assert (await frame(socket))["payload"]["policy"]["maxPayload"] == 100_000
            socket.transport.write(b"\x81\xff" + (100_001).to_bytes(8, "big") + bytes(4))  # only the head
            with pytest.raises(ConnectionClosed) as closed:
                async with asyncio.timeout(LIMIT_S):
                    await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        answer = await web.ask("POST", "/rpc/health", {"params": {}, "filler": "x" * 100_000})
        assert answer.status == 413
