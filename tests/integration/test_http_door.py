"""Who comes in over HTTP, and what is refused before anything is done. Walks whatever routes there are."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.integration.web import FOR_BOB, HOOK_TOKEN, HOOKS, OWNER_TOKEN, READER, TOKENS, Web, web_of
from tests.waiting import LIMIT_S

from hobnob.api import routing as web_module
from hobnob.api import server as _registered  # noqa: F401 - for the routes it registers
from hobnob.api.auth import FailedAttempts
from hobnob.api.routes.openapi import in_path
from hobnob.api.routing import BODY_BYTES, ROUTES, Route
from hobnob.api.rpc import METHODS
from hobnob.policy import Operator

HOLDS: dict[str, Operator] = {
    OWNER_TOKEN: Operator(),
    **{str(t["token"]): Operator(str(t["name"]), tuple(t["scopes"])) for t in TOKENS},  # type: ignore[arg-type]
}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with web_of(tmp_path, {"hooks": HOOKS}) as found:
        yield found


def address(route: Route) -> str:
    assert len(in_path(route)) <= 1
    return re.sub(r"\{[^}]*\}", "health" if "rpc" in route.path else "main", route.path)


def refusal_of(answer: Any) -> tuple[int, str]:
    """The code of a refusal, once its shape is right."""
    error = answer.json["error"]
    assert answer.json["ok"] is False
    assert {"type", "message", "code"} <= set(error) <= {"type", "message", "code", "fix"}
    assert all(isinstance(value, str) and value for value in error.values())
    return answer.status, error["code"]


@pytest.mark.promise("policy.decides_http")
async def test_every_route_asks_for_its_scope_and_nothing_else_opens_it(web: Web) -> None:
    for route in ROUTES:
        if route.scope is None:
            continue
        given = {} if route.verb == "POST" else None
        answer = await web.ask(route.verb, address(route), given, token=None)
        assert refusal_of(answer) == (401, "unauthorized"), route.path
        for token, operator in HOLDS.items():
            answer = await web.ask(route.verb, address(route), given, token=token)
            if operator.holds(route.scope):
                refused = answer.status in (401, 403) and answer.json["error"]["code"] == "scope.missing"
                assert not refused, f"{route.path} with {token}"
            else:
                assert refusal_of(answer) == (403, "scope.missing"), f"{route.path} with {token}"
                assert answer.json["error"]["message"] == f"missing scope: {route.scope}"


@pytest.mark.promise("policy.decides_http")
async def test_every_method_asks_for_its_scope_over_http_as_over_the_socket(web: Web) -> None:
    for method in METHODS.values():
        for token, operator in HOLDS.items():
            if method.scope is None or operator.holds(method.scope):
                continue
            answer = await web.ask("POST", f"/rpc/{method.name}", {}, token=token)
            assert refusal_of(answer) == (403, "scope.missing"), method.name
            assert answer.json["error"]["message"] == f"missing scope: {method.scope}"
        assert (await web.ask("POST", f"/rpc/{method.name}", {}, token=None)).status == 401


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("nope", {}, 404, "not_found"),
        ("sessions.list", {"limt": 3}, 400, "input.bad"),
        ("sessions.list", [], 400, "input.bad"),
        ("sessions.status", {"key": "nobody"}, 404, "session.not_found"),
        ("exchanges.get", {"id": "exchange"}, 404, "not_found"),
        ("sessions.send", {"key": "hook:..", "message": "x", "idempotencyKey": "k"}, 400, "key.bad"),
        ("agent", {"message": "x", "agentId": "ghost", "idempotencyKey": "k"}, 404, "agent.unknown"),
    ],
)
async def test_an_error_of_a_method_has_the_format_of_every_other_error(
    web: Web, method: str, params: Any, status: int, code: str
) -> None:
    answer = await web.ask("POST", f"/rpc/{method}", {"params": params})
    assert refusal_of(answer) == (status, code)
    assert "exchange exchange" not in answer.json["error"]["message"]


@pytest.mark.promise("policy.decides_http", "access.tokens_of_some_agents")
async def test_a_token_for_one_agent_reaches_no_other_over_http(web: Web) -> None:
    said = {"messages": [{"role": "user", "content": "hi"}]}
    asked: list[tuple[str, str, Any]] = [
        ("GET", "/sessions/agent:{}:main/history", None),
        ("GET", "/sessions/agent:{}:main/history?follow=1", None),
        ("POST", "/tools/invoke", {"tool": "agents_list", "sessionKey": "agent:{}:main"}),
        ("POST", "/tools/invoke", {"tool": "agents_list", "agentId": "{}"}),
        ("POST", "/v1/chat/completions", {"model": "hobnob/{}", **said}),
        (
            "POST",
            "/rpc/chat.send",
            {"params": {"sessionKey": "agent:{}:main", "message": "x", "idempotencyKey": "k"}},
        ),
    ]
    for verb, path, body in asked:

        def of(agent: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {name: of(agent, each) for name, each in value.items()}
            return value.replace("{}", agent) if isinstance(value, str) else value

        answer = await web.ask(verb, of("ann", path), of("ann", body), token=FOR_BOB)
        assert answer.status == 403, path
        assert "'for bob' is not for sessions of agent 'ann'" in answer.json["error"]["message"]
    good = await web.ask("POST", "/v1/chat/completions", {"model": "hobnob/bob", **said}, token=FOR_BOB)
    assert good.status == 200


@pytest.mark.promise("access.foreign_pages_http")
async def test_a_page_from_elsewhere_is_refused_at_every_route_before_it_can_guess(web: Web) -> None:
    evil = {"Origin": "https://evil.example"}
    for route in [*ROUTES, *ROUTES]:  # more often than one may be wrong
        for token in (OWNER_TOKEN, "wrong"):
            answer = await web.ask(route.verb, address(route), token=token, headers=evil)
            assert refusal_of(answer) == (403, "origin.foreign"), route.path
    hook = await web.ask("POST", "/hooks/agent", {"message": "x"}, token=HOOK_TOKEN, headers=evil)
    assert refusal_of(hook) == (403, "origin.foreign")
    assert (await web.ask("GET", "/v1/models")).status == 200  # no guess was counted


async def test_a_page_of_the_gateway_itself_may_ask(web: Web) -> None:
    own = {"Origin": f"http://127.0.0.1:{web.port}"}
    assert (await web.ask("GET", "/v1/models", headers=own)).status == 200


@pytest.mark.promise("access.wrong_secrets_are_slowed")
@pytest.mark.parametrize(
    ("path", "right"), [("/v1/models", OWNER_TOKEN), ("/hooks/wake", HOOK_TOKEN)], ids=["gateway", "hooks"]
)
async def test_after_some_wrong_secrets_nobody_from_there_comes_in(web: Web, path: str, right: str) -> None:
    verb = "GET" if path == "/v1/models" else "POST"
    for n in range(10):
        answer = await web.ask(verb, path, {"text": "x"}, token=f"wrong-{n}")
        assert refusal_of(answer) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    answer = await web.ask(verb, path, {"text": "x"}, token=right)
    assert refusal_of(answer) == (429, "rate_limited")
    assert answer.json["error"]["type"] == "rate_limited"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    other = ("/hooks/wake", HOOK_TOKEN) if path == "/v1/models" else ("/v1/models", OWNER_TOKEN)
    verb = "GET" if other[0] == "/v1/models" else "POST"
    assert (await web.ask(verb, other[0], {"text": "x"}, token=other[1])).status == 200  # counted apart


@pytest.mark.parametrize(("path", "token"), [("/v1/models", OWNER_TOKEN), ("/hooks/agent", HOOK_TOKEN)])
async def test_guesses_from_all_addresses_of_this_machine_count_together(
    web: Web, path: str, token: str
) -> None:
    statuses = []
    for last in range(1, 14):
        connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{last}", 0))
        async with aiohttp.ClientSession(connector=connector) as http:
            shown = {"Authorization": "Bearer wrong" if last < 13 else f"Bearer {token}"}
            verb = "GET" if path.startswith("/v1") else "POST"
            async with http.request(verb, web.url + path, headers=shown, json={"message": "x"}) as response:
                statuses.append(response.status)
    assert statuses == [401] * 10 + [429] * 3


async def test_a_request_without_a_secret_is_no_guess(web: Web) -> None:
    for _ in range(15):
        assert (await web.ask("GET", "/v1/models", token=None)).status == 401
    assert (await web.ask("GET", "/v1/models")).status == 200


@pytest.mark.promise("access.wrong_secrets_are_slowed")
@pytest.mark.parametrize(
    ("first", "second"),
    [("10.0.0.1", "::ffff:10.0.0.1"), ("2001:db8::1", "2001:db8:0:0:ffff::2"), ("fe80::1%eth0", "fe80::1")],
)
def test_another_spelling_of_an_address_gets_no_more_tries(first: str, second: str) -> None:
    tries = FailedAttempts(clock=lambda: 0.0)
    for _ in range(10):
        tries.check(first)
        tries.wrong(first)
    for address in (first, second):
        with pytest.raises(web_module.TooManyAttempts):
            tries.check(address)
    tries.check("10.0.0.2")
    tries.check("2001:db8:0:1::1")


def head(path: str, *lines: str, token: str = OWNER_TOKEN) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *lines)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(LIMIT_S):
        return int((await reader.readline()).split()[1])


@pytest.mark.promise("access.bodies_are_bounded")
async def test_a_body_that_says_it_is_too_large_is_refused_unread(web: Web) -> None:
    paths = [address(route) for route in ROUTES if route.verb == "POST"]
    for path in [*paths, "/hooks/agent", "/hooks/any"]:
        token = HOOK_TOKEN if "hooks" in path else OWNER_TOKEN
        reader, writer = await web.raw(head(path, "Content-Length: 999999999", token=token))
        assert await status_of(reader) == 413, path  # not a byte of it was sent
        writer.close()


@pytest.mark.promise("access.bodies_are_bounded")
async def test_a_body_that_does_not_say_how_large_it_is_is_read_up_to_the_limit(web: Web) -> None:
    reader, writer = await web.raw(head("/tools/invoke", "Transfer-Encoding: chunked"))
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for _ in range(BODY_BYTES // 0x10000 + 1):
        writer.write(piece)
    await writer.drain()
    assert await status_of(reader) == 413
    writer.close()


@pytest.mark.promise("access.bodies_are_bounded")
async def test_who_may_not_ask_is_refused_before_the_body_is_read(web: Web) -> None:
    for token, status in (("wrong", 401), (READER, 403)):
        reader, writer = await web.raw(head("/tools/invoke", "Content-Length: 100", token=token))
        assert await status_of(reader) == status
        writer.close()


async def test_a_body_that_does_not_come_is_not_waited_for(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "BODY_S", 0.1)
    reader, writer = await web.raw(head("/tools/invoke", "Content-Length: 100") + b'{"tool":')
    assert await status_of(reader) == 408
    writer.close()


async def test_a_caller_that_leaves_amid_its_body_leaves_nothing_behind(web: Web) -> None:
    _, writer = await web.raw(head("/v1/chat/completions", "Content-Length: 100") + b'{"model":')
    writer.close()
    await writer.wait_closed()
    assert (await web.ask("GET", "/healthz", token=None)).status == 200


async def test_a_body_that_cannot_be_read_is_a_refusal_that_says_why(web: Web) -> None:
    headers = {"Authorization": f"Bearer {OWNER_TOKEN}"}
    unread = [b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 5000, b'{"tool": 1}', b'{"tool": "x", "nope": 1}']
    for body in unread:
        async with web.http.post(f"{web.url}/tools/invoke", data=body, headers=headers) as response:
            error = (await response.json())["error"]
            assert (response.status, error["type"]) == (400, "invalid_request_error"), body


async def test_every_refusal_has_one_shape(web: Web) -> None:
    await web.gateway.sessions.create(Operator(), "main")
    for verb, path, status, code in (
        ("GET", "/nothing/here", 404, "not_found"),
        ("GET", "/tools/invoke", 405, "input.verb"),
        ("GET", "/hooks/agent", 405, "input.verb"),
        ("DELETE", "/v1/models", 405, "input.verb"),
        ("GET", "/sessions/nobody/history", 404, "session.not_found"),
        ("GET", "/sessions/agent::x/history", 400, "key.bad"),
        ("GET", "/sessions/main/history?limit=0", 400, "input.bad"),
        ("GET", "/sessions/main/history?cursor=x", 400, "input.bad"),
        ("GET", "/sessions/main/history?nope=1", 400, "input.bad"),
    ):
        answer = await web.ask(verb, path)
        assert refusal_of(answer) == (status, code), path
        assert ("Allow" in answer.headers) == (status == 405)


async def test_what_is_not_there_or_done_otherwise_is_said_so(web: Web) -> None:
    assert (await web.ask("GET", "/nowhere")).status == 404
    assert (await web.ask("GET", "/healthz/")).status == 404
    wrong = await web.ask("POST", "/healthz")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "GET, HEAD")
    head = await web.ask("HEAD", "/healthz")
    assert (head.status, head.headers["Content-Type"]) == (200, "application/json")
    found = await web.ask("GET", "/sessions/agent%3Aann%3Amain/history")
    assert found.json["error"]["message"] == "There is no session agent:ann:main."


async def test_whether_it_is_up_anybody_may_ask(web: Web) -> None:
    assert (await web.ask("GET", "/healthz", token=None)).json["ok"] is True


def test_what_changes_anything_needs_a_scope() -> None:
    assert [r.path for r in ROUTES if r.verb == "POST" and r.scope is None] == []
