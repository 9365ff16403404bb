"""Who may do what, and which rule says so."""

from __future__ import annotations

from hobnob import keys, policy
from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput, NotAllowed
from hobnob.policy import explanation
from hobnob.sessions import resolve
from hobnob.store import Tx, sessions
from hobnob.types import Session

_TOKEN = "token:"  # noqa: S105 - a prefix, no secret


@method("policy.explain", scope="operator.read")
async def policy_explain(call: Call, action: policy.Verb, target: str, source: str | None = None) -> Payload:
    """Whether `source` may do `action` to `target`, by which rule, and which settings would change that.

    `source` is a session key, or `token:NAME` for a token of gateway.auth.tokens; the caller by default. For
    `spawn`, `target` may be the id of an agent or a harness.
    """
    settings = call.services.config.settings
    viewer = resolve.viewer(settings, call.operator)
    target_key = target
    if action == "spawn" and ":" not in target:
        target_key = f"agent:{target}:{'acp:new' if target in settings.acp.harnesses else 'main'}"

    def answer(tx: Tx) -> Payload:
        who: policy.Caller = call.operator
        if source and source.startswith(_TOKEN):
            who = _token(call, source.removeprefix(_TOKEN))
        elif source:
            who = _session(call, tx, source, viewer)
        own = settings.viewer(who.agent_id) if isinstance(who, Session) else viewer
        to = _session(call, tx, target_key, own)
        found = explanation.verdicts(settings, who, action, to)
        rules = [{"allowed": v.allowed, "code": v.code, "why": v.why} for v in found]
        return explanation.report(who, action, to, found) | {"rules": rules}

    return await call.services.store.read(answer)


def _token(call: Call, name: str) -> policy.Operator:
    """The operator a named token stands for. Raises NotAllowed for callers that are not owners."""
    call.for_all_agents()
    if not call.operator.is_owner:
        raise NotAllowed("Only an owner may ask about tokens.", rule="scope.missing")
    tokens = {token.name: token for token in call.services.config.settings.gateway.auth.tokens}
    if name not in tokens:
        known = ", ".join(tokens) or "none"
        raise BadInput(f"gateway.auth.tokens has no token {name!r} (configured: {known}).")
    agents = tokens[name].agents
    return policy.Operator(name, tuple(tokens[name].scopes), None if agents is None else tuple(agents))


def _session(call: Call, tx: Tx, text: str, viewer: keys.Viewer) -> Session:
    """The session as it is kept, or as it would be when it is first used."""
    key = keys.parse(text, viewer)
    session = sessions.find(tx, str(key)) or Session.of(key)
    resolve.require(policy.may(call.services.config.settings, call.operator, "list", session))
    return session
