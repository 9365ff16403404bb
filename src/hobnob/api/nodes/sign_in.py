"""How a node signs in: with its device key, and a credential or the token it was given.

A node of this machine is connected at once; one from elsewhere waits for an owner. Either way nothing of it
can be used before its surface is approved.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from typing import Any

import orjson

from hobnob.api.auth import Authenticator, Peer, Principal
from hobnob.api.devices import verify
from hobnob.config import Config
from hobnob.errors import NotPaired, Unauthenticated
from hobnob.kept_secrets import DEVICE_KEY_FILE, kept_secret
from hobnob.node_types import Node
from hobnob.nodes import surface
from hobnob.nodes.node_events import operator_of
from hobnob.nodes.registry import Nodes
from hobnob.records import replace
from hobnob.types import now_ms

_PREFIX = "hn_"
_TEXT_CHARS = 100
_FACTS = {
    "id": "clientId",
    "mode": "clientMode",
    "platform": "platform",
    "version": "version",
    "deviceFamily": "deviceFamily",
    "modelIdentifier": "modelIdentifier",
}


class NodeSignIn:
    def __init__(self, config: Config, auth: Authenticator, registry: Nodes) -> None:
        self._config = config
        self._auth = auth
        self._nodes = registry

    def token(self, node: Node) -> str:
        """The token of a node, derived so that it need not be stored. Raises Unauthenticated.

        It opens nothing but the connection of this node: it is no token of a client.
        """
        credential = self._auth.by_name(node.credential)
        text = f"node|{node.node_id}|{node.generation}|{credential.fingerprint}"
        secret = kept_secret(self._config, DEVICE_KEY_FILE).encode()
        digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
        return f"{_PREFIX}{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    def holds(self, node: Node, token: str) -> bool:
        """Whether a token is the current one of a node that is approved."""
        if node.state != "approved" or not token.startswith(_PREFIX):
            return False
        try:
            return hmac.compare_digest(self.token(node).encode(), token.encode())
        except Unauthenticated:  # the credential it came with was removed
            return False

    async def authenticate(self, params: dict[str, Any], nonce: str, peer: Peer) -> tuple[Principal, Node]:
        """Authenticate a node. Raises Unauthenticated, NotPaired or TooManyAttempts."""
        auth, claim = _object(params.get("auth")), _object(params.get("device"))
        self._auth.attempts.check(peer.address)
        try:
            verify(params, nonce, now_ms())
        except Unauthenticated:
            self._auth.attempts.wrong(peer.address)
            raise
        known = await self._nodes.find(str(claim["id"]))
        tokens = [value for name in ("token", "deviceToken") if isinstance(value := auth.get(name), str)]
        if known is not None and any(self.holds(known, token) for token in tokens):
            principal = self._auth.by_name(known.credential)
        else:
            password = auth.get("password")
            principal = self._auth.authenticate(
                peer,
                token=tokens[0] if tokens else None,
                password=password if isinstance(password, str) else None,
            )
        node = await self._nodes.declare(self._described(params, peer, principal.operator.name))
        if node.state != "approved" and not (node.state == "pending" and self._lets_in(peer)):
            raise NotPaired(node.request_id or "", noun="node", command="node")
        # What its credential opened closes with that; what it may do is by its id alone.
        return Principal(operator_of(node.node_id), principal.fingerprint, principal.operator), node

    def described(self, node: Node, caps: Any, commands: Any) -> Node:
        """A connected node that declares another surface."""
        return replace(node, declared=surface.declared(self._config.settings, caps, commands).json())

    def _described(self, params: dict[str, Any], peer: Peer, credential: str) -> Node:
        client, claim = _object(params.get("client")), _object(params.get("device"))
        facts = {shown: _text(client.get(name)) for name, shown in _FACTS.items() if client.get(name)}
        settings = self._config.settings
        return Node(
            node_id=str(claim["id"]),
            public_key=str(claim["publicKey"]),
            name=_text(client.get("displayName")),
            facts=orjson.dumps(facts).decode(),
            address=peer.address,
            credential=credential,
            declared=surface.declared(settings, params.get("caps"), params.get("commands")).json(),
        )

    def _lets_in(self, peer: Peer) -> bool:
        """Whether a node from there is connected before an owner has approved it."""
        rules = self._config.settings.gateway.nodes.pairing
        if peer.local:
            return rules.auto_approve_local
        try:
            address = ipaddress.ip_address(peer.address)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(each, strict=False) for each in rules.auto_approve_cidrs)


def _text(value: Any) -> str:
    """A name as the node gives it: one line, cut."""
    return "".join(c for c in str(value or "")[:_TEXT_CHARS] if c.isprintable()).strip()


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
