"""Devices: clients that sign the gateway's challenge with a key of their own.

A device that shows a right secret from this machine is let in at once; from elsewhere it waits until somebody
approves it. Either way it gets a token of its own, good only together with its key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from hobnob.api.auth import Authenticator, Peer, Principal, kept_secret
from hobnob.config import Config
from hobnob.errors import NotPaired, Unauthenticated
from hobnob.store import Store, devices
from hobnob.types import Device, now_ms

KEY_FILE = "device-key"
_SKEW_MS = 120_000
_NAME_CHARS = 100


class Devices:
    def __init__(self, config: Config, store: Store, auth: Authenticator) -> None:
        self._config = config
        self._store = store
        self._auth = auth

    def token(self, device: Device) -> str:
        """The token of a device. Made from its id, so it need not be kept; a new generation, a new token."""
        secret = kept_secret(self._config, KEY_FILE).encode()
        made = hmac.new(secret, f"{device.device_id}|{device.generation}".encode(), hashlib.sha256).digest()
        return f"hd_{base64.urlsafe_b64encode(made).decode().rstrip('=')}"

    async def admit(self, params: dict[str, Any], nonce: str, peer: Peer) -> tuple[Principal, Device]:
        """Whose device it is, and what it may do. Raises Unauthenticated or TooManyAttempts."""
        shown = _object(params.get("auth"))
        claim = _object(params.get("device"))
        token = next((str(t) for name in ("token", "deviceToken") if (t := shown.get(name))), None)
        self._auth.tries.check(peer.address)
        try:
            verify(params, nonce, now_ms())
        except Unauthenticated:
            self._auth.tries.wrong(peer.address)
            raise
        known = await self._store.read_small(devices.find, str(claim["id"]))
        paired = known if known is not None and known.state == "paired" else None
        if paired is not None and token and self._holds(paired, token):
            return await self._present(self._auth.named(paired.credential), paired), paired
        admitted = self._auth.admit(peer, token=token, password=_text(shown.get("password")))
        if paired is not None:
            return await self._present(admitted, paired), paired
        asked = await self._store.write(devices.ask, _asking(params, peer, admitted.operator.name))
        if peer.local and known is None:  # one that was sent away once stays out until it is approved
            return admitted, await self._store.write(devices.pair, asked)
        raise NotPaired(asked.request_id)

    async def _present(self, admitted: Principal, device: Device) -> Principal:
        if not await self._store.write(devices.seen, device):
            raise Unauthenticated("unauthorized: the device was sent away", reason="DEVICE_REVOKED")
        return admitted

    async def is_in(self, device: Device) -> bool:
        """Whether a device is still let in, with the token it has."""
        now = await self._store.read_small(devices.find, device.device_id)
        return now is not None and now.state == "paired" and now.generation == device.generation

    def _holds(self, device: Device, token: str) -> bool:
        return hmac.compare_digest(self.token(device).encode(), token.encode())


def _asking(params: dict[str, Any], peer: Peer, credential: str) -> Device:
    client, claim = _object(params.get("client")), _object(params.get("device"))
    return Device(
        device_id=str(claim["id"]),
        public_key=str(claim["publicKey"]),
        name=str(client.get("displayName") or client.get("id") or "")[:_NAME_CHARS],
        platform=str(client.get("platform") or "")[:_NAME_CHARS],
        address=peer.address,
        credential=credential,
    )


def verify(params: dict[str, Any], nonce: str, at_ms: int) -> None:
    """Whether a device is who it says. Raises Unauthenticated with what is wrong."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    device = _object(params.get("device"))
    public, signature = _bytes(device.get("publicKey")), _bytes(device.get("signature"))
    if public is None or len(public) != 32:
        raise _wrong("PUBLIC_KEY_INVALID", "the public key is not one of Ed25519")
    if device.get("id") != hashlib.sha256(public).hexdigest():
        raise _wrong("DEVICE_ID_MISMATCH", "the device's id is not that of its key")
    if not device.get("nonce"):
        raise _wrong("NONCE_REQUIRED", "the challenge is not in the answer")
    if device["nonce"] != nonce:
        raise _wrong("NONCE_MISMATCH", "the answer is to another challenge")
    signed_at = device.get("signedAt")
    if not isinstance(signed_at, int) or abs(at_ms - signed_at) > _SKEW_MS:
        raise _wrong("SIGNATURE_EXPIRED", "the signature is too old; is the clock right?")
    for text in _signed_texts(params, device):
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature or b"", text.encode())
            return
        except InvalidSignature:
            continue
    raise _wrong("SIGNATURE_INVALID", "the signature is not that of the device")


def _signed_texts(params: dict[str, Any], device: dict[str, Any]) -> list[str]:
    """What a device may have signed: the newer form, and the one before it."""
    client, shown = _object(params.get("client")), _object(params.get("auth"))
    scopes = params.get("scopes")
    token = shown.get("token") or shown.get("deviceToken") or shown.get("bootstrapToken") or ""
    common = [
        device.get("id"),
        client.get("id"),
        client.get("mode"),
        params.get("role") or "operator",
        ",".join(map(str, scopes)) if isinstance(scopes, list) else "",
        device.get("signedAt"),
        token,
        device.get("nonce"),
    ]
    family = [str(client.get(name) or "").strip().lower() for name in ("platform", "deviceFamily")]
    return ["|".join(map(str, ["v3", *common, *family])), "|".join(map(str, ["v2", *common]))]


def _wrong(code: str, what: str) -> Unauthenticated:
    return Unauthenticated(f"device identity refused: {what}", reason=f"DEVICE_AUTH_{code}")


def _bytes(text: Any) -> bytes | None:
    if not isinstance(text, str) or len(text) > 200:
        return None
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
