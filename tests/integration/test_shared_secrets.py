"""Secrets that the gateways of one PostgreSQL database share: the owner's token, the key of device tokens."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests import postgres, stores
from tests.integration.node_client import NodeKey, approve, node_of
from tests.integration.test_devices import Device, hello
from tests.integration.test_wire import served
from tests.waiting import LIMIT_S

from hobnob import config, kept_secrets
from hobnob.client import open_client
from hobnob.errors import BadInput, RpcFailed, StoreCorrupt
from hobnob.kept_secrets import Cipher, WrongKey
from hobnob.store import open_store

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")

KEY = "a key for the tests of this store"
OTHER_KEY = "another key for the tests"


@pytest.fixture
def url() -> str:
    return postgres.new_database()


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """The state directories of two gateways."""
    both = tmp_path / "one", tmp_path / "two"
    for each in both:
        each.mkdir(mode=0o700)
    return both


def at(url: str, key: str | None = KEY, **gateway: Any) -> dict[str, Any]:
    """Settings of a gateway on a database."""
    store = {"url": url} | ({"secretKey": key} if key else {})
    return {"store": store, "gateway": {"port": 0} | gateway}


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOBNOB_")}
    return kept | {"HOBNOB_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "300"} | more


def command(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hobnob", *words],
        env=environment(home, **env),
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )


def configure(home: Path, settings: dict[str, Any]) -> None:
    (home / "hobnob.json5").write_text(json.dumps(settings))
    (home / "hobnob.json5").chmod(0o600)


@contextlib.contextmanager
def serving(home: Path, **env: str) -> Iterator[str]:
    """`hobnob serve` as a process. Yields what it printed and logged until it listened."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "hobnob", "serve"],
        env=environment(home, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if "Try: hobnob agent" in line:  # the last line of the start
                break
        yield "".join(lines)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=2 * LIMIT_S)


# -- what is shared


