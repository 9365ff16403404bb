"""web_fetch, against real servers: what it reads, and what it never connects to."""

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import use
from tests.integration.web import Web, web_of

from hobnob.testing import rehearse
from hobnob.tools import web as web_module
from hobnob.tools.web import is_public
from hobnob.workspaces.guest.pages import as_text, decode

LOCAL: dict[str, Any] = {"allowAddresses": ["127.0.0.1"]}
PAGE = (
    "<html><head><title>A page</title><style>x</style></head>"
    "<body><h1>Hello</h1><script>evil()</script><p>you</p>"
)


def settings(**fetch: Any) -> dict[str, Any]:
    return {"tools": {"web": {"fetch": fetch}}}


@asynccontextmanager
async def served(answer: Callable[[str], bytes]) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that gives whole answers by path, and what was asked of it. Below /slow it stays connected."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        asked.append(path)
        try:
            writer.write(answer(path))
            await writer.drain()
            if path.startswith("/slow"):
                await reader.read()
        except ConnectionError:
            pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def response(body: bytes, kind: str = "text/html", status: str = "200 OK", more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


async def test_a_page_is_read_as_text(tmp_path: Path) -> None:
    async with (
        served(lambda _: response(PAGE.encode())) as (url, _),
        rehearse(tmp_path, settings(**LOCAL)) as gateway,
    ):
        answer = await use(gateway, "web_fetch", "main", url=f"{url}/a")
    assert (answer["status"], answer["title"], answer["text"]) == (200, "A page", "Hello\n\nyou")


@pytest.mark.promise("web.no_private_address")
@pytest.mark.parametrize(
    "host",
    """localhost localhost. LOCALHOST 127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 0 0.0.0.0 [::1] [::]
    [::ffff:127.0.0.1] [0:0:0:0:0:ffff:7f00:1] [::ffff:7f00:1] [64:ff9b::7f00:1] [2002:7f00:1::]
    169.254.169.254 [::ffff:169.254.169.254] [fd00:ec2::254] [fe80::1] 10.0.0.1 172.16.0.1 192.168.1.1
    100.100.100.200 168.63.129.16 192.0.0.192 ①②⑦.0.0.1""".split(),
)
async def test_no_spelling_of_a_private_address_is_connected_to(tmp_path: Path, host: str) -> None:
    async with served(lambda _: response(b"secret")) as (url, asked), rehearse(tmp_path) as gateway:
        port = url.rpartition(":")[2]
        answer = await use(gateway, "web_fetch", "main", url=f"http://{host}:{port}/")
        assert answer["status"] in ("forbidden", "error"), answer
        assert "secret" not in str(answer)
        assert asked == []


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://example.com/", "gopher://x", "http://", "http://u:p@example.com/", "x"],
)
async def test_only_plain_web_addresses_are_fetched(tmp_path: Path, url: str) -> None:
    async with rehearse(tmp_path) as gateway:
        assert (await use(gateway, "web_fetch", "main", url=url))["code"] == "input.bad"


@pytest.mark.promise("web.checked_where_connected")
@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{port}/", "http://localhost.:{port}/x", "//[::1]:{port}/"]
)
async def test_a_redirect_to_a_private_address_is_not_followed(tmp_path: Path, target: str) -> None:
    """The first server is allowed, what it leads to is not."""

    def answer(path: str) -> bytes:
        return response(b"", status="302 Found", more=f"Location: {target.format(port=port)}\r\n")

    async with served(answer) as (url, asked), rehearse(tmp_path, settings(**LOCAL)) as gateway:
        port = url.rpartition(":")[2]
        target = target.replace("localhost.", "127.0.0.2")
        said = await use(gateway, "web_fetch", "main", url=f"{url}/start")
        assert said["code"] == "web.private_address"
        assert asked == ["/start"]


