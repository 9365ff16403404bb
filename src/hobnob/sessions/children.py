"""The children of a session: fork them, list them, wait for them, wake on their completion, cancel them.

Each function is one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from hobnob import exchanges, joins, policy
from hobnob.briefings import STATUS
from hobnob.config import Settings
from hobnob.effects import Effects
from hobnob.errors import BadAttachment, BadInput, NotAllowed, NotFound, TooLarge
from hobnob.joins import Wait
from hobnob.policy import Caller
from hobnob.records import replace
from hobnob.requests import SpawnRequest, WaitQuery
from hobnob.sessions.presentation import Row, outcome_row
from hobnob.sessions.sending import Cause
from hobnob.sessions.waiters import refuse_deadlocks
from hobnob.store import Tx, entries, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Entry, Exchange, Session, Turn, new_id, now_ms

WaitFor = Literal["all", "any"] | Sequence[str]
_MAX_SESSIONS = 1000
_MAX_SPAWNS = 10_000
_FORK_ENTRIES, _FORK_CHARS = 2_000, 2_000_000  # of a transcript that can be forked
_NAMESPACE = uuid.UUID("0a9d8c7e-51f3-4d8e-9f0b-3f5a5b1c2e77")


def spawns(tx: Tx, root: Session) -> list[Exchange]:
    """The spawns of a session and of its descendants, newest first."""
    return exchange_rows.spawned_by_any(tx, _tree_keys(tx, root))


# -- fork


def fork_transcript(tx: Tx, requester: Session, child: Session) -> None:
    """Copy the requester's transcript up to the call that is under way. Raises TooLarge, never cuts."""
    kept = entries.history(tx, requester.session_id, limit=_FORK_ENTRIES + 1)
    size = sum(len(entry.body) for entry in kept)
    if len(kept) > _FORK_ENTRIES or size > _FORK_CHARS:
        raise TooLarge(
            f"The conversation is too long to be forked: at most {_FORK_ENTRIES:,} messages and"
            f" {_FORK_CHARS:,} characters.",
            fix="Use context isolated and put what matters into the task.",
        )
    for entry in kept[: _finished(kept)]:
        entries.append(tx, child.session_id, entry.message)


def _finished(kept: Sequence[Entry]) -> int:
    """How many entries there are before an answer whose tool calls are under way."""
    last = max((i for i, entry in enumerate(kept) if entry.role == "assistant"), default=-1)
    if last < 0:
        return len(kept)
    content = kept[last].message["content"]
    called = {p["id"] for p in content if p.get("type") == "toolCall"} if isinstance(content, list) else set()
    answered = {entry.message.get("toolCallId") for entry in kept[last + 1 :]}
    return len(kept) if called <= answered else last


# -- wait


def begin_wait(tx: Tx, settings: Settings, cause: Cause, query: WaitQuery) -> Wait:
    """The wait of a tool call: a new one, or the same as before when the call is run again.

    Raises NotFound, BadInput, or NotAllowed when it would never end.
    """
    wait_id = str(uuid.uuid5(_NAMESPACE, f"{cause.scope} {cause.key(query.content())}"))
    if (known := exchange_rows.find_wait(tx, wait_id)) is not None:
        return known
    runs = waited_runs(tx, settings, cause.session, cause.session.key, query)
    needed = joins.needed(query.mode, len(runs))
    found = turns.finals(tx, runs)
    open_keys = [turn.session_key for turn in found.values() if turn.status != "ended"]
    ended = {run for run, turn in found.items() if turn.status == "ended"}
    limit_s = min(max(query.timeout_seconds, 0), settings.tools.swarm.wait_timeout_seconds_max)
    if limit_s:
        refuse_deadlocks(tx, cause.session.key, open_keys, needed - len(ended))
    at = now_ms()
    wait = Wait(
        wait_id=wait_id,
        session_key=cause.session.key,
        turn_id=cause.turn_id,
        kind="join",
        ids=joins.encoded(runs),
        needed=needed,
        deadline_ms=at + int(limit_s * 1000),
    )
    return exchange_rows.begin_wait(tx, joins.after(wait, ended, at))


def end_wait(tx: Tx, wait_id: str, *, timed_out: bool) -> Wait:
    """The wait as it stands: over if enough of its runs have ended, or its time is."""
    wait = exchange_rows.find_wait(tx, wait_id)
    if wait is None:
        raise NotFound("The session that waited was deleted.")
    ended = turns.ended_of(tx, wait.members)
    if len(ended) < wait.needed:  # some may have been merged into others
        ended = {run for run, turn in turns.finals(tx, wait.members).items() if turn.status == "ended"}
    at = max(now_ms(), wait.deadline_ms or 0) if timed_out else now_ms()
    after = joins.after(wait, ended, at)
    if after is not wait:
        exchange_rows.end_wait(tx, after)
    return after


