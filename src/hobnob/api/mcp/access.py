"""Who an MCP client is: the grant of its token, the credential that made it, and the session it acts as."""

from __future__ import annotations

import hashlib
import hmac

from hobnob.api.auth import Authenticator, Peer, Principal
from hobnob.config import Config
from hobnob.errors import BadInput, NotAllowed, NotFound, SessionNotFound, Unauthenticated
from hobnob.kept_secrets import DEVICE_KEY_FILE, kept_secret
from hobnob.mcp_grants import DEFAULT_TTL_S, MAX_TTL_S, McpGrants, Waiting, is_open
from hobnob.policy import Operator, Verb
from hobnob.records import Struct
from hobnob.sessions import Sessions, resolve
from hobnob.types import McpGrant, Session, Turn, now_ms

_NAME_CHARS = 100
_HARNESS = Operator("harness", ("operator.write",))  # its session's own rights decide the rest


class McpCaller(Struct, frozen=True):
    """A client of the MCP server. `operator` has the rights of whoever made the grant.

    `turn` is the running turn of a harness, None for other clients; `waiting` lends the slot of that turn.
    """

    grant: McpGrant
    session: Session
    operator: Operator
    principal: Principal | None = None
    turn: Turn | None = None
    waiting: Waiting | None = None


class McpAccess:
    """Makes, checks and revokes grants for credentials of the gateway."""

    def __init__(self, config: Config, auth: Authenticator, sessions: Sessions, grants: McpGrants) -> None:
        self._config = config
        self._auth = auth
        self._sessions = sessions
        self.grants = grants

    async def create(
        self, maker: Operator, reference: str, *, ttl_s: int = DEFAULT_TTL_S, name: str = "", read_only: bool
    ) -> tuple[McpGrant, str]:
        """A grant for a session the maker may send into, and its token. Raises NotAllowed, BadInput."""
        _refuse_narrow(maker)
        if not 1 <= ttl_s <= MAX_TTL_S:
            raise BadInput(f"A grant lives for 1 to {MAX_TTL_S} seconds ({MAX_TTL_S // 86_400} days).")
        key = resolve.key_for_agent(self._config.settings, reference)
        session = await self._sessions.resolve_for_calls(maker, key)
        operator = maker.narrowed(["operator.read"]) if read_only else maker

        def make(token_hash: str) -> McpGrant:
            created = now_ms()
            return McpGrant(
                token_hash=token_hash,
                session_key=session.key,
                name=" ".join(name.split())[:_NAME_CHARS],
                credential=maker.name,
                proof=self._proof(token_hash, maker.name),
                scopes=" ".join(operator.scopes_in_force),
                created_at_ms=created,
                expires_at_ms=created + ttl_s * 1000,
            )

        return await self.grants.issue(make)

    async def page(self, caller: Operator) -> list[McpGrant]:
        """The grants a caller may see: an owner all of them, others their own."""
        _refuse_narrow(caller)
        return await self.grants.page(None if caller.is_owner else caller.name)

    async def revoke(self, caller: Operator, grant_id: str) -> McpGrant:
        """Revoke a grant: an owner any, others their own. Raises NotFound."""
        _refuse_narrow(caller)
        found = await self.grants.find(grant_id)
        own = found is not None and (caller.is_owner or found.credential == caller.name)
        if found is None or not own or found.turn_id is not None:
            raise NotFound(f"There is no MCP grant {grant_id}.", fix="`hobnob mcp grants` shows the grants.")
        return await self.grants.revoke(grant_id)

    def state(self, grant: McpGrant) -> str:
        """`active`, `expired`, `revoked`, or `withdrawn` when the secret of its maker was changed."""
        if is_open(grant):
            return "active" if self._maker(grant) is not None else "withdrawn"
        return "revoked" if grant.revoked_at_ms is not None else "expired"

    async def identify(self, peer: Peer, token: str | None) -> McpCaller:
        """The caller that a token stands for. Raises Unauthenticated, TooManyAttempts or NotAllowed."""
        self._auth.attempts.check(peer.address)
        if not token:
            raise Unauthenticated(
                "unauthorized: the token of an MCP grant is missing.", reason="AUTH_TOKEN_MISSING", fix=_FIX
            )
        grant = await self.grants.by_token(token)
        if grant is None:
            self._auth.attempts.wrong(peer.address)
            raise _refused("unauthorized: this is not the token of a valid MCP grant.")
        caller = await (self._harness(grant) if grant.turn_id else self._client(grant))
        await self.grants.used(grant)
        return caller

    async def _client(self, grant: McpGrant) -> McpCaller:
        principal = self._maker(grant)
        if principal is None:
            raise _refused("unauthorized: the credential that made this MCP grant was changed or removed.")
        operator = principal.operator.narrowed(grant.scopes.split())
        _refuse_narrow(operator)
        session = await self._session(grant, operator)
        return McpCaller(grant, session, operator, principal)

    async def _harness(self, grant: McpGrant) -> McpCaller:
        running = await self.grants.running_turn(grant)
        if running is None:
            raise _refused("unauthorized: the turn this MCP grant was made for has ended.")
        turn, waiting = running
        return McpCaller(grant, await self._session(grant, Operator()), _HARNESS, None, turn, waiting)

    async def _session(self, grant: McpGrant, operator: Operator) -> Session:
        """The session of a grant. One that was deleted and made again is not the one it was granted for."""
        verb: Verb = "send" if operator.holds("operator.write") else "history"
        session = resolve.not_archived(await self._sessions.resolve(operator, grant.session_key, verb=verb))
        if session.created_at_ms > grant.created_at_ms:
            raise SessionNotFound(f"The session {grant.session_key} of this MCP grant was deleted.", fix=_FIX)
        return session

    def _maker(self, grant: McpGrant) -> Principal | None:
        """The credential that made a grant, None if its secret is another by now."""
        if not hmac.compare_digest(self._proof(grant.token_hash, grant.credential), grant.proof):
            return None
        try:
            return self._auth.by_name(grant.credential)
        except Unauthenticated:
            return None

    def _proof(self, token_hash: str, credential: str) -> str:
        """Binds a grant to the secret of its maker, without a hash that a weak secret could be guessed by."""
        key = kept_secret(self._config, DEVICE_KEY_FILE).encode()
        text = f"mcp|{token_hash}|{self._auth.binding(credential)}"
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


_FIX = "Make a grant: hobnob mcp grant --session KEY"


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(why, reason="AUTH_TOKEN_MISMATCH", fix=_FIX)


def _refuse_narrow(operator: Operator) -> None:
    """A client of the MCP server has the rights of its session, which may see sessions of other agents."""
    if operator.agents is not None:
        raise NotAllowed(
            "A token for some agents cannot make MCP grants: the session may see sessions of other agents.",
            rule="tools.narrow_token",
            fix="Use a token without a list of agents (gateway.auth.tokens[].agents).",
        )
