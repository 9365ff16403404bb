"""A real Matrix homeserver, Synapse, run by the tests: one per test process, shared by its tests.

Synapse is a package of PyPI with many dependencies. It is looked for in the environment of the tests and in
`.venv-servers`.
"""

import asyncio
import atexit
import base64
import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.channels.irc_servers import free_port
from tests.waiting import LIMIT_S

NAME = "example.org"
_VENV = Path(__file__).parent.parent.parent / ".venv-servers" / "bin" / "python"
_UNLIMITED = {"per_second": 10_000, "burst_count": 10_000}


def python() -> str:
    """The Python that has Synapse. Skips the test where there is none; fails where there has to be one."""
    if importlib.util.find_spec("synapse") is not None:
        return sys.executable
    if _VENV.exists():
        return str(_VENV)
    why = "Synapse is not installed: make servers"
    if os.environ.get("HOBNOB_REQUIRE_CHAT_SERVERS"):
        pytest.fail(why)
    pytest.skip(why)


class Synapse:
    def __init__(self) -> None:
        self._python = python()
        self._folder = Path(tempfile.mkdtemp(prefix="synapse-"))
        self._secret = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._people = 0
        self.port = free_port()
        self.admin_token = ""
        self._write_config()
        atexit.register(self._remove)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the homeserver, or start it again with everything it had."""
        if self._process is not None and self._process.poll() is None:
            return
        with (self._folder / "output.log").open("ab") as log:
            command = [self._python, "-m", "synapse.app.homeserver", "-c", str(self._folder / "config.yaml")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        async with asyncio.timeout(2 * LIMIT_S), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                assert self._process.poll() is None, (self._folder / "output.log").read_text()[-4000:]
                await asyncio.sleep(0.1)
        if not self.admin_token:
            self.admin_token = (await self.register("admin", admin=True))["access_token"]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def register(self, name: str, *, admin: bool = False) -> dict[str, Any]:
        """A new user, by the shared secret. The password is `password`."""
        path = f"{self.url}/_synapse/admin/v1/register"
        async with aiohttp.ClientSession() as http:
            async with http.get(path) as answer:
                nonce = (await answer.json())["nonce"]
            words = [nonce, name, "password", "admin" if admin else "notadmin"]
            mac = hmac.new(self._secret.encode(), "\0".join(words).encode(), hashlib.sha1).hexdigest()
            user = {"nonce": nonce, "username": name, "password": "password", "admin": admin, "mac": mac}
            async with http.post(path, json=user | {"displayname": name.capitalize()}) as answer:
                body: dict[str, Any] = await answer.json()
                assert answer.status == 200, body
                return body

    def next_suffix(self) -> str:
        """Makes names of users unique among the tests that share the homeserver."""
        self._people += 1
        return str(self._people)

    def _write_config(self) -> None:
        folder = self._folder
        seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (folder / "signing.key").write_text(f"ed25519 a_test {seed}\n")
        limits = ("message", "registration", "room_creation", "admin_redaction", "reports")
        (folder / "log.yaml").write_text(
            json.dumps({"version": 1, "root": {"level": "WARNING"}, "disable_existing_loggers": False})
        )
        config = {
            "server_name": NAME,
            "pid_file": str(folder / "pid"),
            "listeners": [
                {
                    "port": self.port,
                    "bind_addresses": ["127.0.0.1"],
                    "type": "http",
                    "tls": False,
                    "resources": [{"names": ["client"], "compress": False}],
                }
            ],
            "database": {"name": "sqlite3", "args": {"database": str(folder / "homeserver.db")}},
            "log_config": str(folder / "log.yaml"),
            "media_store_path": str(folder / "media"),
            "registration_shared_secret": self._secret,
            "macaroon_secret_key": secrets.token_hex(16),
            "form_secret": secrets.token_hex(16),
            "signing_key_path": str(folder / "signing.key"),
            "report_stats": False,
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "bcrypt_rounds": 4,
            "max_upload_size": "1M",
            "presence": {"enabled": False},
            **{f"rc_{name}": _UNLIMITED for name in limits},
            "rc_login": {kind: _UNLIMITED for kind in ("address", "account", "failed_attempts")},
            "rc_joins": {kind: _UNLIMITED for kind in ("local", "remote")},
            "rc_invites": {kind: _UNLIMITED for kind in ("per_room", "per_user", "per_issuer")},
        }
        (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


_shared: Synapse | None = None


def shared() -> Synapse:
    """The homeserver of this test process."""
    global _shared
    if _shared is None:
        _shared = Synapse()
    return _shared
