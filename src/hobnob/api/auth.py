"""Who comes in, and from where: secrets compared in constant time, wrong ones counted, pages checked."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from hobnob import statedir
from hobnob.config import Config, Settings
from hobnob.errors import TooManyAttempts, Unauthenticated
from hobnob.policy import Operator

TOKEN_FILE = "token"  # noqa: S105 - the name of the file, not what is in it
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_SHORTEST = 16
_TRIES = 10  # wrong secrets of one address at a time
_REFILL_S = 6.0  # one more after this long
_ADDRESSES = 10_000  # remembered at a time
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def owner_token(config: Config) -> str:
    """The owner's token: as configured, else made once and kept in the state directory."""
    configured = config.settings.gateway.auth.token
    return configured.get_secret_value() if configured else kept_secret(config, TOKEN_FILE)


def kept_secret(config: Config, name: str) -> str:
    """A secret of this gateway, made once and kept in the state directory."""
    path = statedir.private_dir(config.home) / name
    kept = path.read_text().strip() if path.exists() else ""
    if len(kept) >= _SHORTEST:
        return kept
    # Whole or not at all: half a token, or none, would let everybody in.
    partial = path.with_name(f".{name}.{os.getpid()}")
    with os.fdopen(statedir.open_private(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "w") as file:
        file.write(secrets.token_urlsafe(32))
    partial.rename(path)
    return path.read_text().strip()


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a caller is. `local`: on this machine, and not through a proxy nobody told us of."""

    address: str
    local: bool


def peer(settings: Settings, client: str | None, headers: Headers) -> Peer:
    """Who is at the other end. What a proxy says of it counts when the proxy is a configured one."""
    address = client or ""
    proxies = settings.gateway.trusted_proxies
    through_proxy = any(name in headers for name in _FORWARDED)
    if not _listed(address, proxies):
        return Peer(address, _loopback(address) and not through_proxy)
    # All lines of it: the caller may have sent one too, and the proxy adds its own behind it.
    said = ",".join(headers.getlist("x-forwarded-for"))
    for hop in reversed([hop.strip() for hop in said.split(",") if hop.strip()]):
        there = _address(hop)
        if there is None:  # that is no address, so what is in front of it is anybody's guess
            return Peer(address, False)
        if not _listed(there, proxies):
            return Peer(there, False)
    return Peer(address, False)


def _address(hop: str) -> str | None:
    """An address as proxies write it, without a port."""
    bare = hop[1:].partition("]")[0] if hop.startswith("[") else hop
    if bare.count(":") == 1:
        bare = bare.rpartition(":")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return None


def origin_allowed(settings: Settings, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from a page of ours, from a configured one, or from no page at all.

    A name somebody else owns may lead to this machine too: without a proxy in between, and listening to this
    machine only, the gateway goes by no name but the local ones.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is None:
        return True
    if origin.lower().rstrip("/") in (
        known.lower().rstrip("/") for known in settings.gateway.control_ui.allowed_origins
    ):
        return True
    try:
        page, name = urlsplit(origin).netloc, urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if settings.gateway.bind in LOCAL_NAMES and not settings.gateway.trusted_proxies:
        return page == host and name in LOCAL_NAMES
    return page == host


@lru_cache(1024)
def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _listed(address: str, networks: list[str]) -> bool:
    if not networks:
        return False
    try:
        known = ipaddress.ip_address(address)
        return any(known in ipaddress.ip_network(network, strict=False) for network in networks)
    except ValueError:
        return False


@lru_cache(1024)
def _counted_as(address: str) -> str:
    """One word for all spellings of an address, and for a network whose addresses one host may take."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        mapped = known.ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(known), 64), strict=False))
    return str(known)


class FailedAttempts:
    """Counts wrong secrets by address. Whoever has none left waits, with a right one too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: dict[str, tuple[float, float]] = {}  # address: tries spent, at which time

    def check(self, address: str) -> None:
        """Raises TooManyAttempts."""
        spent = self._left_over(_counted_as(address))
        if spent > _TRIES - 1:
            raise TooManyAttempts((spent - (_TRIES - 1)) * _REFILL_S)

    def wrong(self, address: str) -> None:
        address = _counted_as(address)
        spent = self._left_over(address) + 1
        self._spent.pop(address, None)  # to the end: the first are those longest unheard of
        self._spent[address] = spent, self._clock()
        if len(self._spent) > _ADDRESSES:
            del self._spent[next(iter(self._spent))]

    def _left_over(self, address: str) -> float:
        spent, at = self._spent.get(address, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) / _REFILL_S)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who was let in, and by which secret: one can tell later whether it is still good."""

    operator: Operator
    fingerprint: str


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Authenticator:
    """Knows the secrets of one gateway."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._kept: str | None = None
        self.tries = FailedAttempts()

    def admit(self, peer: Peer, *, token: str | None = None, password: str | None = None) -> Principal:
        """Whose secret it is. Raises Unauthenticated or TooManyAttempts."""
        self.tries.check(peer.address)
        auth = self._config.settings.gateway.auth
        shown, name = (password or token, "PASSWORD") if auth.mode == "password" else (token, "TOKEN")
        if not shown:
            raise Unauthenticated(
                "unauthorized: show the gateway's token", reason=f"AUTH_{name}_MISSING", fix=self.hint
            )
        admitted = self._whose(shown)
        if admitted is None:
            self.tries.wrong(peer.address)
            raise Unauthenticated(
                "unauthorized: that is not the gateway's token", reason=f"AUTH_{name}_MISMATCH", fix=self.hint
            )
        return admitted

    def named(self, credential: str) -> Principal:
        """What a credential may do now, by its name. Raises Unauthenticated when there is none any more."""
        for known, operator in self._known():
            if operator.name == credential:
                return Principal(operator, _fingerprint(known))
        raise Unauthenticated(
            f"unauthorized: the credential {credential!r} is not there any more", reason="AUTH_TOKEN_MISMATCH"
        )

    def still(self, admitted: Principal) -> bool:
        """Whether a secret that was let in would be let in now, as the same."""
        return any(Principal(operator, _fingerprint(known)) == admitted for known, operator in self._known())

    @property
    def hint(self) -> str:
        if self._config.settings.gateway.auth.token is None:
            return f"The token is in the file {TOKEN_FILE} in the gateway's state directory."
        return "The token is what gateway.auth.token (or $HOBNOB_TOKEN) says."

    def _whose(self, shown: str) -> Principal | None:
        """All secrets are compared, so that the time taken tells nothing."""
        found = None
        for known, operator in self._known():
            if known and hmac.compare_digest(known.encode(), shown.encode()) and found is None:
                found = Principal(operator, _fingerprint(known))
        return found

    def _known(self) -> list[tuple[str, Operator]]:
        """Read anew each time: the configuration may have been."""
        auth = self._config.settings.gateway.auth
        if auth.token is None and self._kept is None:
            self._kept = owner_token(self._config)
        owners = auth.token.get_secret_value() if auth.token else self._kept or ""
        known = [(owners, Operator())]
        if auth.mode == "password" and auth.password is not None:
            known.append((auth.password.get_secret_value(), Operator()))
        for named in auth.tokens:
            agents = None if named.agents is None else tuple(named.agents)
            known.append((named.token.get_secret_value(), Operator(named.name, tuple(named.scopes), agents)))
        return known
