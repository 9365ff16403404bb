"""Who may do what, and which rule says so."""

from __future__ import annotations

from hobnob import keys, policy
from hobnob.api.rpc import Call, Payload, method
from hobnob.policy import explanation
from hobnob.sessions import resolve
from hobnob.store import Tx, sessions
from hobnob.types import Session


@method("policy.explain", scope="operator.read")
async def policy_explain(call: Call, action: policy.Verb, target: str, source: str | None = None) -> Payload:
    """Whether the session `source` may do `action` to `target`, by which rule, and what would change it.

    Without `source` it is about the caller. For `spawn`, `target` may be the id of an agent.
    """
    settings = call.services.config.settings
    viewer = resolve.viewer(settings, call.operator)

    def answer(tx: Tx) -> Payload:
        who: policy.Caller = _session(call, tx, source, viewer) if source else call.operator
        own = settings.viewer(who.agent_id) if isinstance(who, Session) else viewer
        named = f"agent:{target}:main" if action == "spawn" and ":" not in target else target
        to = _session(call, tx, named, own)
        found = explanation.verdicts(settings, who, action, to)
        rules = [{"allowed": v.allowed, "code": v.code, "why": v.why} for v in found]
        return explanation.report(who, action, to, found) | {"rules": rules}

    return await call.services.store.read(answer)


def _session(call: Call, tx: Tx, text: str, viewer: keys.Viewer) -> Session:
    """The session as it is kept, or as it would be when it is first used."""
    key = keys.parse(text, viewer)
    session = sessions.find(tx, str(key)) or Session.of(key)
    resolve.require(policy.may(call.services.config.settings, call.operator, "list", session))
    return session
