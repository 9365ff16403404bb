"""Which gateway a command talks to: the options --config, --url and --token-file, and the token for it."""

from __future__ import annotations

import functools
import inspect
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from hobnob import config as settings
from hobnob import statedir
from hobnob.cli import output
from hobnob.cli.options import ConfigFile
from hobnob.config import Config
from hobnob.errors import BadConfig, BadInput

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="HOBNOB_URL",
        show_envvar=False,
        help="A gateway elsewhere, as wss://host; by default $HOBNOB_URL, else that of this machine.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="HOBNOB_TOKEN_FILE",
        show_envvar=False,
        help="A file with the token of that gateway; by default $HOBNOB_TOKEN_FILE, else $HOBNOB_TOKEN.",
    ),
]


@dataclass
class Endpoint:
    """The gateway of a command: at a URL, else the one of this state directory."""

    file: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    noted: bool = False
    """Whether the user was told of errors in the configuration file."""

    @cached_property
    def config(self) -> Config:
        """The configuration of this machine. Raises BadConfig."""
        return settings.load(self.file)

    @property
    def address(self) -> str | None:
        """The URL as a WebSocket address. Raises BadInput."""
        if self.url is None:
            return None
        text = self.url if "://" in self.url else f"ws://{self.url}"
        try:
            parts = urlsplit(text)
            scheme, _ = _SCHEMES.get(parts.scheme.lower()), parts.port
        except ValueError:
            scheme, parts = None, urlsplit("")
        if scheme is None or not parts.hostname:
            raise BadInput(
                f"{self.url!r} is not the URL of a gateway.",
                fix="Write it as wss://host, or ws://127.0.0.1:4626.",
            )
        if scheme == "ws" and not is_local(parts.hostname):
            output.note(
                f"The connection to {parts.hostname} is not encrypted: others may read the token. Use wss://."
            )
        return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"

    def token(self) -> tuple[str, str]:
        """The token for the gateway, and where it comes from. Raises BadInput.

        The token of this machine's gateway is never sent to another machine.
        """
        if self.token_file is not None:
            return read_token(self.token_file), f"the file {self.token_file}"
        if self.url is None:
            return self._own_token()
        if token := os.environ.get("HOBNOB_TOKEN"):
            return token, "$HOBNOB_TOKEN"
        if not is_local(urlsplit(self.address or "").hostname or ""):
            raise BadInput(
                f"There is no token for {self.url}.",
                fix="Give --token-file FILE, or set HOBNOB_TOKEN in the environment.",
            )
        return self._own_token()

    def _own_token(self) -> tuple[str, str]:
        from hobnob.api.auth import owner_token
        from hobnob.kept_secrets import TOKEN_FILE

        configured = self.config.settings.gateway.auth.token
        where = self.config.origin("gateway.auth.token")
        return owner_token(self.config), where if configured else f"the file {self.config.home / TOKEN_FILE}"


def is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path) -> str:
    """The token in a file. Says so when others can read it. Raises BadInput."""
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise BadInput(f"The token file {file} cannot be read: {reason}.") from None
    if not token:
        raise BadInput(f"The token file {file} is empty.")
    if statedir.mode(file) & 0o077:
        output.note(f"Other users can read {file}. To change that: chmod 600 {file}")
    return token


def uses_gateway(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --config, --url and --token-file in place of its parameter `endpoint`."""
    signature = inspect.signature(command, eval_str=True)
    options = {"config": ConfigFile, "url": Url, "token_file": TokenFile}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options.items()
    ]
    kept = [
        each.replace(kind=each.KEYWORD_ONLY)
        for each in signature.parameters.values()
        if each.name != "endpoint"
    ]

    @functools.wraps(command)
    def wrapped(config: Path | None, url: str | None, token_file: Path | None, **given: Any) -> Any:
        return command(endpoint=Endpoint(config, url, token_file), **given)

    parameters = [*kept, *added]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    del wrapped.__wrapped__
    return wrapped


def salvaged_token(endpoint: Endpoint) -> str | None:
    """The owner's token when the configuration file has errors: as written there, else as generated."""
    from hobnob.kept_secrets import TOKEN_FILE

    try:
        source = settings.source_of(endpoint.file, os.environ)
        raw = settings.parse(settings.read_text(source), source)
        written = raw.get("gateway", {}).get("auth", {}).get("token")
    except (BadConfig, AttributeError):
        written = None
    if isinstance(written, str):
        return os.path.expandvars(written)
    try:
        return os.environ.get("HOBNOB_TOKEN") or (statedir.home(os.environ) / TOKEN_FILE).read_text().strip()
    except OSError:
        return None
