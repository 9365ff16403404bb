"""Clients that sign in with a key of their own."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.integration.test_wire import READER, client_of, frame, served
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hobnob.api.devices import verify
from hobnob.api.server import open_server
from hobnob.client import open_client
from hobnob.config import Config, Settings
from hobnob.errors import RpcFailed, Unauthenticated
from hobnob.gateway import api_services
from hobnob.testing import rehearse
from hobnob.types import now_ms

CLIENT = {"id": "webchat-ui", "version": "1", "platform": "Linux", "deviceFamily": "Desk", "mode": "webchat"}
AWAY = {"X-Forwarded-For": "192.0.2.7"}  # as a proxy adds it that nobody told us of


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Device:
    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes_raw()
        self.id = hashlib.sha256(self.public).hexdigest()

    def params(
        self, challenge: Any, auth: dict[str, str], version: str = "v3", **wrong: Any
    ) -> dict[str, Any]:
        scopes = ["operator.read", "operator.admin"]
        signed_at = wrong.pop("signedAt", challenge["ts"])
        nonce = wrong.pop("nonce", challenge["nonce"])
        token = auth.get("token") or auth.get("deviceToken") or ""
        parts = [
            version,
            self.id,
            CLIENT["id"],
            CLIENT["mode"],
            "operator",
            ",".join(scopes),
            signed_at,
            token,
        ]
        parts += [nonce, "linux", "desk"] if version == "v3" else [nonce]
        device = {
            "id": self.id,
            "publicKey": b64(self.public),
            "signature": b64(self.key.sign("|".join(map(str, parts)).encode())),
            "signedAt": signed_at,
            "nonce": nonce,
        }
        params = {"minProtocol": 3, "maxProtocol": 4, "client": CLIENT, "role": "operator", "scopes": scopes}
        return params | {"auth": auth, "device": device | wrong}


@asynccontextmanager
async def socket_of(
    url: str, device: Device, auth: dict[str, str], headers: Any = None, **more: Any
) -> AsyncIterator[tuple[ClientConnection, Any]]:
    async with connect(url, additional_headers=headers, compression=None) as socket:
        challenge = (await frame(socket))["payload"]
        params = device.params(challenge, auth, **more)
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        yield socket, await frame(socket)


async def hello(url: str, device: Device, auth: dict[str, str], headers: Any = None, **more: Any) -> Any:
    async with socket_of(url, device, auth, headers, **more) as (_, answer):
        return answer


@pytest.mark.parametrize("version", ["v2", "v3"])
async def test_a_device_on_this_machine_is_paired_at_once_and_gets_a_token(
    tmp_path: Path, version: str
) -> None:
    device = Device()
    async with served(tmp_path) as (url, token):
        first = await hello(url, device, {"token": token}, version=version)
        assert first["ok"], first
        own = first["payload"]["auth"]["deviceToken"]
        with_own = await hello(url, device, {"deviceToken": own}, version=version)
        assert "operator.admin" in with_own["payload"]["auth"]["scopes"]
        async with open_client(url, token) as owner:
            listed = await owner.call("device.pair.list")
            assert [row["deviceId"] for row in listed["paired"]] == [device.id]
            assert listed["pending"] == []


async def test_a_devices_token_is_of_no_use_without_its_key(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token):
        own = (await hello(url, device, {"token": token}))["payload"]["auth"]["deviceToken"]
        assert not (await hello(url, Device(), {"token": own}))["ok"]
        with pytest.raises(RpcFailed, match="unauthorized"):
            async with open_client(url, own):
                pass


async def test_a_device_from_elsewhere_waits_until_it_is_approved(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        refused = await hello(url, device, {"token": token}, AWAY)
        assert refused["error"]["code"] == "NOT_PAIRED"
        request = refused["error"]["details"]["requestId"]
        assert f"hobnob devices approve {request}" in refused["error"]["details"]["fix"]
        again = await hello(url, device, {"token": token}, AWAY)
        assert again["error"]["details"]["requestId"] == request  # asking twice is one request
        await owner.call("device.pair.approve", requestId=request)
        assert (await hello(url, device, {"token": token}, AWAY))["ok"]
        with pytest.raises(RpcFailed, match="no open pairing request"):
            await owner.call("device.pair.approve", requestId=request)


async def test_a_device_without_a_right_secret_does_not_even_get_to_wait(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        refused = await hello(url, Device(), {"token": "wrong"}, AWAY)
        assert refused["error"]["details"]["code"] == "AUTH_TOKEN_MISMATCH"
        assert (await owner.call("device.pair.list"))["pending"] == []


async def test_a_device_may_do_what_its_credential_could(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, _):
        first = await hello(url, device, {"token": str(READER["token"])})
        own = first["payload"]["auth"]
        assert own["scopes"] == ["operator.read"]  # whatever it claims
        again = await hello(url, device, {"deviceToken": own["deviceToken"]})
        assert again["payload"]["auth"]["scopes"] == ["operator.read"]


@pytest.mark.parametrize("method", ["device.token.rotate", "device.token.revoke", "device.pair.remove"])
async def test_a_token_that_is_taken_back_closes_the_connections_it_opened(
    tmp_path: Path, method: str
) -> None:
    device = Device()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with socket_of(url, device, {"token": token}) as (socket, answer):
            own = answer["payload"]["auth"]["deviceToken"]
            done = await owner.call(method, deviceId=device.id)
            assert done["closedConnections"] == 1
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await frame(socket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
        assert not (await hello(url, device, {"deviceToken": own}))["ok"]
        with_secret = await hello(url, device, {"token": token})
        assert with_secret["ok"] == (method == "device.token.rotate")  # one that was sent away stays out
        if method != "device.token.rotate":
            assert with_secret["error"]["code"] == "NOT_PAIRED"


async def test_a_request_that_was_turned_down_stays_turned_down(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        refused = await hello(url, device, {"token": token}, AWAY)
        await owner.call("device.pair.reject", requestId=refused["error"]["details"]["requestId"])
        assert not (await hello(url, device, {"token": token}))["ok"]  # not from this machine either


async def test_requests_are_kept_so_many_at_a_time(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        mine = await hello(url, Device(), {"token": token}, AWAY)
        for _ in range(22):
            await hello(url, Device(), {"token": str(READER["token"])}, AWAY)
        pending = (await owner.call("device.pair.list"))["pending"]
        assert len(pending) == 21  # those of one credential do not push out those of another
        assert mine["error"]["details"]["requestId"] in [row["requestId"] for row in pending]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"id": "0" * 64}, "DEVICE_AUTH_DEVICE_ID_MISMATCH"),
        ({"publicKey": "AAAA"}, "DEVICE_AUTH_PUBLIC_KEY_INVALID"),
        ({"publicKey": 7}, "DEVICE_AUTH_PUBLIC_KEY_INVALID"),
        ({"signature": b64(b"x" * 64)}, "DEVICE_AUTH_SIGNATURE_INVALID"),
        ({"signature": None}, "DEVICE_AUTH_SIGNATURE_INVALID"),
        ({"nonce": ""}, "DEVICE_AUTH_NONCE_REQUIRED"),
        ({"nonce": "another"}, "DEVICE_AUTH_NONCE_MISMATCH"),
        ({"signedAt": 5}, "DEVICE_AUTH_SIGNATURE_EXPIRED"),
        ({"version": "v9"}, "DEVICE_AUTH_SIGNATURE_INVALID"),
    ],
)
async def test_a_device_that_cannot_prove_itself_is_refused(tmp_path: Path, wrong: Any, code: str) -> None:
    async with served(tmp_path) as (url, token):
        refused = await hello(url, Device(), {"token": token}, **wrong)
        assert (refused["ok"], refused["error"]["details"]["code"]) == (False, code)


def test_a_signature_is_good_for_two_minutes_and_one_challenge() -> None:
    device, at = Device(), now_ms()
    params = device.params({"nonce": "n", "ts": at}, {"token": "t"})
    verify(params, "n", at + 119_000)
    for nonce, when in (("n", at + 121_000), ("n", at - 121_000), ("m", at)):
        with pytest.raises(Unauthenticated):
            verify(params, nonce, when)


async def test_devices_are_still_known_after_a_restart(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token):
        own = (await hello(url, device, {"token": token}))["payload"]["auth"]["deviceToken"]
    async with served(tmp_path) as (url, _):
        assert (await hello(url, device, {"deviceToken": own}))["ok"]


async def test_a_device_nobody_knows_is_told_of(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        with pytest.raises(RpcFailed, match="There is no device"):
            await client.call("device.token.rotate", deviceId="nobody")


async def test_a_narrow_token_does_not_get_the_token_of_a_device_of_the_owner(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token):
        assert (await hello(url, device, {"token": token}))["ok"]
        narrow = (await hello(url, device, {"token": str(READER["token"])}))["payload"]["auth"]
        assert (narrow["scopes"], "deviceToken" in narrow) == (["operator.read"], False)


async def test_a_device_goes_with_the_credential_it_was_paired_with(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, _):
        own = (await hello(url, device, {"token": str(READER["token"])}))["payload"]["auth"]["deviceToken"]
    async with served(tmp_path, {"gateway": {"port": 0}}) as (url, _):
        refused = await hello(url, device, {"deviceToken": own})
        assert "the credential 'reader' was removed" in refused["error"]["message"]


@pytest.mark.promise("access.secret_closes_what_it_opened")
async def test_a_device_is_bound_to_the_secret_it_was_paired_with(tmp_path: Path) -> None:
    device = Device()

    def settings(token: str) -> dict[str, Any]:
        return {"gateway": {"port": 0, "auth": {"token": token}}}

    async with served(tmp_path, settings("the-old-owner-token")) as (url, _):
        own = (await hello(url, device, {"token": "the-old-owner-token"}))["payload"]["auth"]["deviceToken"]
        assert (await hello(url, device, {"deviceToken": own}))["ok"]
    async with served(tmp_path, settings("the-new-owner-token")) as (url, _):
        assert not (await hello(url, device, {"deviceToken": own}))["ok"]
        fresh = (await hello(url, device, {"token": "the-new-owner-token"}))["payload"]["auth"]["deviceToken"]
        assert fresh != own
        assert (await hello(url, device, {"deviceToken": fresh}))["ok"]


@pytest.mark.promise("access.secret_closes_what_it_opened")
async def test_the_connection_of_a_device_closes_when_the_secret_is_changed(tmp_path: Path) -> None:
    device = Device()
    async with rehearse(
        tmp_path, {"gateway": {"port": 0, "auth": {"token": "the-old-owner-token"}}}
    ) as gateway:
        services = api_services(gateway)
        async with open_server(services) as url:
            first = await hello(url, device, {"token": "the-old-owner-token"})
            own = first["payload"]["auth"]["deviceToken"]
            async with socket_of(url, device, {"deviceToken": own}) as (socket, answer):
                assert answer["ok"]
                changed = {"gateway": {"port": 0, "auth": {"token": "the-new-owner-token"}}}
                gateway.config.reload(Config(Settings.model_validate(changed), gateway.config.home))
                assert services.clients.close_unless(services.auth.is_current, "withdrawn") == 1
                with pytest.raises(ConnectionClosed):
                    while True:
                        await frame(socket)


async def test_a_device_that_was_sent_away_does_not_come_back_in_a_crowd(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        own = (await hello(url, device, {"token": token}))["payload"]["auth"]["deviceToken"]
        await owner.call("device.pair.remove", deviceId=device.id)
        assert not (await hello(url, device, {"token": token}))["ok"]
        for _ in range(25):
            await hello(url, Device(), {"token": token}, AWAY)
        for auth in ({"token": token}, {"deviceToken": own}):
            assert not (await hello(url, device, auth))["ok"]


async def test_sending_a_device_away_is_not_undone_by_a_sign_in_under_way(tmp_path: Path) -> None:
    device = Device()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        await hello(url, device, {"token": token})
        for _ in range(10):
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(hello(url, device, {"token": token}))
                group.create_task(owner.call("device.pair.remove", deviceId=device.id))
            listed = await owner.call("device.pair.list")
            assert [row["deviceId"] for row in listed["paired"]] == []
            for row in listed["pending"]:
                await owner.call("device.pair.approve", requestId=row["requestId"])
            if not listed["pending"]:  # nobody came in after it was sent away
                refused = await hello(url, device, {"token": token})
                await owner.call("device.pair.approve", requestId=refused["error"]["details"]["requestId"])