@pytest.mark.promise("web.checked_where_connected")
async def test_the_address_that_was_checked_is_the_one_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that gives a public address first and a private one after is asked only once."""
    real, answers = socket.getaddrinfo, iter(["192.88.98.1", "127.0.0.1"])
    given: list[str] = []

    def rebinding(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "rebind.example":
            return real(host, port, *more, **options)
        given.append(next(answers))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (given[-1], port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    async with (
        served(lambda _: response(b"secret")) as (url, asked),
        rehearse(tmp_path, settings(timeoutSeconds=3)) as gateway,
    ):
        port = url.rpartition(":")[2]
        said = await use(gateway, "web_fetch", "main", url=f"http://rebind.example:{port}/")
        assert said["status"] == "error"
        assert (given, asked) == (["192.88.98.1"], [])
        again = await use(gateway, "web_fetch", "main", url=f"http://rebind.example:{port}/")
        assert again["code"] == "web.private_address"
        assert asked == []


@pytest.mark.promise("web.bounded")
async def test_size_unpacked_size_time_and_redirects_are_bounded(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(30_000_000).replace(b"\0", b"x"))

    def answer(path: str) -> bytes:
        if path == "/bomb":
            return response(bomb, "text/plain", more="Content-Encoding: gzip\r\n")
        if path == "/large":
            return response(b"y" * 3_000_000, "text/plain")
        if path == "/slow":
            return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\n"
        if path == "/binary":
            return response(b"\0\1", "application/zip")
        return response(b"", status="302 Found", more="Location: /again\r\n")

    rules = LOCAL | {"timeoutSeconds": 60, "maxChars": 1000}
    async with served(answer) as (url, asked), rehearse(tmp_path, settings(**rules)) as gateway:
        for path in ("bomb", "large"):
            page = await use(gateway, "web_fetch", "main", url=f"{url}/{path}")
            assert (len(page["text"]), page["truncated"]) == (1000, True)
        assert (await use(gateway, "web_fetch", "main", url=f"{url}/binary"))["text"] == ""
        asked.clear()
        assert "redirects more than" in (await use(gateway, "web_fetch", "main", url=f"{url}/loop"))["error"]
        assert len(asked) == 6
    hasty = settings(**LOCAL | {"timeoutSeconds": 1})
    async with served(answer) as (url, _), rehearse(tmp_path, hasty) as gateway:
        slow = await use(gateway, "web_fetch", "main", url=f"{url}/slow")
        assert "longer than 1 seconds" in slow["error"]


def test_public_addresses_are_public() -> None:
    assert all(map(is_public, ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"]))


def test_words_of_a_page_are_kept_apart_and_links_are_shown() -> None:
    title, text = as_text('<title>T</title><ul><li>a <a href="https://x.example/">b</a><li>c</ul>&amp;<br>d')
    assert title == "T"
    assert text == "- a b (https://x.example/)\n- c\n&\nd"


async def fetched_beside_health_checks(web: Web, url: str) -> tuple[dict[str, Any], float]:
    """The result of a fetch, and the longest time that /healthz took meanwhile."""
    loop, slowest = asyncio.get_running_loop(), 0.0
    fetching = asyncio.ensure_future(use(web.gateway, "web_fetch", url=url))
    while not fetching.done():
        asked_at = loop.time()
        assert (await web.ask("GET", "/healthz")).status == 200
        slowest = max(slowest, loop.time() - asked_at)
    return await fetching, slowest


@pytest.mark.promise("web.bounded")
@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html; charset=punycode", b"<p>a-" + b"b" * 80_000, "a-bbb"),
        ("text/html; charset=idna", b"<p>a-" + b"b" * 80_000, "a-bbb"),
        ("text/plain; charset=punycode", b"a-" + b"b" * 2_000_000, "a-bbb"),
        ("text/plain;" + ";" * 8000, b"a-bbb", "a-bbb"),
        ("text/plain;" + ';"' * 4000, b"a-bbb", "a-bbb"),
    ],
    ids=["punycode", "idna", "2 MB of punycode", "parameters", "quotes"],
)
async def test_hostile_headers_do_not_stop_the_gateway(
    tmp_path: Path, content_type: str, body: bytes, text: str
) -> None:
    async with (
        served(lambda _: response(body, content_type)) as (url, _),
        web_of(tmp_path, settings(**LOCAL)) as web,
    ):
        page, slowest = await fetched_beside_health_checks(web, url)
    assert page["text"].startswith(text)
    assert ("unknown charset" in page.get("note", "")) == ("charset=" in content_type)
    assert slowest < 1.5


@pytest.mark.promise("web.bounded")
async def test_converting_a_hostile_page_is_ended_after_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_module, "CONVERT_TIMEOUT_S", 1.0)
    pages = {"/hostile": b"<a " * 30_000, "/next": PAGE.encode()}
    async with (
        served(lambda path: response(pages[path])) as (url, _),
        web_of(tmp_path, settings(**LOCAL)) as web,
    ):
        refused, slowest = await fetched_beside_health_checks(web, f"{url}/hostile")
        assert "90,000 bytes) took longer than 1 seconds to convert to text" in refused["error"]
        assert (refused["code"], slowest < 1.5) == ("web.failed", True)
        monkeypatch.undo()
        assert (await use(web.gateway, "web_fetch", url=f"{url}/next"))["title"] == "A page"


async def test_compressed_data_that_never_ends_is_not_read_for_ever(tmp_path: Path) -> None:
    """After the end of the page, or with blocks that contain nothing."""
    begun = zlib.compressobj(wbits=31)
    endless = {
        "/after": gzip.compress(b"hello") + b"x" * 3_000_000,
        "/empty": begun.compress(b"hello") + begun.flush(zlib.Z_SYNC_FLUSH) + b"\0\0\0\xff\xff" * 600_000,
    }

    def answer(path: str) -> bytes:
        # Without Content-Length and without an end, see `served`.
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n"
        return head + endless[path.removeprefix("/slow")]

    async with served(answer) as (url, _), rehearse(tmp_path, settings(**LOCAL)) as gateway:
        after = await use(gateway, "web_fetch", "main", url=f"{url}/slow/after")
        empty = await use(gateway, "web_fetch", "main", url=f"{url}/slow/empty")
    assert (after["text"], after["truncated"]) == ("hello", False)
    assert (empty["text"], empty["truncated"]) == ("hello", True)


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("", "größe".encode(), "größe"),
        ("UTF-8", b"\xef\xbb\xbfa", "a"),
        ("iso-8859-1", b"10 \x80", "10 €"),
        ("Shift_JIS", "日本".encode("shift_jis"), "日本"),
        ("euc-jp", "日本".encode("euc-jp"), "日本"),
        ("gb2312", "中文".encode("gb18030"), "中文"),
        ("big5", "中文".encode("big5"), "中文"),
        ("euc-kr", "한국".encode("euc-kr"), "한국"),
        ("koi8-r", "да".encode("koi8-r"), "да"),
        ("windows-1251", "да".encode("cp1251"), "да"),
        ("utf-16", "да".encode("utf-16"), "да"),
    ],
)
def test_the_charsets_of_the_web_are_decoded(charset: str, body: bytes, text: str) -> None:
    assert decode(body, charset) == (text, True)


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "utf-7", "zlib", "rot13", "x"])
def test_any_other_charset_is_read_as_utf_8(charset: str) -> None:
    assert decode(b"a\xc3\xa4\xff", charset) == ("aä�", False)
