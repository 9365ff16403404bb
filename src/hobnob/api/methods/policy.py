"""Methods on the policy: why something is allowed or refused."""

from __future__ import annotations

from hobnob import policy
from hobnob.api.rpc import Call, Payload, method


@method("policy.explain", scope="operator.read")
async def policy_explain(call: Call, action: policy.Verb, target: str, source: str | None = None) -> Payload:
    """Whether `source` may do `action` to `target`, by which rule, and which settings would change that.

    `source` is a session key, or `token:NAME` for a token of gateway.auth.tokens; the caller by default. For
    `spawn`, `target` may be the id of an agent or a harness.
    """
    return await call.services.sessions.queries.explain(call.operator, action, target, source)


@method("policy.matrix", scope="operator.read")
async def policy_matrix(call: Call) -> Payload:
    """Who may do what to whom: each verb between the main sessions of every two agents, with its rule.

    `authority` says whose tools a turn has that a message starts, and which are withheld. `refusals` are the
    latest of this process.
    """
    call.require_all_agents()
    return await call.services.sessions.queries.trust()
