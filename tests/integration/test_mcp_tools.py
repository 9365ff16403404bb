"""Tools of real MCP servers, in processes of their own."""

import asyncio
import gzip
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import call_method, use
from tests.waiting import until

from hobnob.models import Request
from hobnob.testing import rehearse, say
from hobnob.tools import mcp

pytest.importorskip("mcp")
httpx2 = pytest.importorskip("httpx2")
from hobnob.tools import mcp_transports  # noqa: E402 - it needs the package

PROGRAM = str(Path(__file__).parent.parent / "programs" / "mcp_tools.py")
HOSTILE = str(Path(__file__).parent.parent / "programs" / "mcp_hostile.py")


def servers(**more: Any) -> dict[str, Any]:
    rules = {"command": sys.executable, "args": [PROGRAM], "connectSeconds": 60} | more
    return {"mcp": {"servers": {"lab": rules}}}


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.promise("mcp.listed")
async def test_tools_of_a_server_are_listed_under_its_name_and_can_be_called(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, servers(env={"GIVEN": "yes"})) as gateway:
        answer = await use(gateway, "mcp__lab__echo", "main", text="hello")
        assert answer == {"status": "ok", "text": "you said hello"}
        spec = next(tool for tool in model_requests[0].tools if tool.name == "mcp__lab__echo")
        assert spec.parameters["required"] == ["text"]
        assert spec.description.startswith("A tool of the MCP server lab.")
        found = await call_method(gateway, "tools.effective", sessionKey="main")
        groups = {
            group["id"]: [tool["id"] for tool in group["tools"]] for group in found["payload"]["groups"]
        }
        assert "mcp__lab__echo" in groups["group:mcp"]
        from_outside = await call_method(gateway, "tools.invoke", tool="mcp__lab__echo", args={"text": "hi"})
        assert from_outside["error"]["details"]["code"] == "not_found"
        wrong = await use(gateway, "mcp__lab__echo", "main", words="hello")
        assert wrong["status"] == "error"
        failed = await use(gateway, "mcp__lab__fail", "main")
        assert (failed["status"], failed["code"]) == ("error", "mcp.failed")


async def test_a_server_gets_no_keys_and_ends_with_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    async with rehearse(tmp_path, servers(env={"GIVEN": "yes"})) as gateway:
        pid, given, key = (await use(gateway, "mcp__lab__where", "main"))["text"].split()
        assert (given, key) == ("yes", "None")
        assert alive(int(pid))
    assert not alive(int(pid))
    assert list((tmp_path / "processes").iterdir()) == []


@pytest.mark.promise("mcp.bounded")
async def test_what_a_server_says_and_how_long_it_takes_is_bounded(tmp_path: Path) -> None:
    async with rehearse(tmp_path, servers(timeoutSeconds=4)) as gateway:
        assert len((await use(gateway, "mcp__lab__flood", "main"))["text"]) < 61_000
        slow = await use(gateway, "mcp__lab__dawdle", "main")
        assert "took longer than 4 seconds" in slow["error"]
        assert (await use(gateway, "mcp__lab__echo", "main", text="still"))["text"] == "you said still"


@pytest.mark.promise("mcp.bounded")
async def test_a_message_that_is_too_long_ends_its_server_which_is_started_again(tmp_path: Path) -> None:
    async with rehearse(tmp_path, servers()) as gateway:
        first = (await use(gateway, "mcp__lab__where", "main"))["text"].split()[0]
        assert (await use(gateway, "mcp__lab__be_enormous", "main"))["code"] == "mcp.failed"
        second = (await use(gateway, "mcp__lab__where", "main"))["text"].split()[0]
        assert first != second
        await until(lambda: not alive(int(first)))


@pytest.mark.promise("mcp.bounded")
async def test_a_line_without_an_end_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    endless = "import os\nwhile True: os.write(1, b'x' * 1_000_000)"
    begin = rss_bytes()
    async with rehearse(tmp_path, servers(args=["-c", endless], connectSeconds=3)) as gateway:
        assert (await say(gateway, "say: here")).reply == "here"
        await until(lambda: "a message exceeds" in caplog.text)
    assert rss_bytes() - begin < 150_000_000  # it would say gigabytes in that time


