"""Approvals: a person decides whether a command may run.

A question is a database row, so that it can be audited later. Only the process that asked waits for the
answer. A question that outlives that process expires with its turn, and its command is never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal

import orjson

from hobnob import keys, policy, redact
from hobnob.briefings import quoted
from hobnob.config import Config
from hobnob.delivery_routes import delivery_route
from hobnob.errors import Conflict, NotAllowed, NotFound
from hobnob.events import ApprovalChanged, Change
from hobnob.policy import Operator
from hobnob.records import replace
from hobnob.store import Store, Tx, approvals, deliveries, sessions, turns
from hobnob.types import Approval, ApprovalState, Session, Turn, now_ms, text_of

ASKED_CHARS = 500
_INPUTS_SHOWN = 5  # of a turn that several messages were merged into, the last ones
_CHAIN_MAX = 100  # causes followed to find who asked
_DISTRUST = ("person", "session", "node", "hook")
_ASKERS = {
    "hook": "from outside, the hook",
    "node": "the node",
    "session": "the session",
    "person": "a person, signed in as",
}
_ID_CHARS = 13  # of an approval id in a chat: its timestamp, down to the millisecond
Decision = Literal["allow-once", "deny"]
Waiting = Callable[[], AbstractAsyncContextManager[None]]


class Approvals:
    """Questions go to clients, and to the chat of the root session if its channel is in `channels`."""

    def __init__(self, store: Store, config: Config, channels: Callable[[], Container[str]]) -> None:
        self._store = store
        self._config = config
        self._channels = channels
        self._waiting: dict[str, asyncio.Future[Approval]] = {}
        store.watch(self._changed)

    async def recover(self) -> None:
        """Expire the questions of gateways that are gone."""
        for question in await self._store.read(approvals.left):
            await self._decide(question.approval_id, "expired", "the gateway was restarted")

    async def ask(
        self,
        session: Session,
        turn: Turn,
        call_id: str,
        command: str,
        details: dict[str, Any],
        waiting: Waiting,
    ) -> None:
        """Wait until a person allows the command. Raises NotAllowed when it is denied or the time is up."""
        limit_s = self._config.settings.tools.exec.ask_timeout_sec
        question = Approval(
            session_key=session.key,
            agent_id=session.agent_id,
            turn_id=turn.turn_id,
            call_id=call_id,
            command=command,
            expires_at_ms=now_ms() + limit_s * 1000,
        )
        answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self._waiting[question.approval_id] = answer
        try:
            await self._store.write(self._ask, session, turn, question, details)
            async with waiting():
                with suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        await asyncio.shield(answer)
            if not answer.done():
                await self._decide(question.approval_id, "expired", "nobody answered in time")
        except asyncio.CancelledError:
            await asyncio.shield(self._decide(question.approval_id, "expired", "the turn was stopped"))
            raise
        finally:
            del self._waiting[question.approval_id]
        _check_allowed(answer.result() if answer.done() else None, limit_s)

    async def pending(self, operator: Operator) -> list[Approval]:
        """The open questions of sessions whose history the operator may read."""
        found = await self._store.read(approvals.pending)
        return [question for question in found if self._may(operator, "history", question)]

    async def resolve(self, operator: Operator, approval_id: str, decision: Decision) -> Approval:
        """Answer a question. A unique prefix of its id is enough. Raises NotFound, NotAllowed or Conflict."""
        matching = [q for q in await self.pending(operator) if q.approval_id.startswith(approval_id)]
        if len(matching) != 1 or not approval_id:
            raise NotFound(
                f"There is no open question {approval_id!r}, or more than one begins like that.",
                fix="`hobnob approvals list` shows the open questions.",
            )
        question = matching[0]
        if not self._may(operator, "approve", question):
            raise NotAllowed(
                "To answer a question, you need the right to approve commands of its session.",
                rule="scope.missing",
                fix=f"Use a token that holds operator.approvals for agent {question.agent_id}.",
            )
        state: ApprovalState = "allowed" if decision == "allow-once" else "denied"
        turn = await self._store.read_small(turns.find, question.turn_id)
        if turn is None or turn.status != "running":
            raise Conflict("Nothing waits for this answer any more: the turn has ended.")
        decided, is_first = await self._decide(question.approval_id, state, operator.name)
        if decided is None or not is_first:
            raise Conflict("The question has been answered already, or has expired.")
        return decided

    async def _decide(self, approval_id: str, state: ApprovalState, by: str) -> tuple[Approval | None, bool]:
        return await self._store.write(approvals.decide, approval_id, state, by)

    def _changed(self, changes: Sequence[Change]) -> None:
        """Wake the waiting turn, whichever way its question was answered."""
        for change in changes:
            if isinstance(change, ApprovalChanged) and change.approval.state != "pending":
                answer = self._waiting.get(change.approval.approval_id)
                if answer is not None and not answer.done():
                    answer.set_result(change.approval)

    async def recheck(self) -> None:
        """Look in the store for answers that were given at another gateway."""
        for approval_id, answer in [*self._waiting.items()]:
            found = await self._store.read_small(approvals.find, approval_id)
            if found is not None and found.state != "pending" and not answer.done():
                answer.set_result(found)

    def _ask(self, tx: Tx, session: Session, turn: Turn, question: Approval, details: dict[str, Any]) -> None:
        inputs = [turn, *turns.merged(tx, turn)]
        context = _context(session, inputs) | {"askedBy": _asked_by(tx, inputs)}
        question = replace(question, details=orjson.dumps(details | context).decode())
        approvals.ask(tx, question)
        root = sessions.find(tx, session.root_key)
        route = delivery_route(root) if root is not None else None
        if root is None or route is None or route.channel not in self._channels():
            return
        deliveries.create(tx, route.delivery(root.key, _chat_text(question), turn_id=question.turn_id))

    def _may(self, operator: Operator, verb: policy.Verb, question: Approval) -> bool:
        session = Session.of(keys.parse(question.session_key))
        return policy.may(self._config.settings, operator, verb, session).allowed


def payload(question: Approval) -> dict[str, Any]:
    """A question as sent to clients."""
    request = {
        "command": question.command,
        "agentId": question.agent_id,
        "sessionKey": question.session_key,
        "runId": question.turn_id,
        "toolCallId": question.call_id,
    }
    return {
        "id": question.approval_id,
        "request": request | orjson.loads(question.details),
        "createdAtMs": question.created_at_ms,
        "expiresAtMs": question.expires_at_ms,
    }


def _context(session: Session, inputs: Sequence[Turn]) -> dict[str, Any]:
    """What a person needs to decide: the session's origin, and the input of the turn."""
    inputs = inputs[-_INPUTS_SHOWN:]
    each_chars = ASKED_CHARS // len(inputs)
    texts = (redact.excerpt(text_of(orjson.loads(each.input)), each_chars) for each in inputs)
    origin = {"spawnedBy": session.spawned_by, "label": session.label, "channel": session.last_channel}
    return {"asked": "\n".join(texts)} | {name: value for name, value in origin.items() if value}


