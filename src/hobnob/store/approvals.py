"""Verbs on approvals: questions to people whether a command may run."""

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
    """The open questions, oldest first."""
    return tx.all(Approval, "approvals_pending")


def left(tx: Tx) -> list[Approval]:
    """The open questions of gateways that are gone."""
    return tx.all(Approval, "approvals_left")


def decide(tx: Tx, approval_id: str, state: ApprovalState, decided_by: str) -> tuple[Approval | None, bool]:
    """Answer an open question. Returns the question, and False when it had been answered before."""
    query = "approval_decide"
    is_first = tx.run(query, approval_id=approval_id, state=state, decided_by=decided_by, now_ms=now_ms())
    decided = find(tx, approval_id)
    if is_first and decided is not None:
        tx.changes.append(ApprovalChanged(decided))
    return decided, bool(is_first)
