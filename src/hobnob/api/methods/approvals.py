"""Methods on approvals: commands that wait for a person's decision."""

from __future__ import annotations

from hobnob import approvals
from hobnob.api.rpc import Call, Payload, method
from hobnob.approvals import Decision


@method("exec.approval.list", scope="operator.read")
async def approval_list(call: Call) -> Payload:
    """Pending approvals, oldest first."""
    found = await call.services.approvals.pending(call.operator)
    return {"approvals": [approvals.payload(question) for question in found]}


@method("exec.approval.resolve", scope="operator.approvals")
async def approval_resolve(call: Call, id: str, decision: Decision) -> Payload:
    """Allow or deny a waiting command. A unique prefix of its id is enough."""
    decided = await call.services.approvals.resolve(call.operator, id, decision)
    return {"ok": True, "id": decided.approval_id, "decision": decided.state}
