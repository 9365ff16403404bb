"""Who comes in: by token, compared in constant time."""

from __future__ import annotations

import hmac
import os
import secrets

from hobnob import statedir
from hobnob.config import Config
from hobnob.policy import Operator

TOKEN_FILE = "token"  # noqa: S105 - the name of the file, not what is in it


def owner_token(config: Config) -> str:
    """The owner's token: as configured, else made once and kept in the state directory."""
    configured = config.settings.gateway.auth.token
    if configured is not None:
        return configured.get_secret_value()
    path = statedir.private_dir(config.home) / TOKEN_FILE
    kept = path.read_text().strip() if path.exists() else ""
    if len(kept) >= _SHORTEST:
        return kept
    # Whole or not at all: half a token, or none, would let everybody in.
    partial = path.with_name(f".{TOKEN_FILE}.{os.getpid()}")
    with os.fdopen(statedir.open_private(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "w") as file:
        file.write(secrets.token_urlsafe(32))
    partial.rename(path)
    return path.read_text().strip()


_SHORTEST = 16


class Door:
    """Knows the tokens of one gateway."""

    def __init__(self, config: Config) -> None:
        self._tokens = [(owner_token(config), Operator())]
        for named in config.settings.gateway.auth.tokens:
            agents = None if named.agents is None else tuple(named.agents)
            operator = Operator(named.name, tuple(named.scopes), agents)
            self._tokens.append((named.token.get_secret_value(), operator))

    def admit(self, token: str) -> Operator | None:
        """Whose token it is. All are compared, so that the time taken tells nothing."""
        found = None
        for known, operator in self._tokens:
            if known and hmac.compare_digest(known.encode(), token.encode()) and found is None:
                found = operator
        return found
