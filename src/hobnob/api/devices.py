"""Devices: clients that sign the gateway's challenge with their own key.

A device with a valid credential on this machine is paired at once; from elsewhere an owner has to approve it.
It then gets its own token, which is valid only together with its key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from hobnob.api.auth import Authenticator, Peer, Principal
from hobnob.config import Config
from hobnob.errors import NotPaired, Unauthenticated
from hobnob.kept_secrets import DEVICE_KEY_FILE, kept_secret
from hobnob.store import Store, devices
from hobnob.types import Device, now_ms

_PREFIX = "hd_"
_SKEW_MS = 120_000
_NAME_CHARS = 100


class Devices:
    def __init__(self, config: Config, store: Store, auth: Authenticator) -> None:
        self._config = config
        self._store = store
        self._auth = auth

    def token(self, device: Device) -> str:
        """The token of a device, derived so that it need not be stored. Raises Unauthenticated.

        It depends on the secret the device was paired with: when that is changed, the token is void.
        """
        credential = self._auth.by_name(device.credential)
        text = f"{device.device_id}|{device.generation}|{credential.fingerprint}"
        secret = kept_secret(self._config, DEVICE_KEY_FILE).encode()
        digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        return f"{_PREFIX}{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    async def authenticate(self, params: dict[str, Any], nonce: str, peer: Peer) -> tuple[Principal, Device]:
        """Authenticate a device. Raises Unauthenticated, NotPaired or TooManyAttempts."""
        auth = _object(params.get("auth"))
        claim = _object(params.get("device"))
        token = next((str(t) for name in ("token", "deviceToken") if (t := auth.get(name))), None)
        self._auth.attempts.check(peer.address)
        try:
            verify(params, nonce, now_ms())
        except Unauthenticated:
            self._auth.attempts.wrong(peer.address)
            raise
        known = await self._store.read_small(devices.find, str(claim["id"]))
        paired = known if known is not None and known.state == "paired" else None
        if paired is not None and token and self._holds(paired, token):
            return await self._seen(self._auth.by_name(paired.credential), paired), paired
        principal = self._auth.authenticate(peer, token=token, password=_text(auth.get("password")))
        if paired is not None:
            return await self._seen(principal, paired), paired
        request = await self._store.write(devices.ask, _request(params, peer, principal.operator.name))
        if peer.local and known is None:  # a revoked device has to be approved again
            return principal, await self._store.write(devices.pair, request)
        raise NotPaired(request.request_id)

    async def _seen(self, principal: Principal, device: Device) -> Principal:
        if not await self._store.write(devices.seen, device):
            raise Unauthenticated("unauthorized: the device was revoked.", reason="DEVICE_REVOKED")
        return principal

    async def all(self) -> list[Device]:
        """All devices, newest first."""
        return await self._store.read(devices.page)

    async def approve(self, request_id: str) -> Device:
        """Pair the device of a request. Raises NotFound."""
        return await self._store.write(devices.approve, request_id)

    async def reject(self, request_id: str) -> Device:
        """Reject the request of a device. Raises NotFound."""
        return await self._store.write(devices.reject, request_id)

    async def rotate(self, device_id: str) -> Device:
        """Void the token of a device; it gets a new one. Raises NotFound."""
        return await self._store.write(devices.rotate, device_id)

    async def revoke(self, device_id: str) -> Device:
        """Revoke a device. Raises NotFound."""
        return await self._store.write(devices.rotate, device_id, revoke=True)

    async def is_paired(self, device: Device) -> bool:
        """Whether a device is still paired, with the token it has."""
        now = await self._store.read_small(devices.find, device.device_id)
        return now is not None and now.state == "paired" and now.generation == device.generation

    def _holds(self, device: Device, token: str) -> bool:
        if not token.startswith(_PREFIX):  # the gateway's own secret, or that of a narrower credential
            return False
        return hmac.compare_digest(self.token(device).encode(), token.encode())


def _request(params: dict[str, Any], peer: Peer, credential: str) -> Device:
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
    """Verify the signature of a device. Raises Unauthenticated with what is wrong."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    device = _object(params.get("device"))
    public, signature = _bytes(device.get("publicKey")), _bytes(device.get("signature"))
    if public is None or len(public) != 32:
        raise _refused("PUBLIC_KEY_INVALID", "the public key is not an Ed25519 key")
    if device.get("id") != hashlib.sha256(public).hexdigest():
        raise _refused("DEVICE_ID_MISMATCH", "the device id does not match its key")
    if not device.get("nonce"):
        raise _refused("NONCE_REQUIRED", "the nonce of the challenge is missing")
    if device["nonce"] != nonce:
        raise _refused("NONCE_MISMATCH", "the nonce belongs to another challenge")
    signed_at = device.get("signedAt")
    if not isinstance(signed_at, int) or abs(at_ms - signed_at) > _SKEW_MS:
        raise _refused("SIGNATURE_EXPIRED", "the signature is too old; is the clock right?")
    for text in _signed_texts(params, device):
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature or b"", text.encode())
            return
        except InvalidSignature:
            continue
    raise _refused("SIGNATURE_INVALID", "the signature is invalid")


def _signed_texts(params: dict[str, Any], device: dict[str, Any]) -> list[str]:
    """The texts a device may have signed: version 3 and version 2 of the format."""
    client, auth = _object(params.get("client")), _object(params.get("auth"))
    scopes = params.get("scopes")
    token = auth.get("token") or auth.get("deviceToken") or auth.get("bootstrapToken") or ""
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


def _refused(code: str, why: str) -> Unauthenticated:
    return Unauthenticated(f"device identity refused: {why}", reason=f"DEVICE_AUTH_{code}")


def _bytes(text: Any) -> bytes | None:
    if not isinstance(text, str) or len(text) > 200:
        return None
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