def waited_runs(
    tx: Tx, settings: Settings, caller: Caller, requester_key: str, query: WaitQuery
) -> list[str]:
    """The ids of the runs to wait for. Raises NotFound for those that the caller may not know of."""
    if (query.ids is None) == (query.group_id is None):
        raise BadInput("Give ids or groupId.")
    if query.group_id is not None:
        runs = exchange_rows.group_runs(tx, requester_key, query.group_id)
        if not runs:
            raise NotFound(
                f"No sub-agent was started with collect in the group {query.group_id!r}.",
                fix="Use the groupId that sessions_spawn returned, or ids.",
            )
        return runs
    runs = list(dict.fromkeys(each.strip() for each in query.ids or ()))
    found = turns.finals(tx, runs)
    started = {e.exchange_id: e for e in _exchanges(tx, found.values())}
    for run in runs:
        turn = found.get(run)
        exchange = started.get(turn.exchange_id or "") if turn else None
        own = exchange is not None and isinstance(caller, Session) and exchange.requester_key == caller.key
        session = session_rows.find(tx, turn.session_key) if turn and not own else None
        if not own and (session is None or not policy.may(settings, caller, "history", session).allowed):
            raise turns.not_found(run)
    return runs


def results(tx: Tx, runs: Sequence[str]) -> list[Row]:
    """What came of runs that have ended. One that was removed since is reported as lost."""
    found = turns.finals(tx, runs)
    labels = {e.exchange_id: e.label for e in _exchanges(tx, found.values())}
    return [_result(run, found.get(run), labels) for run in runs]


def _result(run: str, turn: Turn | None, labels: dict[str, str | None]) -> Row:
    if turn is None:
        return {"runId": run, "status": "error", "outcome": STATUS["lost"], "error": "It was removed."}
    row: Row = {"runId": run, "sessionKey": turn.session_key}
    if label := labels.get(turn.exchange_id or ""):
        row["label"] = label
    usage: Row = {"inputTokens": turn.input_tokens, "outputTokens": turn.output_tokens}
    usage |= {"costUsd": turn.cost_usd} if turn.cost_usd else {}
    partial = exchanges.reply_text(turn.reply) if turn.outcome not in ("ok", "no_output") else ""
    row |= {"outcome": STATUS[turn.outcome or "lost"]} | ({"reply": partial} if partial else {})
    return row | outcome_row(turn) | {"usage": usage}


def _exchanges(tx: Tx, found: Iterable[Turn]) -> list[Exchange]:
    ids = [turn.exchange_id for turn in found if turn.exchange_id]
    return exchange_rows.of_any(tx, ids) if ids else []


# -- yield


def wake_on_completion(tx: Tx, session: Session, turn_id: str, wait_for: WaitFor = "all") -> int:
    """Give the session one turn when its working children are done. Returns how many there are.

    `wait_for`: all of them, any, or the runs of some. A later call replaces an earlier one.
    """
    exchange_rows.lock_yields(tx, session.key)
    working = [
        exchange
        for exchange in exchange_rows.spawned_by(tx, session.key, limit=_MAX_SPAWNS)
        if exchange.state == "open"
        and exchange.phase in ("primary", "announce")
        and exchange.reports != "quiet"
    ]
    if not isinstance(wait_for, str):
        named = {turn.exchange_id for turn in turns.by_ids(tx, wait_for).values()}
        working = [exchange for exchange in working if exchange.exchange_id in named]
    if not working:
        return 0
    exchange_rows.forget_yields(tx, session.key)
    for exchange in working:  # else each of them would start a turn
        _only_post(tx, exchange)
    exchange_rows.begin_wait(
        tx,
        Wait(
            wait_id=new_id(),
            session_key=session.key,
            turn_id=turn_id,
            kind="yield",
            ids=joins.encoded([exchange.exchange_id for exchange in working]),
            needed=1 if wait_for == "any" else len(working),
        ),
    )
    return len(working)


def _only_post(tx: Tx, exchange: Exchange) -> None:
    """Let the end of a child start no turn of its own.

    It is read again, which locks it: a turn of the child may have ended since it was listed.
    """
    current = exchange_rows.find(tx, exchange.exchange_id)
    if current is not None and current.state == "open" and current.on_complete == "wake":
        exchange_rows.save(tx, replace(current, on_complete="post"))


def cancel(tx: Tx, effects: Effects, root: Session) -> Sequence[Turn]:
    """Abort every open turn of the tree. Pending reports inside it become notes and start no turn."""
    tree = _tree_keys(tx, root)
    for key in tree:
        exchange_rows.forget_yields(tx, key)
    for exchange in exchange_rows.spawned_by_any(tx, tree):
        _only_post(tx, exchange)
    return [effects.abort_turn(tx, turn.turn_id, "cancelled") for turn in turns.open_of_any(tx, tree)]


def _tree_keys(tx: Tx, root: Session) -> list[str]:
    return [session.key for session in session_rows.page(tx, tree_of=root, limit=_MAX_SESSIONS)]


def check_attachments(request: SpawnRequest, files: Sequence[dict[str, Any]]) -> None:
    """Refuse attachments for a harness, before they are decoded."""
    if files and request.runtime == "acp":
        raise BadAttachment(
            "The runtime acp takes no attachments.",
            fix="Put the content into the task, or the files into the harness's workspace.",
        )


def no_thread(why: str) -> NotAllowed:
    """The refusal of a thread."""
    return NotAllowed(
        f"No thread can be opened for a sub-agent: {why}.", rule="spawn.thread", fix="Leave thread out."
    )


def check_thread(request: SpawnRequest) -> None:
    """Refuse parameters that do not fit together."""
    if request.mode == "session" and not request.thread:
        raise BadInput("mode session needs thread: true.", fix="Leave mode out, or add thread: true.")
    if request.mode == "session" and request.cleanup == "delete":
        raise BadInput("mode session keeps the session, cleanup delete removes it.", fix="Leave one out.")
