"""Methods on the policy: why something is allowed or refused."""

from __future__ import annotations

from hobnob import policy
from hobnob.api.rpc import Call, Payload, method


@method("policy.explain", scope="operator.read")
async def policy_explain(call: Call, action: policy.Verb, target: str, source: str | None = None) -> Payload:
    """Whether the session `source` may do `action` to `target`, by which rule, and what would change it.

    Without `source` it is about the caller. For `spawn`, `target` may be the id of an agent.
    """
    return await call.services.sessions.queries.explain(call.operator, action, target, source)
