"""Where callers are, which pages may call, and how often a wrong secret may be shown."""

from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from hobnob.api.auth import FailedAttempts, Peer, origin_allowed, peer_of
from hobnob.config import Settings
from hobnob.errors import TooManyAttempts


def settings(**gateway: Any) -> Settings:
    return Settings.model_validate({"gateway": gateway})


@pytest.mark.parametrize(
    ("proxies", "client", "headers", "expected"),
    [
        ([], "127.0.0.1", {}, Peer("127.0.0.1", True)),
        ([], "::1", {}, Peer("::1", True)),
        ([], "192.0.2.9", {}, Peer("192.0.2.9", False)),
        # Behind a proxy that is not configured, a caller is not local.
        ([], "127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, Peer("127.0.0.1", False)),
        ([], "127.0.0.1", {"forwarded": "for=127.0.0.1"}, Peer("127.0.0.1", False)),
        ([], "127.0.0.1", {"x-real-ip": "127.0.0.1"}, Peer("127.0.0.1", False)),
        ([], "192.0.2.9", {"x-forwarded-for": "127.0.0.1"}, Peer("192.0.2.9", False)),
        (["127.0.0.1"], "127.0.0.1", {"x-forwarded-for": "198.51.100.1"}, Peer("198.51.100.1", False)),
        # The caller can forge the entries on the left; the proxy appends on the right.
        (
            ["127.0.0.1"],
            "127.0.0.1",
            {"x-forwarded-for": "127.0.0.1, 198.51.100.1"},
            Peer("198.51.100.1", False),
        ),
        (
            ["10.0.0.0/8"],
            "10.1.1.1",
            {"x-forwarded-for": "203.0.113.5, 10.2.2.2"},
            Peer("203.0.113.5", False),
        ),
        (["127.0.0.1"], "127.0.0.1", {"x-forwarded-for": "198.51.100.1:50411"}, Peer("198.51.100.1", False)),
        (["127.0.0.1"], "127.0.0.1", {"x-forwarded-for": "[2001:db8::1]:504"}, Peer("2001:db8::1", False)),
        (["127.0.0.1"], "127.0.0.1", {"x-forwarded-for": "1.2.3.4, nobody"}, Peer("127.0.0.1", False)),
        (["127.0.0.1"], "127.0.0.1", {}, Peer("127.0.0.1", False)),
        (["nonsense"], "127.0.0.1", {}, Peer("127.0.0.1", True)),
        ([], None, {}, Peer("", False)),
    ],
)
def test_the_peer_of_a_connection(
    proxies: list[str], client: str | None, headers: dict[str, str], expected: Peer
) -> None:
    scope = {"type": "http", "client": client and (client, 50000), "headers": Headers(headers).raw}
    assert peer_of(settings(trustedProxies=proxies), HTTPConnection(scope)) == expected


@pytest.mark.parametrize(
    ("gateway", "origin", "host", "allowed"),
    [
        ({}, None, "127.0.0.1:4626", True),
        ({}, "http://127.0.0.1:4626", "127.0.0.1:4626", True),
        ({}, "http://localhost:4626", "localhost:4626", True),
        ({}, "http://[::1]:4626", "[::1]:4626", True),
        ({}, "https://evil.example", "127.0.0.1:4626", False),
        ({}, "http://127.0.0.1:9999", "127.0.0.1:4626", False),
        ({}, "null", "127.0.0.1:4626", False),
        ({}, "http://[", "127.0.0.1:4626", False),
        # A name of somebody else's that leads here.
        ({}, "http://rebound.example:4626", "rebound.example:4626", False),
        ({"bind": "lan"}, "http://box.example:4626", "box.example:4626", True),
        ({"bind": "lan"}, "http://other.example", "box.example:4626", False),
        ({"trustedProxies": ["127.0.0.1"]}, "https://hob.example", "hob.example", True),
        (
            {"controlUi": {"allowedOrigins": ["https://Page.example/"]}},
            "https://page.example",
            "127.0.0.1:4626",
            True,
        ),
    ],
)
def test_which_pages_may_call(gateway: Any, origin: str | None, host: str, allowed: bool) -> None:
    headers = {"host": host} | ({"origin": origin} if origin is not None else {})
    assert origin_allowed(settings(**gateway), headers) is allowed


def test_after_ten_wrong_secrets_an_address_waits_and_others_do_not() -> None:
    now = 1000.0
    tries = FailedAttempts(lambda: now)
    for _ in range(10):
        tries.check("192.0.2.1")
        tries.wrong("192.0.2.1")
    with pytest.raises(TooManyAttempts) as waiting:
        tries.check("192.0.2.1")
    assert waiting.value.wait_s == 6
    tries.check("192.0.2.2")
    now += 6
    tries.check("192.0.2.1")
    tries.wrong("192.0.2.1")
    with pytest.raises(TooManyAttempts):
        tries.check("192.0.2.1")
    now += 60
    for _ in range(10):
        tries.check("192.0.2.1")
        tries.wrong("192.0.2.1")


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "::ffff:127.9.9.9", "::ffff:7f00:1"],
        ["2001:db8:1:2::1", "2001:db8:1:2:ffff::", "2001:DB8:1:2::3%eth0"],
        ["192.0.2.1", "::ffff:192.0.2.1"],
    ],
)
def test_addresses_that_one_caller_can_choose_from_are_counted_together(addresses: list[str]) -> None:
    tries = FailedAttempts(lambda: 0.0)
    for number in range(10):
        tries.wrong(addresses[number % len(addresses)])
    for address in addresses:
        with pytest.raises(TooManyAttempts):
            tries.check(address)
    for other in ("198.51.100.1", "2001:db8:1:3::1", "::2"):
        tries.check(other)


def test_so_many_addresses_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hobnob.api.auth._MAX_ADDRESSES", 3)
    tries = FailedAttempts(lambda: 0.0)
    for last in range(9):
        tries.wrong(f"192.0.2.{last}")
    assert len(tries._spent) == 3