@pytest.mark.promise("mcp.patterns_are_not_matched")
async def test_no_pattern_of_a_server_is_matched_against_its_results(tmp_path: Path) -> None:
    async with rehearse(tmp_path, servers(args=[HOSTILE])) as gateway:
        answer = await use(gateway, "mcp__lab__trap", "main", x="a" * 60 + "!")
        assert answer == {"status": "ok", "text": "harmless"}


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.promise("mcp.restarted")
async def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    async with rehearse(tmp_path, servers()) as gateway:
        first = (await use(gateway, "mcp__lab__where", "main"))["text"].split()[0]
        died = await use(gateway, "mcp__lab__die", "main")
        assert died["code"] == "mcp.failed"
        second = (await use(gateway, "mcp__lab__where", "main"))["text"].split()[0]
        assert first != second


@pytest.mark.promise("mcp.never_stalls")
@pytest.mark.parametrize(
    "rules", [{"command": "/nowhere/at-all"}, {"args": ["-c", "import time; time.sleep(600)"]}]
)
async def test_a_server_that_does_not_come_up_holds_up_a_turn_only_so_long(
    tmp_path: Path, rules: Any
) -> None:
    async with rehearse(tmp_path, servers(**rules | {"connectSeconds": 1})) as gateway:
        assert (await say(gateway, "say: here")).reply == "here"
        with pytest.raises(StopIteration):  # the next turn does not wait at all
            gateway.tools.ready().send(None)
        assert (await say(gateway, "say: again")).reply == "again"


async def test_without_the_package_there_are_no_such_tools_and_turns_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with rehearse(tmp_path, servers()) as gateway:
        assert (await say(gateway, "say: here")).reply == "here"
        assert not [tool for tool in gateway.tools.tools if tool.name.startswith("mcp__")]


async def test_a_server_over_http_is_used_and_found_again(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rules = {"mcp": {"servers": {"web": {"url": f"http://127.0.0.1:{port}/mcp", "connectSeconds": 60}}}}
    argv = [sys.executable, PROGRAM, str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdout=quiet, stderr=quiet) as process:
        try:
            await until(lambda: _listens(port))
            async with rehearse(tmp_path, rules) as gateway:
                answer = await use(gateway, "mcp__web__echo", "main", text="hi")
                assert answer["text"] == "you said hi"
                enormous = await use(gateway, "mcp__web__be_enormous", "main")
                assert enormous["code"] == "mcp.failed"
                again = await use(gateway, "mcp__web__echo", "main", text="still there")
                assert again["text"] == "you said still there"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_server_over_http_is_reached_through_a_proxy_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi") as (port, asked):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        async with mcp_transports.http({}) as client:
            assert (await client.get("http://wiki.example/mcp")).text == "hi"
        assert asked[0].startswith(b"GET http://wiki.example/mcp ")


@pytest.mark.promise("mcp.bounded")
async def test_an_answer_that_is_packed_is_not_unpacked() -> None:
    packed = gzip.compress(b"x" * 100_000_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with answering(head + packed) as (port, _), mcp_transports.http({}) as client:
        with pytest.raises(httpx2.ReadError, match="compressed"):
            await client.get(f"http://127.0.0.1:{port}/")


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that gives everybody the same answer. Yields its port, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


@pytest.mark.parametrize("parameters", ["charset=punycode", ";" * 8000, ';"' * 4000])
async def test_the_parameters_of_a_content_type_are_ignored(parameters: str) -> None:
    """Their parser takes quadratic time, and so do some charsets."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; {parameters}\r\n\r\n".encode()
    async with answering(head + b"data: a-b\n\n") as (port, _), mcp_transports.http({}) as client:
        async with client.stream("GET", f"http://127.0.0.1:{port}/") as response:
            assert response.headers["content-type"] == "text/event-stream"
            assert [text async for text in response.aiter_text()] == ["data: a-b\n\n"]


async def test_an_answer_with_very_many_lists_is_not_decoded() -> None:
    body = b"[" + b"[]," * 300_000 + b"[]]"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with answering(head + body) as (port, _), mcp_transports.http({}) as client:
        with pytest.raises(httpx2.ReadError, match="too many objects"):
            await client.get(f"http://127.0.0.1:{port}/")
    assert isinstance(mcp_transports._message(body), ValueError)


def test_the_error_of_a_server_is_shown_without_its_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    trace = 'it broke\nTraceback (most recent call last):\n  File "/srv/a.py", line 1'
    with caplog.at_level("DEBUG", "hobnob.tools.mcp"):
        assert mcp._describe(ExceptionGroup("x", [ValueError(trace)])) == "ValueError: it broke"
    assert "/srv/a.py" in caplog.text
