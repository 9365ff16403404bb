"""Verbs on pairings: senders who asked to write to the bot, and those who were let in."""

from __future__ import annotations

import secrets

from hobnob.chat_types import Pairing
from hobnob.errors import NotFound
from hobnob.events import PairingChanged
from hobnob.records import replace
from hobnob.store.engine.tx import Tx
from hobnob.types import now_ms

CODE_CHARS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without 0 O 1 I, which look alike
CODE_LENGTH = 8
VALID_MS = 3_600_000


def new_code() -> str:
    return "".join(secrets.choice(CODE_CHARS) for _ in range(CODE_LENGTH))


def find(tx: Tx, channel: str, account_id: str, sender_id: str) -> Pairing | None:
    """The pairing of a sender; a request that has expired counts as none."""
    where = {"channel": channel, "account_id": account_id, "sender_id": sender_id}
    found = tx.get(Pairing, "pairing_get", **where)
    if found is not None and found.state == "pending" and found.expires_at_ms <= now_ms():
        return None
    return found


def count_open(tx: Tx, channel: str, account_id: str) -> int:
    """How many requests wait for an answer."""
    count: int = tx.value("pairings_open", channel=channel, account_id=account_id, now_ms=now_ms())
    return count


def has_owner(tx: Tx, channel: str) -> bool:
    return bool(tx.value("pairing_owners", channel=channel))


def all_pairings(tx: Tx) -> list[Pairing]:
    """Open requests first, then approved senders, newest first."""
    found = tx.all(Pairing, "pairings_all", limit=1_000)
    return [p for p in found if p.state == "approved" or p.expires_at_ms > now_ms()]


def request(tx: Tx, pairing: Pairing) -> Pairing:
    """Store the request of a sender."""
    tx.put("pairing_put", pairing)
    tx.changes.append(PairingChanged(pairing))
    return pairing


def approve(
    tx: Tx, code: str, *, channel: str | None = None, account_id: str | None = None, owner: bool = False
) -> Pairing:
    """Let in the sender who was given this code. Raises NotFound.

    The first sender of a channel who is approved as a possible owner becomes its owner.
    """
    fitting = [
        pairing
        for pairing in tx.all(Pairing, "pairings_by_code", code=code.strip().upper(), now_ms=now_ms())
        if channel in (None, pairing.channel) and account_id in (None, pairing.account_id)
    ]
    if len(fitting) != 1:
        raise NotFound(
            "There is no open request with this code.",
            fix="`hobnob pairing list` shows the open ones; a code is valid for an hour.",
        )
    tx.lock("channel", fitting[0].channel)  # of two who are approved at once, one becomes the owner
    first = owner and not tx.value("pairing_owners", channel=fitting[0].channel)
    approved = replace(fitting[0], state="approved", approved_at_ms=now_ms(), is_owner=bool(first))
    return request(tx, approved)


def revoke(tx: Tx, channel: str, account_id: str, sender_id: str) -> None:
    """Remove a request or an approval. Raises NotFound."""
    where = {"channel": channel, "account_id": account_id, "sender_id": sender_id}
    found = tx.get(Pairing, "pairing_get", **where)
    if found is None:
        raise NotFound(
            f"No sender {sender_id!r} is paired on {channel}.", fix="`hobnob pairing list` shows who is."
        )
    tx.run("pairing_delete", **where)
    tx.changes.append(PairingChanged(found))


def forget_expired(tx: Tx, before_ms: int) -> int:
    """Delete requests that expired before then."""
    return tx.run("pairings_expired", before=before_ms)
