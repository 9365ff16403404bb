"""Authentication: secrets, addresses of callers, rate limits for wrong secrets, browser origins."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from hobnob.config import Config, Settings
from hobnob.errors import TooManyAttempts, Unauthenticated
from hobnob.kept_secrets import TOKEN_FILE, kept_secret
from hobnob.policy import Operator
from hobnob.records import Struct

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_MAX_ATTEMPTS = 10  # wrong secrets per address in a burst
_REFILL_S = 6.0  # time until one more attempt is allowed
_MAX_ADDRESSES = 10_000  # addresses tracked at a time
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def owner_token(config: Config) -> str:
    """The owner's token: as configured, else generated once and kept in the state directory."""
    configured = config.settings.gateway.auth.token
    return configured.get_secret_value() if configured else kept_secret(config, TOKEN_FILE)


class Peer(Struct, frozen=True):
    """The address of a caller. `local`: on this machine, and not behind an unknown proxy."""

    address: str
    local: bool


def peer_of(settings: Settings, connection: HTTPConnection) -> Peer:
    """The peer of a connection. Forwarded headers count only from configured proxies."""
    address, headers = connection.client.host if connection.client else "", connection.headers
    proxies = settings.gateway.trusted_proxies
    through_proxy = any(name in headers for name in _FORWARDED)
    if not _listed(address, proxies):
        return Peer(address, _loopback(address) and not through_proxy)
    # All header lines: the caller may have sent one too, and the proxy appends its own.
    forwarded = ",".join(headers.getlist("x-forwarded-for"))
    for hop in reversed([hop.strip() for hop in forwarded.split(",") if hop.strip()]):
        forwarded_for = _address(hop)
        if forwarded_for is None:  # not an address: nothing before it can be trusted
            return Peer(address, False)
        if not _listed(forwarded_for, proxies):
            return Peer(forwarded_for, False)
    return Peer(address, False)


def _address(hop: str) -> str | None:
    """An address in a forwarded header, without its port."""
    bare = hop[1:].partition("]")[0] if hop.startswith("[") else hop
    if bare.count(":") == 1:
        bare = bare.rpartition(":")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return None


def origin_allowed(settings: Settings, headers: Mapping[str, str]) -> bool:
    """Whether the origin of a request is the gateway itself, a configured one, or absent.

    A foreign host name can resolve to this machine (DNS rebinding). So while the gateway listens on loopback
    without a proxy, only local host names count as its own.
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
def bucket(address: str) -> str:
    """The bucket of an address: all that one caller can choose from is one bucket.

    That is all of loopback (127.0.0.0/8 and ::1), an IPv4 address, and the network of an IPv6 address.
    """
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        known = known.ipv4_mapped or known
    if known.is_loopback:
        return "loopback"
    if isinstance(known, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(known), 64), strict=False))
    return str(known)


class FailedAttempts:
    """Rate limit for wrong secrets per address. An address over the limit waits, also with a right secret."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: dict[str, tuple[float, float]] = {}  # address: attempts spent, at which time

    def check(self, address: str) -> None:
        """Raises TooManyAttempts."""
        spent = self._left_over(bucket(address))
        if spent > _MAX_ATTEMPTS - 1:
            raise TooManyAttempts((spent - (_MAX_ATTEMPTS - 1)) * _REFILL_S)

    def wrong(self, address: str) -> None:
        address = bucket(address)
        spent = self._left_over(address) + 1
        self._spent.pop(address, None)  # move to the end: the oldest come first
        self._spent[address] = spent, self._clock()
        if len(self._spent) > _MAX_ADDRESSES:
            del self._spent[next(iter(self._spent))]

    def _left_over(self, address: str) -> float:
        spent, at = self._spent.get(address, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) / _REFILL_S)


class Principal(Struct, frozen=True):
    """An authenticated caller. The fingerprint of its secret tells later whether that is still valid.

    `credential` is what the secret stands for; `operator` may have fewer scopes, if the client claims fewer.
    """

    operator: Operator
    fingerprint: str
    full: Operator | None = None

    @property
    def credential(self) -> Operator:
        return self.full or self.operator

    def narrowed(self, claimed: Collection[str]) -> Principal:
        """The same caller with only the scopes it claims."""
        return Principal(self.operator.narrowed(claimed), self.fingerprint, self.credential)


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Authenticator:
    """The credentials of one gateway."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._generated: str | None = None
        self._generated_for: Settings | None = None
        self.attempts = FailedAttempts()

    def authenticate(self, peer: Peer, *, token: str | None = None, password: str | None = None) -> Principal:
        """The caller a secret belongs to. Raises Unauthenticated or TooManyAttempts."""
        self.attempts.check(peer.address)
        auth = self._config.settings.gateway.auth
        secret, name = (password or token, "password") if auth.mode == "password" else (token, "token")
        if not secret:
            raise Unauthenticated(
                f"unauthorized: the {name} is missing.", reason=f"AUTH_{name.upper()}_MISSING", fix=self.hint
            )
        principal = self._principal_of(secret)
        if principal is None:
            self.attempts.wrong(peer.address)
            raise Unauthenticated(
                f"unauthorized: the {name} is wrong.", reason=f"AUTH_{name.upper()}_MISMATCH", fix=self.hint
            )
        return principal

    def by_name(self, credential: str) -> Principal:
        """A credential by its name, as configured now. Raises Unauthenticated when it was removed."""
        for known, operator in self._known():
            if operator.name == credential:
                return Principal(operator, _fingerprint(known))
        raise Unauthenticated(
            f"unauthorized: the credential {credential!r} was removed.", reason="AUTH_TOKEN_MISMATCH"
        )

    def binding(self, credential: str) -> str:
        """A text that changes when a secret of a credential does; empty when the credential was removed."""
        secrets = (known for known, operator in self._known() if known and operator.name == credential)
        return "|".join(map(_fingerprint, secrets))

    def is_current(self, principal: Principal) -> bool:
        """Whether the principal's secret is still valid, with the same rights."""
        now = (principal.credential, principal.fingerprint)
        return any((operator, _fingerprint(known)) == now for known, operator in self._known())

    @property
    def hint(self) -> str:
        """Where the owner finds the secret."""
        auth = self._config.settings.gateway.auth
        if auth.mode == "password" and auth.password is not None:
            return "The password is the value of gateway.auth.password."
        if auth.token is None:
            return f"The token is in the file {TOKEN_FILE} in the gateway's state directory."
        return "The token is the value of gateway.auth.token, or of $HOBNOB_TOKEN at the gateway."

    def _principal_of(self, secret: str) -> Principal | None:
        """Compare with all secrets, so that the time taken reveals nothing."""
        found = None
        for known, operator in self._known():
            if known and hmac.compare_digest(known.encode(), secret.encode()) and found is None:
                found = Principal(operator, _fingerprint(known))
        return found

    def _known(self) -> list[tuple[str, Operator]]:
        """Read from the settings each time: they may have been reloaded."""
        auth = self._config.settings.gateway.auth
        if auth.token is None and self._generated_for is not self._config.settings:
            self._generated = owner_token(self._config)  # read again after each reload
            self._generated_for = self._config.settings
        owners = auth.token.get_secret_value() if auth.token else self._generated or ""
        known = [(owners, Operator())]
        if auth.mode == "password" and auth.password is not None:
            known.append((auth.password.get_secret_value(), Operator()))
        for named in auth.tokens:
            agents = None if named.agents is None else tuple(named.agents)
            known.append((named.token.get_secret_value(), Operator(named.name, tuple(named.scopes), agents)))
        return known
