"""Calls of session tools over HTTP, and what a gateway answered."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson

CALL_TIMEOUT_S = 90.0
Row = dict[str, Any]


class Unsupported(Exception):
    """The gateway lacks what a check needs, so that it cannot be judged."""


class ContractClient:
    """Calls tools as the sessions of a gateway."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str) -> None:
        self._http = http
        self._url = url.rstrip("/").replace("ws://", "http://").replace("wss://", "https://")
        self._headers = {"Authorization": f"Bearer {token}"}

    async def use(self, tool: str, session: str = "main", /, key: str | None = None, **arguments: Any) -> Row:
        """The result of a tool, or its refusal: an object with `status`, and `code` where there is one."""
        body: Row = {"tool": tool, "args": arguments, "sessionKey": session}
        if key is not None:
            body["idempotencyKey"] = key
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
        async with self._http.post(
            f"{self._url}/tools/invoke", data=orjson.dumps(body), headers=self._headers, timeout=timeout
        ) as response:
            return _result(tool, response.status, await response.read())

    async def until_up(self, limit_s: float) -> None:
        """Wait until the gateway answers. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    await self.use("agents_list")
                    return
                except (aiohttp.ClientError, OSError, Unsupported):
                    await asyncio.sleep(0.2)


def _result(tool: str, status: int, body: bytes) -> Row:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Unsupported(f"POST /tools/invoke answered {status} without JSON") from None
    if not isinstance(answer, dict):
        raise Unsupported(f"POST /tools/invoke answered {status} with something that is no object")
    if answer.get("ok"):
        return _details(answer.get("result"))
    error = answer.get("error")
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message", ""))
    if status == 404 and "not available" in message:
        raise Unsupported(f"the tool {tool} is off: {error.get('fix') or message}")
    refused = "forbidden" if status == 403 else "error"
    return {"status": refused, "error": message, "code": error.get("code"), "fix": error.get("fix")}


def _details(result: Any) -> Row:
    """The object that a tool returned, from `details` or from its text."""
    if isinstance(result, dict) and isinstance(result.get("details"), dict) and result["details"]:
        return dict(result["details"])
    try:
        found = orjson.loads(result["content"][0]["text"])
    except (TypeError, KeyError, IndexError, orjson.JSONDecodeError):
        raise Unsupported("the result of a tool is no object") from None
    return found if isinstance(found, dict) else {}
