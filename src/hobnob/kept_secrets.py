"""Secrets that a gateway generates: kept in its state directory, shared by the gateways of one database.

They are the owner's token and the key that the tokens of devices and nodes and the proofs of MCP grants are
made with. With `store.secretKey`, the first gateway on a PostgreSQL database stores its own there, encrypted.
Every gateway copies the stored ones into its state directory when it starts; it and the commands of its
machine read them there.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from hobnob import statedir
from hobnob.config import Config
from hobnob.errors import BadInput, StoreCorrupt
from hobnob.store import Store, is_postgres, shown
from hobnob.store.access import shared_secrets

_log = logging.getLogger(__name__)

TOKEN_FILE = "token"  # noqa: S105 - the name of the file
DEVICE_KEY_FILE = "device-key"
SHARED = (TOKEN_FILE, DEVICE_KEY_FILE)
_MIN_CHARS = 16
_RESET = "hobnob store reset-secrets"
_FORMAT = "1:"  # of an encrypted secret: salt, nonce and ciphertext in base64
_SALT_BYTES, _NONCE_BYTES, _KEY_BYTES = 16, 12, 32
_SCRYPT = {"n": 2**15, "r": 8, "p": 1}  # about 0.1 s and 32 MB, once per start


def kept_secret(config: Config, name: str) -> str:
    """A secret of this gateway, generated once and kept in the state directory."""
    path = statedir.private_dir(config.home) / name
    kept = _read(path)
    if len(kept) < _MIN_CHARS:
        _write(path, secrets.token_urlsafe(32))
        kept = _read(path)
    return kept


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _write(path: Path, text: str) -> None:
    # Written to a temporary file and renamed: a partial token could be guessed.
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(statedir.open_private(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "w") as file:
        file.write(text)
    partial.rename(path)


async def share(config: Config, store: Store) -> None:
    """Use the secrets that the gateways of this database share; the first one stores its own.

    Raises BadInput when they are encrypted with another key than `store.secretKey`. Without that setting, and
    on SQLite, a gateway has its own.
    """
    if not is_postgres(config.store_url):
        return
    stored = await store.read(shared_secrets.stored)
    shared = await asyncio.to_thread(decrypt, config, stored)
    key = config.settings.store.secret_key
    if key is None:
        return
    if missing := [name for name in SHARED if name not in shared]:
        own = {name: kept_secret(config, name) for name in missing}
        encrypted = await asyncio.to_thread(_encrypt, key.get_secret_value(), own)
        stored = await store.write(shared_secrets.store_missing, encrypted)
        shared = await asyncio.to_thread(decrypt, config, stored)
    for name in SHARED:
        _adopt(config, name, shared[name])


def _adopt(config: Config, name: str, shared: str) -> None:
    path = statedir.private_dir(config.home) / name
    own = _read(path)
    if own == shared:
        return
    _write(path, shared)
    if own:
        _log.warning("%s replaced by the one that the gateways of this database share", path)


def decrypt(config: Config, stored: Mapping[str, str]) -> dict[str, str]:
    """The shared secrets in plain text. Raises BadInput without the key they were encrypted with."""
    key, database = config.settings.store.secret_key, shown(config.store_url)
    if not stored:
        return {}
    if key is None:
        raise BadInput(
            f"The gateways of {database} share their secrets, and store.secretKey is not set.",
            fix="Set HOBNOB_STORE_KEY in the environment to the key of the other gateways."
            f" To stop sharing: {_RESET}",
        )
    cipher = Cipher(key.get_secret_value())
    try:
        return {name: cipher.decrypt(name, stored[name]) for name in SHARED if name in stored}
    except WrongKey:
        raise BadInput(
            f"store.secretKey ({config.origin('store.secretKey')}) is not the key with which the gateways of"
            f" {database} have encrypted their secrets.",
            fix="Set store.secretKey, or HOBNOB_STORE_KEY, to the key of the other gateways."
            f" If it is lost or was changed on purpose: {_RESET}",
        ) from None
    except ValueError:
        raise StoreCorrupt(f"A secret in {database} is damaged.", fix=f"Delete it: {_RESET}") from None


def _encrypt(key: str, texts: Mapping[str, str]) -> dict[str, str]:
    cipher = Cipher(key)
    return {name: cipher.encrypt(name, text) for name, text in texts.items()}


class WrongKey(Exception):
    """A text was encrypted with another key, or under another name."""


class Cipher:
    """Encrypts named texts with a passphrase: scrypt, then AES-256-GCM with the name as associated data."""

    def __init__(self, passphrase: str) -> None:
        self._passphrase = passphrase.encode()
        self._salt = os.urandom(_SALT_BYTES)  # one for all texts of this process: deriving a key takes long
        self._keys: dict[bytes, bytes] = {}

    def encrypt(self, name: str, text: str) -> str:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key(self._salt)).encrypt(nonce, text.encode(), name.encode())
        return _FORMAT + base64.b64encode(self._salt + nonce + sealed).decode()

    def decrypt(self, name: str, encrypted: str) -> str:
        """Raises WrongKey, and ValueError when it is no encrypted text."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not encrypted.startswith(_FORMAT):
            raise ValueError("unknown format")
        raw = base64.b64decode(encrypted.removeprefix(_FORMAT), validate=True)
        salt, rest = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
        try:
            text = AESGCM(self._key(salt)).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], name.encode())
        except InvalidTag:
            raise WrongKey from None
        return text.decode()

    def _key(self, salt: bytes) -> bytes:
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

        if salt not in self._keys:
            self._keys[salt] = Scrypt(salt, _KEY_BYTES, **_SCRYPT).derive(self._passphrase)
        return self._keys[salt]
