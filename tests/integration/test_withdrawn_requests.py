"""HTTP requests that wait while their token is withdrawn: none is answered, and none is begun."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import Gate
from tests.integration.web import WRITER, Web, web_of, withdraw_narrow_tokens
from tests.waiting import LIMIT_S, until

from hobnob.config import Config, Settings
from hobnob.testing import calls, script

ALLOWED = {"tools": {"allow": ["hold"]}}
RUN: dict[str, Any] = {"params": {"message": "go", "idempotencyKey": "one"}}
pytestmark = pytest.mark.promise("access.secret_closes_what_it_opened")


def withdraw(web: Web) -> int:
    withdraw_narrow_tokens(web)
    return web.services.clients.close_unless(web.services.auth.is_current, "withdrawn")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rpc/agent", RUN),
        ("/rpc/agent.wait", {"params": {"runId": "one", "timeoutMs": 60_000}}),
        ("/tools/invoke", {"tool": "hold", "sessionKey": "main"}),
    ],
)
async def test_a_request_that_waits_is_refused_when_its_token_is_withdrawn(
    tmp_path: Path, path: str, body: Any
) -> None:
    gate = Gate()
    settings = script(calls("hold"), "the answer", session="*")
    async with web_of(tmp_path, settings, tools=(gate.tool,), gateway=ALLOWED) as web:
        owners = asyncio.ensure_future(web.ask("POST", "/rpc/agent", RUN))
        async with asyncio.timeout(LIMIT_S):
            await gate.reached.wait()
            waiting = asyncio.ensure_future(web.ask("POST", path, body, token=WRITER))
            await until(lambda: len(web.services.clients.streams) == 2)
            assert withdraw(web) == 1
            answer = await waiting
            assert (answer.status, answer.json["error"]["code"]) == (401, "unauthorized")
            assert "the credential was withdrawn" in answer.json["error"]["message"]
            gate.open.set()
            assert (await owners).json["payload"]["reply"] == "the answer"
        assert not web.services.clients.streams


async def test_a_request_whose_token_is_withdrawn_while_its_body_arrives_does_nothing(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        body = orjson.dumps(RUN)
        head = f"POST /rpc/agent HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRITER}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        reader, writer = await web.raw(head.encode() + body[:5])
        await until(lambda: len(web.services.clients.streams) == 1)
        withdraw(web)
        async with asyncio.timeout(LIMIT_S):
            assert b" 401 " in await reader.readline()
        writer.close()
        runs = await web.ask("POST", "/rpc/sessions.list", {})
        assert runs.json["payload"]["sessions"] == []


async def test_a_reload_that_changes_the_token_it_was_asked_with_is_answered(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        config = web.gateway.config
        changed = {"gateway": {"auth": {"token": "another-token"}}}
        config.read = lambda: Config(Settings.model_validate(changed), config.home)
        answer = await web.ask("POST", "/rpc/config.reload", {})
        assert (answer.status, answer.json["ok"]) == (200, True)
        assert (await web.ask("POST", "/rpc/health", {})).status == 401
