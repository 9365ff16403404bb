"""The identity of a node: a device key in a file, and the signed parameters of `connect`."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hobnob import statedir
from hobnob.errors import BadInput

KEY_FILE = "device-key"


class Identity:
    """A device key. The id of the node is the hash of its public half."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = key.public_key().public_bytes_raw()
        self.node_id = hashlib.sha256(self._public).hexdigest()

    @classmethod
    def kept(cls, folder: Path) -> Identity:
        """The identity of a folder, made at its first use. Raises BadInput."""
        path = statedir.private_dir(folder) / KEY_FILE
        if not path.exists():
            partial = path.with_name(f".{KEY_FILE}.{os.getpid()}")
            with os.fdopen(
                statedir.open_private(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "w"
            ) as file:
                file.write(_b64(Ed25519PrivateKey.generate().private_bytes_raw()))
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)  # never a part of a key: the id would change
        try:
            text = path.read_text().strip()
            return cls(Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(text + "==")))
        except (OSError, ValueError):
            raise BadInput(
                f"{path} is not a device key.", fix="Restore it, or delete it to become a new node."
            ) from None

    def connect_params(
        self,
        challenge: Mapping[str, Any],
        token: str,
        *,
        client: Mapping[str, str],
        caps: Sequence[str],
        commands: Sequence[str],
    ) -> dict[str, Any]:
        """The parameters of `connect`, signed for this challenge."""
        signed_at = int(time.time() * 1000)
        parts = [
            "v3",
            self.node_id,
            client["id"],
            client["mode"],
            "node",
            "",  # no scopes
            signed_at,
            token,
            challenge["nonce"],
            client["platform"].strip().lower(),
            client["deviceFamily"].strip().lower(),
        ]
        signature = self._key.sign("|".join(map(str, parts)).encode())
        return {
            "minProtocol": 4,
            "maxProtocol": 4,
            "client": dict(client),
            "role": "node",
            "scopes": [],
            "caps": list(caps),
            "commands": list(commands),
            "auth": {"token": token},
            "device": {
                "id": self.node_id,
                "publicKey": _b64(self._public),
                "signature": _b64(signature),
                "signedAt": signed_at,
                "nonce": challenge["nonce"],
            },
        }


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
