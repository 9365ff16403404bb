"""Verbs on idempotency keys: the answers already given to requests."""

from __future__ import annotations

from hobnob.errors import Conflict
from hobnob.store.engine.tx import Tx
from hobnob.types import now_ms


def recall(tx: Tx, scope: str, key: str) -> str | None:
    """The answer given to the first request with this key. A second request waits for the first."""
    tx.lock("idempotency", f"{scope} {key}")
    answer: str | None = tx.value("idempotency_get", scope=scope, key=key)
    return answer


def remember(tx: Tx, scope: str, key: str, answer: str) -> None:
    """Keep the answer to a request. The first answer kept under a key stays."""
    tx.run("idempotency_insert", scope=scope, key=key, answer=answer, now_ms=now_ms())


def begin(tx: Tx, scope: str, key: str, fingerprint: str) -> tuple[bool, str | None]:
    """Record that a call begins. Returns whether it began before, and its answer if it finished.

    Raises Conflict when the key was used for another call.
    """
    earlier = recall(tx, scope, key)
    if earlier is None:
        remember(tx, scope, key, fingerprint)
        return False, None
    if earlier != fingerprint:
        raise Conflict("This idempotency key was used for another call.", fix="Use a new key for each call.")
    return True, recall(tx, scope, f"{key}:result")


def is_open(tx: Tx, scope: str, key: str) -> bool:
    """Whether a call began and has no answer yet."""
    return recall(tx, scope, key) is not None and recall(tx, scope, f"{key}:result") is None


def finish(tx: Tx, scope: str, key: str, answer: str) -> None:
    """Keep the answer of a call that began."""
    remember(tx, scope, f"{key}:result", answer)
