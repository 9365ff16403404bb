"""JSON made to cost much or to break something, at every entry."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_limits import closed
from tests.integration.test_wire import frame, served
from tests.integration.web import HOOK_TOKEN, HOOKS, OWNER_TOKEN, web_of
from websockets.asyncio.client import connect

from hobnob.client import open_client
from hobnob.errors import RpcFailed

DEEP = "[" * 400 + "]" * 400
WIDE = "[" + "[]," * 300_000 + "[]]"
MAPPINGS = {
    "mappings": [{"match": {"path": "x"}, "action": "agent", "name": "X", "textTemplate": "got {{a}}"}],
    "maxBodyBytes": 2_000_000,
}


@pytest.mark.parametrize("value", [DEEP, WIDE], ids=["deep", "wide"])
@pytest.mark.parametrize(
    ("path", "body", "token"),
    [
        ("/tools/invoke", '{"tool": "ls", "dryRun": true, "args": {"path": %s}}', OWNER_TOKEN),
        ("/hooks/x", '{"a": %s}', HOOK_TOKEN),
        ("/hooks/agent", '{"message": "hi", "name": %s}', HOOK_TOKEN),
        ("/v1/chat/completions", '{"model": "hobnob", "messages": %s}', OWNER_TOKEN),
    ],
)
async def test_a_body_that_is_too_deep_or_too_wide_is_refused(
    tmp_path: Path, path: str, body: str, token: str, value: str
) -> None:
    async with web_of(tmp_path, {"hooks": HOOKS | MAPPINGS}) as web:
        headers = {"Content-Type": "application/json"}
        answer = await web.ask("POST", path, token=token, data=body % value, headers=headers)
        assert (answer.status, answer.json["error"]["code"]) == (400, "input.bad")
        assert "nested deeper than 100" in str(answer.json) or "250,000 objects" in str(answer.json)


@pytest.mark.parametrize("value", [DEEP, WIDE], ids=["deep", "wide"])
async def test_a_frame_that_is_too_deep_or_too_wide_ends_its_connection_only(
    tmp_path: Path, value: str
) -> None:
    async with (
        served(tmp_path) as (url, token),
        open_client(url, token) as other,
        connect(url) as socket,
    ):
        await frame(socket)
        params = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": token}}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        assert (await frame(socket))["ok"]
        await socket.send(f'{{"type": "req", "id": {value}, "method": "health"}}')
        code, reason = await closed(socket)
        assert code == 1008 and reason.startswith("frame refused: ")
        assert (await other.call("health"))["ok"]


async def test_a_hundred_thousand_unknown_parameters_get_a_short_answer(tmp_path: Path) -> None:
    many: dict[str, Any] = {f"limi{n}": 1 for n in range(100_000)}
    async with served(tmp_path) as (url, token), open_client(url, token) as client:
        with pytest.raises(RpcFailed, match="and 5 more problems") as refused:
            async with asyncio.timeout(30):
                await client.call("sessions.list", **many)
        assert len(refused.value.message) < 2000
