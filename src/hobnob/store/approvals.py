"""Verbs on questions to people: may this command run?"""

from __future__ import annotations

from hobnob.events import ApprovalChanged
from hobnob.store.engine.tx import Tx
from hobnob.types import Approval, ApprovalState, now_ms


def ask(tx: Tx, approval: Approval) -> Approval:
    tx.put("approval_insert", approval)
    tx.changes.append(ApprovalChanged(approval))
    return approval


def find(tx: Tx, approval_id: str) -> Approval | None:
    return tx.get(Approval, "approval_get", approval_id=approval_id)


def pending(tx: Tx) -> list[Approval]:
    """The questions nobody has answered, the oldest first."""
    return tx.all(Approval, "approvals_pending")


def decide(tx: Tx, approval_id: str, state: ApprovalState, decided_by: str) -> tuple[Approval | None, bool]:
    """Answer a question, unless it was answered before. Returns it as it is, and whether this counted."""
    query = "approval_decide"
    counted = tx.run(query, approval_id=approval_id, state=state, decided_by=decided_by, now_ms=now_ms())
    decided = find(tx, approval_id)
    if counted and decided is not None:
        tx.changes.append(ApprovalChanged(decided))
    return decided, bool(counted)


def forget(tx: Tx, before_ms: int) -> int:
    """Drop questions that were answered and are older than that."""
    return tx.run("approvals_forget", before_ms=before_ms)