@pytest.mark.promise("store.shared_secrets")
async def test_the_token_of_the_first_gateway_is_accepted_by_the_next(
    homes: tuple[Path, Path], url: str
) -> None:
    async with served(homes[0], at(url)) as (_, token):
        pass
    async with served(homes[1], at(url)) as (second, _), open_client(second, token) as client:
        assert (await client.call("health"))["ok"]
    assert (homes[1] / "token").read_text() == token
    assert (homes[1] / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("store.shared_secrets")
async def test_a_device_keeps_its_token_at_another_gateway(homes: tuple[Path, Path], url: str) -> None:
    device = Device()
    async with served(homes[0], at(url)) as (first, token):
        own = (await hello(first, device, {"token": token}))["payload"]["auth"]["deviceToken"]
    async with served(homes[1], at(url)) as (second, _):
        answer = await hello(second, device, {"deviceToken": own})
    assert answer["ok"], answer
    assert answer["payload"]["auth"]["deviceToken"] == own


async def test_the_tokens_of_devices_are_shared_also_with_a_configured_token_of_the_owner(
    homes: tuple[Path, Path], url: str
) -> None:
    device, settings = Device(), at(url, auth={"token": "the-owners-own-token"})
    async with served(homes[0], settings) as (first, token):
        own = (await hello(first, device, {"token": token}))["payload"]["auth"]["deviceToken"]
    async with served(homes[1], settings) as (second, token):
        assert token == "the-owners-own-token"
        assert (await hello(second, device, {"deviceToken": own}))["ok"]


async def test_a_node_keeps_its_token_at_another_gateway(homes: tuple[Path, Path], url: str) -> None:
    key = NodeKey()
    async with (
        served(homes[0], at(url)) as (first, token),
        open_client(first, token) as owner,
        node_of(first, token, key) as node,
    ):
        await approve(owner, node)
    async with served(homes[0], at(url)) as (first, token), node_of(first, token, key) as node:
        own = node.hello["auth"]["deviceToken"]
    async with served(homes[1], at(url)) as (second, _), node_of(second, own, key) as node:
        assert node.hello["auth"]["deviceToken"] == own


async def test_an_mcp_grant_opens_the_endpoint_of_another_gateway(homes: tuple[Path, Path], url: str) -> None:
    async def knock(address: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with aiohttp.ClientSession() as http:
            async with http.post(
                f"{address.replace('ws', 'http', 1)}/mcp", json=ping, headers=headers
            ) as answer:
                return answer.status

    async with served(homes[0], at(url)) as (first, token), open_client(first, token) as owner:
        await owner.call("agent", message="say hi", idempotencyKey="k")
        made = (await owner.call("mcp.grants.create", sessionKey="main"))["token"]
    async with served(homes[1], at(url)) as (second, _):
        assert await knock(second, made) == 400  # let in: there is no session of the protocol yet
        assert await knock(second, "hm_wrong") == 401


async def test_gateways_that_start_at_the_same_moment_agree(homes: tuple[Path, Path], url: str) -> None:
    loaded = []
    for home in homes:
        configure(home, at(url))
        loaded.append(config.load(env={"HOBNOB_HOME": str(home)}))
    async with open_store(url) as store:
        await asyncio.gather(*(kept_secrets.share(each, store) for each in loaded))
    for name in kept_secrets.SHARED:
        assert (homes[0] / name).read_text() == (homes[1] / name).read_text() != ""


async def test_a_gateway_that_had_a_token_of_its_own_takes_the_shared_one_and_says_so(
    homes: tuple[Path, Path], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    (homes[1] / "token").write_text("a-token-from-before-sharing")
    async with served(homes[0], at(url)) as (_, token):
        pass
    caplog.clear()
    async with served(homes[1], at(url)) as (second, _):
        with pytest.raises(RpcFailed, match="token is wrong"):
            async with open_client(second, "a-token-from-before-sharing"):
                pass
        async with open_client(second, token):
            pass
    assert f"{homes[1] / 'token'} replaced by the one that the gateways of this database share" in caplog.text


# -- how they are stored


@pytest.mark.promise("store.shared_secrets_encrypted")
async def test_the_database_has_the_secrets_only_encrypted(homes: tuple[Path, Path], url: str) -> None:
    async with served(homes[0], at(url)):
        pass
    rows = dict(postgres.execute(url, "select name, value from secrets"))
    assert sorted(rows) == ["device-key", "token"]
    for name, value in rows.items():
        plain = (homes[0] / name).read_text()
        assert plain not in value
        assert Cipher(KEY).decrypt(name, value) == plain


@pytest.mark.promise("store.shared_secrets_encrypted")
def test_an_encrypted_text_cannot_be_changed_or_used_under_another_name() -> None:
    sealed = Cipher(KEY).encrypt("token", "a secret text")
    assert Cipher(KEY).decrypt("token", sealed) == "a secret text"
    with pytest.raises(WrongKey):
        Cipher(KEY).decrypt("device-key", sealed)
    with pytest.raises(WrongKey):
        Cipher(OTHER_KEY).decrypt("token", sealed)
    for place in (-5, 30, 5):
        other = "A" if sealed[place] != "A" else "B"
        with pytest.raises(WrongKey):
            Cipher(KEY).decrypt("token", sealed[:place] + other + sealed[place + 1 :])
    assert Cipher(KEY).encrypt("token", "a secret text") != sealed


async def test_a_damaged_row_is_reported_as_that(homes: tuple[Path, Path], url: str) -> None:
    async with served(homes[0], at(url)):
        pass
    postgres.execute(url, "update secrets set value = 'nonsense'")
    with pytest.raises(StoreCorrupt, match="damaged") as refusal:
        async with served(homes[0], at(url)):
            pass
    assert "hobnob store reset-secrets" in (refusal.value.fix or "")


# -- keys


@pytest.mark.promise("store.wrong_key_refused")
async def test_a_gateway_with_another_key_does_not_start(homes: tuple[Path, Path], url: str) -> None:
    async with served(homes[0], at(url)):
        pass
    before = postgres.execute(url, "select * from secrets order by name")
    (homes[1] / "token").write_text("the-token-of-the-second")
    with pytest.raises(BadInput) as refusal:
        async with served(homes[1], at(url, OTHER_KEY)):
            pass
    assert "store.secretKey (hobnob.json5) is not the key" in refusal.value.message
    assert "HOBNOB_STORE_KEY" in (refusal.value.fix or "")
    assert "hobnob store reset-secrets" in (refusal.value.fix or "")
    assert postgres.execute(url, "select * from secrets order by name") == before
    assert (homes[1] / "token").read_text() == "the-token-of-the-second"


@pytest.mark.promise("store.wrong_key_refused")
async def test_a_gateway_without_a_key_does_not_start_where_others_share(
    homes: tuple[Path, Path], url: str
) -> None:
    async with served(homes[0], at(url)):
        pass
    with pytest.raises(BadInput, match=r"store\.secretKey is not set") as refusal:
        async with served(homes[1], at(url, None)):
            pass
    assert "Set HOBNOB_STORE_KEY" in (refusal.value.fix or "")


async def test_after_a_reset_a_new_key_encrypts_the_same_secrets(homes: tuple[Path, Path], url: str) -> None:
    async with served(homes[0], at(url)) as (_, token):
        pass
    configure(homes[0], at(url, OTHER_KEY))
    done = await asyncio.to_thread(command, homes[0], "store", "reset-secrets")
    assert "Deleted 2 secrets" in done.stdout, done.stderr
    async with served(homes[0], at(url, OTHER_KEY)):
        pass
    async with served(homes[1], at(url, OTHER_KEY)) as (second, _), open_client(second, token):
        pass
    with pytest.raises(BadInput, match="is not the key"):
        async with served(homes[1], at(url)):
            pass


def test_a_key_that_could_be_guessed_is_refused_and_none_is_shown(tmp_path: Path) -> None:
    short = command(tmp_path, "config", "show", HOBNOB_STORE_KEY=" short and blank ")
    assert short.returncode == 2
    assert "store.secretKey: must have at least 16 characters" in short.stdout + short.stderr
    shown = command(tmp_path, "config", "show", HOBNOB_STORE_KEY=KEY)
    assert "$HOBNOB_STORE_KEY" in shown.stdout
    assert KEY not in shown.stdout + shown.stderr


async def test_on_sqlite_a_key_changes_nothing(homes: tuple[Path, Path]) -> None:
    settings = {"store": {"secretKey": KEY}, "gateway": {"port": 0}}
    async with served(homes[0], settings) as (_, token):
        assert (homes[0] / "token").read_text() == token
    done = await asyncio.to_thread(command, homes[0], "store", "reset-secrets")
    assert (done.returncode, "nothing is shared" in done.stderr) == (2, True), done.stderr


# -- processes


@pytest.mark.promise("store.shared_secrets")
async def test_commands_of_each_machine_reach_their_gateway_with_the_shared_token(
    homes: tuple[Path, Path], url: str
) -> None:
    async with served(homes[0], at(url)) as (_, token):
        pass
    configure(homes[1], at(url, None))

    def use() -> tuple[str, subprocess.CompletedProcess[str]]:
        with serving(homes[1], HOBNOB_STORE_KEY=f"{KEY}\n") as said:
            return said, command(homes[1], "sessions", "list", "--json")  # without the key

    said, done = await asyncio.to_thread(use)
    assert done.returncode == 0, done.stderr
    assert "sessions" in json.loads(done.stdout)
    assert "secretKey" not in said
    assert (homes[1] / "token").read_text() == token


@pytest.mark.promise("store.missing_key_reported")
async def test_without_a_key_one_gateway_works_and_the_log_and_doctor_say_what_others_need(
    homes: tuple[Path, Path], url: str
) -> None:
    configure(homes[0], at(url, None))

    def use() -> tuple[str, subprocess.CompletedProcess[str]]:
        with serving(homes[0]) as said:
            return said, command(homes[0], "agent", "-m", "say hi")

    said, done = await asyncio.to_thread(use)
    assert (done.returncode, done.stdout.strip()) == (0, "hi"), done.stderr
    assert "store.secretKey is not set: the generated token of the owner, the tokens of devices" in said
    assert "HOBNOB_STORE_KEY" in said
    assert postgres.execute(url, "select * from secrets") == []
    report = json.loads((await asyncio.to_thread(command, homes[0], "doctor", "--json")).stdout)
    [finding] = [each for each in report["findings"] if each["check"] == "secrets"]
    assert finding["state"] == "warn"
    assert "openssl rand" in finding["fix"]


async def test_doctor_tells_whether_the_key_fits(homes: tuple[Path, Path], url: str) -> None:
    async with served(homes[0], at(url)):
        pass
    configure(homes[1], at(url, None))
    fits, wrong = [
        json.loads((await asyncio.to_thread(_doctor, homes[1], key)).stdout) for key in (KEY, OTHER_KEY)
    ]
    assert [f["state"] for f in fits["findings"] if f["check"] == "secrets"] == ["ok"]
    [problem] = [f for f in wrong["findings"] if f["state"] == "fail"]
    assert "store.secretKey ($HOBNOB_STORE_KEY) is not the key" in problem["message"]


def _doctor(home: Path, key: str) -> subprocess.CompletedProcess[str]:
    return command(home, "doctor", "--json", HOBNOB_STORE_KEY=key)


async def test_a_database_of_an_older_version_has_no_shared_secrets_yet(
    homes: tuple[Path, Path], url: str
) -> None:
    postgres.execute(url, "drop table secrets; delete from migrations where name like '%shared_secrets'")
    configure(homes[0], at(url, None))
    report = await asyncio.to_thread(_doctor, homes[0], KEY)
    assert [f["state"] for f in json.loads(report.stdout)["findings"] if f["check"] == "store"] == ["ok"]
    done = await asyncio.to_thread(command, homes[0], "store", "reset-secrets")
    assert "Deleted 0 secrets" in done.stdout, done.stderr
    async with served(homes[0], at(url)) as (address, token), open_client(address, token):
        assert len(postgres.execute(url, "select * from secrets")) == 2