def _asked_by(tx: Tx, inputs: Sequence[Turn]) -> dict[str, str]:
    """Who started the chains of turns that led here: a hook, another session, or a person.

    A turn may have several inputs, by messages that were merged into it. Of their origins the one that is
    trusted least is named, so that a message from outside does not hide behind a person's.
    """
    origins: list[dict[str, str]] = []
    waiting, seen = list(inputs), set[str]()
    while waiting and len(seen) < _CHAIN_MAX:
        turn = waiting.pop(0)
        if turn.turn_id in seen:
            continue
        seen.add(turn.turn_id)
        cause = turns.find(tx, turn.caused_by) if turn.caused_by else None
        if cause is None:
            origins.append(_origin(turn))
        else:
            waiting += [cause, *turns.merged(tx, cause)]
    return max(origins, key=lambda origin: _DISTRUST.index(origin["kind"]))


def _origin(turn: Turn) -> dict[str, str]:
    source = orjson.loads(turn.input).get("provenance") or {}
    match source.get("kind"):
        case "hook":
            return {"kind": "hook", "name": source.get("hook", "unknown")}
        case "node":
            return {"kind": "node", "name": source.get("node", "unknown")}
        case "inter_session":
            return {"kind": "session", "name": source.get("sourceSessionKey", "unknown")}
    return {"kind": "person", "name": orjson.loads(turn.options).get("sender", "unknown")}


def _chat_text(question: Approval) -> str:
    """The question as a chat message, with the commands that answer it."""
    short = question.approval_id[:_ID_CHARS]
    details = orjson.loads(question.details)
    return (
        f"May agent {question.agent_id} run this command {place(details)}?\n\n"
        f"{_indented(question.command)}\n\n"
        f"{plan_line(details)}"
        f"Session: {quoted(question.session_key)}\n"
        f"Asked by: {asker(details['askedBy'])}\n"
        f"The message was: {quoted(details['asked'])}\n"
        f"An owner answers with /allow {short} or /deny {short}."
    )


def place(details: dict[str, Any]) -> str:
    """Where a command would run, in words for a person."""
    if details.get("host") == "node":
        return f"on the node {quoted(details.get('node'))}"
    return "in the sandbox" if details.get("sandbox") else "on the host, with the gateway's own rights"


def plan_line(details: dict[str, Any]) -> str:
    """What a node says it will run, as a line; empty for other commands."""
    plan = details.get("plan")
    if not plan:
        return ""
    folder = f" in {quoted(plan['cwd'])}" if plan.get("cwd") else ""
    return f"The node will run: {' '.join(map(quoted, plan['argv']))}{folder}\n"


def asker(asked_by: dict[str, str]) -> str:
    """Who asked, in words for a person. The name comes from outside, so it is quoted."""
    kind, name = _ASKERS[asked_by["kind"]], quoted(asked_by["name"])
    return f"{kind} {name}"


def _indented(text: str) -> str:
    """Every line indented, so that none of them reads as a line of the question."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _check_allowed(decided: Approval | None, limit_s: int) -> None:
    if decided is not None and decided.state == "allowed":
        return
    if decided is not None and decided.state == "denied":
        raise NotAllowed(
            f"{decided.decided_by} denied this command. It was not run.",
            rule="exec.denied",
            fix="Ask what to do instead; do not try the same in another way.",
        )
    raise NotAllowed(
        f"Nobody approved the command within {limit_s} seconds. It was not run.",
        rule="exec.not_approved",
        fix="Say that the command needs an approval (`hobnob approvals list`), and try again when asked to.",
    )
