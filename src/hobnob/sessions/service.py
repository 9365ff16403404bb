"""Sessions: the verbs every surface uses.

Each verb resolves its session, asks the policy once, and acts in one transaction. Tools, RPC methods, HTTP
routes, hooks and commands all come through here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from hobnob import attachments, crashpoints, joins, keys, metering, output_schemas, policy
from hobnob.config import Config, Settings
from hobnob.delivery_routes import DeliveryRoute, delivery_route
from hobnob.effects import Effects
from hobnob.errors import BadInput, Conflict, HobnobError, NotFound, SessionNotFound
from hobnob.joins import Wait
from hobnob.models.catalog import Catalog
from hobnob.policy import Caller, Operator, Verb
from hobnob.records import replace
from hobnob.requests import (
    TIMEOUT_MAX_S,
    SpawnRequest,
    WaitQuery,
    check_changes,
    check_message,
    check_size,
    checked_fields,
)
from hobnob.sessions import children, resolve, sending, slash_commands
from hobnob.sessions.capabilities import AvailableTools, Capabilities
from hobnob.sessions.children import WaitFor
from hobnob.sessions.exchange_log import Refusals
from hobnob.sessions.presentation import Row
from hobnob.sessions.queries import SessionQueries
from hobnob.sessions.sending import Cause, InboundMessage, SendTarget
from hobnob.sessions.spawning import Spawner, SpawnPlan, SpawnReceipt, WrittenAttachments
from hobnob.sessions.waiters import TurnWaiters
from hobnob.spending import Limits
from hobnob.store import Store, Tx, entries, homes, purge_entries, turns
from hobnob.store import sessions as session_rows
from hobnob.types import Delivery, Entry, Exchange, Session, Turn, new_id, now_ms
from hobnob.workspaces.service import Workspaces

T = TypeVar("T")
ThreadCheck = Callable[[DeliveryRoute | None], Awaitable[str | None]]  # why no thread can be opened there
_NO_USAGE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}


class Sessions:
    """Verbs that change sessions. Reading is in `queries`, tools and sandboxes are in `capabilities`."""

    def __init__(
        self,
        store: Store,
        config: Config,
        models: Catalog,
        effects: Effects,
        *,
        tools: AvailableTools,
        workspaces: Workspaces,
        why_no_thread: ThreadCheck,
    ) -> None:
        self._store = store
        self._why_no_thread = why_no_thread
        self._config = config
        self._models = models
        self._effects = effects
        self._workspaces = workspaces
        self._refusals = Refusals()
        self.waiters = TurnWaiters(store)
        self.capabilities = Capabilities(store, config, tools, workspaces.sandbox)
        self.queries = SessionQueries(store, config, self._refusals, self.capabilities)
        self._spawner = Spawner(config, models, self.capabilities)

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    # -- resolve

    async def resolve(
        self,
        caller: Caller,
        reference: str | None = None,
        *,
        label: str | None = None,
        agent_id: str | None = None,
        verb: Verb = "list",
    ) -> Session:
        """The session of a key, sessionId or label. Raises SessionNotFound, NotAllowed or LabelAmbiguous."""
        if (reference is None) == (label is None):
            raise BadInput("Give a key or sessionId, or a label.")
        if label is not None:  # any number of sessions may have it
            return await self._store.read(resolve.by_label, self._settings, caller, verb, label, agent_id)
        return await self._store.read_small(resolve.find, self._settings, caller, verb, str(reference))

    async def resolve_or_new(self, caller: Caller, reference: str) -> Session:
        """The session of a key, or as it would be created at its first use. Raises NotAllowed."""
        target = await self._store.read_small(resolve.lookup, self._settings, caller, reference)
        session = target.session_or_new
        resolve.require(policy.may(self._settings, caller, "status", session))
        return session

    async def resolve_for_calls(self, caller: Caller, reference: str) -> Session:
        """The session a caller may act for: one it may send into. A main session is created at first use."""
        try:
            return resolve.not_archived(await self.resolve(caller, reference, verb="send"))
        except SessionNotFound:
            return await self._store.write(resolve.find_or_create_main, self._settings, caller, reference)

    def display_key(self, caller: Caller, key: str) -> str:
        """A key as the caller is shown it."""
        return keys.display_stored(key, resolve.viewer(self._settings, caller))

    # -- create and change

    async def create(
        self, caller: Caller, reference: str | None = None, *, agent_id: str | None = None, **fields: Any
    ) -> Session:
        """Create a session, under a generated key when none is given. Raises SessionExists."""
        if reference is None:
            agent = keys.agent_id(agent_id) if agent_id else self._settings.default_agent.id
            reference = f"agent:{agent}:dashboard:{uuid.uuid4()}"
        key = keys.parse(reference, resolve.viewer(self._settings, caller))
        if key.is_child:
            raise BadInput("Sessions of sub-agents are created by sessions_spawn only.")

        def make(tx: Tx) -> Session:
            session = Session.of(key, **checked_fields(fields, lambda name: self._models.info(name).name))
            resolve.require(policy.may(self._settings, caller, "change", session))
            resolve.check_agent(self._settings, session)
            return session_rows.create(tx, session)

        return await self._store.write(make)

    async def patch(
        self,
        caller: Caller,
        reference: str,
        *,
        transcript: str | None = None,
        archived: bool | None = None,
        budget: Limits | None = None,
        **fields: Any,
    ) -> Session:
        """Change settings of a session; None removes one. `archived` archives or restores it.

        `budget` is what it and what it spawns may spend from now on; without any limit it is removed.
        With `transcript`, it is refused when the session has another transcript by now.
        """
        changes = checked_fields(fields, lambda name: self._models.info(name).name)

        def change(tx: Tx, session: Session) -> Session:
            if transcript not in (None, session.session_id):
                raise Conflict(f"The session {session.key} has a new transcript by now.")
            check_changes(session, changes)
            if changes:
                session = session_rows.patch(tx, session.key, **changes)
            if budget is not None:
                metering.set_limits(tx, "session", session.key, budget)
            if archived is not None:
                session = (session_rows.archive if archived else session_rows.restore)(tx, session.key)
            return session

        # Send policy and budget are safety settings; the others are how the session is shown and run.
        safety = "send_policy" in changes or budget is not None
        verb: policy.Verb = "control" if safety else "change"
        return await self._change(caller, reference, change, verb)

    async def move(
        self, caller: Caller, reference: str, home: str | None, *, force: bool = False
    ) -> tuple[Session, Session]:
        """Give a session another home, see `homes.move`. Returns it as it was, and as it is."""
        if self._settings.home_name is None:
            raise homes.no_homes()
        return await self._change(caller, reference, lambda tx, s: (s, homes.move(tx, s, home, force=force)))

    async def reset(self, caller: Caller, reference: str) -> Session:
        """Start a new transcript. The old one stays readable by its id."""
        return await self._change(caller, reference, lambda tx, s: session_rows.reset(tx, s.key))

    async def inject(
        self, caller: Caller, reference: str, text: str, *, label: str | None = None
    ) -> tuple[Session, Entry]:
        """Append a message to a transcript as if the agent had written it. No turn runs."""
        text = self.check_message(text)
        message = {
            "role": "assistant",
            "content": [{"type": "text", "text": f"[{label}]\n\n{text}" if label else text}],
            "provider": "hobnob",
            "model": "injected",
            "usage": _NO_USAGE,
            "stopReason": "stop",
            "timestamp": now_ms(),
        }

        def append(tx: Tx, session: Session) -> tuple[Session, Entry]:
            resolve.not_archived(session)
            session_rows.touch(tx, session.key)
            return session, entries.append(tx, session.session_id, message)

        return await self._change(caller, reference, append)

    async def compact(
        self, caller: Caller, reference: str, *, focus: str = "", keep: int | None = None
    ) -> Turn:
        """Have the older part of a conversation summarised: the turn of `/compact`, which is queued.

        `keep`: how many of the last messages stay as they are; unset means by their size.
        """
        options = {} if keep is None else {"keep": keep + 1}  # and the request itself

        def start(tx: Tx, session: Session) -> Turn:
            resolve.not_archived(session)
            return turns.accept(tx, slash_commands.compaction(session, focus, options=options))

        return await self._change(caller, reference, start)

    async def compacted(self, turn: Turn) -> Entry | None:
        """The summary that a turn has made."""
        written = await self._store.read(entries.after, turn.session_id, turn.input_seq or 0, limit=10)
        own = (entry for entry in written if entry.turn_id == turn.turn_id and entry.role == "assistant")
        return next((entry for entry in own if "compaction" in entry.message), None)

    async def archive(self, caller: Caller, reference: str) -> Session:
        """Hide a session from lists; it takes no messages until it is restored."""
        return await self._change(caller, reference, lambda tx, s: session_rows.archive(tx, s.key), "change")

    async def restore(self, caller: Caller, reference: str) -> Session:
        """Undo `archive`."""
        return await self._change(caller, reference, lambda tx, s: session_rows.restore(tx, s.key), "change")

    async def delete(self, caller: Caller, reference: str) -> Session:
        """Delete a session with its transcripts. Raises Conflict for an agent's main session."""

        def remove(tx: Tx, session: Session) -> Session:
            if session.kind == "main":
                raise Conflict(
                    f"The main session {session.key} cannot be deleted.",
                    fix="Reset it instead: sessions.reset, or `hobnob sessions reset`.",
                )
            self._effects.delete_session(tx, session.key)
            return session

        deleted = await self._change(caller, reference, remove)
        await purge_entries(self._store)  # if this is interrupted, retention goes on with it
        return deleted

    async def _change(
        self, caller: Caller, reference: str, act: Callable[[Tx, Session], T], verb: policy.Verb = "control"
    ) -> T:
        def change(tx: Tx) -> T:
            return act(tx, resolve.find(tx, self._settings, caller, verb, reference))

        return await self._store.write(change)

    # -- send

    def check_message(self, text: str) -> str:
        """The text as it would be sent. Raises BadInput or TooLarge."""
        return check_message(self._settings, text)

    async def send(self, caller: Caller, reference: str, message: InboundMessage | str) -> Turn:
        """Accept a message as a turn of a session. It is on disk when this returns."""
        message = InboundMessage(message) if isinstance(message, str) else message
        message = replace(message, text=self.check_message(message.text))
        check_size(self._settings, message.options.extra_system or "", "system prompt")
        turn = await self._store.write(
            sending.accept_message, self._settings, self._models, self._effects, caller, reference, message
        )
        crashpoints.point("after-accept")
        return turn

    async def resend(self, caller: Caller, reference: str, seq: int, idempotency_key: str) -> Turn:
        """Accept a message of the transcript once more, for example after its turn failed."""

        def read(tx: Tx) -> InboundMessage:
            session = resolve.find(tx, self._settings, caller, "send", reference)
            return sending.sent_again(tx, session, seq, idempotency_key)

        return await self.send(caller, reference, await self._store.read(read))

    async def send_as_agent(
        self, cause: Cause, to: SendTarget, text: str, *, wait_s: float, budget: Limits | None = None
    ) -> tuple[Turn, Exchange]:
        """Accept a message of one agent for another. The same tool call never has a second effect."""
        with self._refusals.noted(cause.session.key, "send"):
            text = self.check_message(text)
            if to.output_schema is not None:
                output_schemas.check(to.output_schema)
            await self.capabilities.ready()
            accepted = await self._store.write(
                sending.accept_agent_message,
                self._settings,
                self.capabilities,
                cause,
                to,
                text,
                wait_s=wait_s,
                budget=budget,
            )
        crashpoints.point("after-tell")
        return accepted

    async def post(self, cause: Cause, text: str, files: Sequence[dict[str, str]] = ()) -> Delivery:
        """Send a message to the people of a session. The same tool call never has a second effect."""
        channels = self._effects.channels
        text = self.check_message(text) if text or not files else ""
        return await self._store.write(sending.post, self._settings, channels, cause, text, files)

    # -- spawn

    async def spawn(
        self, cause: Cause, request: SpawnRequest, files: Sequence[dict[str, Any]] = ()
    ) -> SpawnReceipt:
        """Start a sub-agent in the background. Returns what will run."""
        check_size(self._settings, request.task, "task")
        await self.capabilities.ready()
        if request.thread:
            await self._check_thread(cause, request, attachments=bool(files))
        children.check_attachments(request, files)
        limits = self._settings.tools.sessions_spawn.attachments
        checked = attachments.check(files, limits) if files else []
        if not checked:
            return await self._accept_spawn(cause, request)
        if (receipt := await self._store.read(self._spawner.accepted_before, cause, request)) is not None:
            return receipt
        plan = await self._store.read(self._spawner.plan, cause, request, attachments=True)
        return await self._spawn_with(cause, request, plan, checked)

    async def _check_thread(self, cause: Cause, request: SpawnRequest, *, attachments: bool) -> None:
        """Ask the channel whether it can open a thread, once everything else is known to be right."""
        await self._store.read(self._spawner.plan, cause, request, attachments=attachments)
        if why := await self._why_no_thread(delivery_route(cause.session)):
            raise children.no_thread(why)

    async def spawn_for(
        self, caller: Caller, reference: str, request: SpawnRequest, *, idempotency_key: str | None = None
    ) -> SpawnReceipt:
        """Start a sub-agent on behalf of a session. It reports to that session."""
        session = resolve.not_archived(await self.resolve(caller, reference, verb="spawn"))
        return await self.spawn(Cause(session, None, idempotency_key or new_id(), caller), request)

    async def _spawn_with(
        self, cause: Cause, request: SpawnRequest, plan: SpawnPlan, files: list[attachments.Attachment]
    ) -> SpawnReceipt:
        """Write the attachments, then create the child. They are removed again if that fails."""
        confinement = policy.Confinement(plan.sandboxed, "rw")  # whatever the child may do with them
        work = partial(self._workspaces.run_job, plan.child.agent_id, confinement)
        receipt = await asyncio.to_thread(attachments.receipt_for, files, keys.parse(plan.child.key).id)
        job = await asyncio.to_thread(attachments.write_job, receipt, files)
        writing = asyncio.ensure_future(work(job))
        try:
            with attachments.explained_errors(receipt.rel_dir, "written to"):
                await asyncio.shield(writing)
            briefing = attachments.describe(receipt)
            written = WrittenAttachments(receipt.rel_dir, briefing, receipt.json())
            return await self._accept_spawn(cause, request, plan, written)
        except BaseException:
            # Also when the turn is stopped while writing: wait for the writer, so that nothing is left.
            await asyncio.gather(writing, return_exceptions=True)
            if await self._store.read(self._spawner.accepted_before, cause, request) is None:
                with suppress(HobnobError, OSError):  # the first error is the one to report
                    await work(attachments.remove_job(receipt.rel_dir))
            raise

    async def _accept_spawn(
        self,
        cause: Cause,
        request: SpawnRequest,
        plan: SpawnPlan | None = None,
        written: WrittenAttachments | None = None,
    ) -> SpawnReceipt:
        with self._refusals.noted(cause.session.key, "spawn"):
            receipt = await self._store.write(self._spawner.accept, cause, request, plan, written)
        crashpoints.point("after-spawn")
        return receipt

    async def children(self, session: Session) -> Sequence[Exchange]:
        """The spawns of a session and of its descendants, newest first."""
        return await self._store.read(children.spawns, session)

    async def wake_on_completion(self, session: Session, turn_id: str, wait_for: WaitFor) -> int:
        """Give the session one turn when its children are done. Returns how many it waits for."""
        return await self._store.write(children.wake_on_completion, session, turn_id, wait_for)

    async def begin_join(self, cause: Cause, query: WaitQuery) -> Wait:
        """Begin a wait for several runs, or go on with that of the same call. Raises NotAllowed, NotFound."""
        with self._refusals.noted(cause.session.key, "history"):
            wait = await self._store.write(children.begin_wait, self._settings, cause, query)
        crashpoints.point("after-join")
        return wait

    async def join(self, wait: Wait) -> Wait:
        """The wait once it is over: enough of its runs have ended, or its time has passed."""
        while wait.state == "open":
            left_s = max(0.0, ((wait.deadline_ms or 0) - now_ms()) / 1000)
            await self._enough(wait.members, wait.needed, left_s)
            timed_out = now_ms() >= (wait.deadline_ms or 0)
            crashpoints.point("before-join-end")
            wait = await self._store.write(children.end_wait, wait.wait_id, timed_out=timed_out)
        return wait

    async def join_runs(
        self, caller: Caller, reference: str, query: WaitQuery, *, needs_session: bool
    ) -> tuple[list[str], list[str], bool]:
        """Wait for runs for a client. Returns those that have ended, the others, and if that is enough.

        A client has no turn that could be resumed, so this wait is not stored.
        """
        session = await self.resolve(caller, reference) if needs_session else None
        key = session.key if session else ""
        runs = await self._store.read(children.waited_runs, self._settings, caller, key, query)
        needed = joins.needed(query.mode, len(runs))
        limit_s = min(max(query.timeout_seconds, 0.0), TIMEOUT_MAX_S)
        deadline = asyncio.get_running_loop().time() + limit_s
        while True:
            found = await self._store.read(turns.finals, runs)
            ended = [run for run in runs if run not in found or found[run].status == "ended"]
            left_s = deadline - asyncio.get_running_loop().time()
            if len(ended) >= needed or left_s <= 0:
                return ended, [run for run in runs if run not in set(ended)], len(ended) >= needed
            await self._enough(runs, needed, left_s)

    async def _enough(self, runs: Sequence[str], needed: int, timeout_s: float) -> None:
        """Return when `needed` of the runs may have ended: an ended run can count for several."""
        found = await self._store.read(turns.finals, runs)
        pending = [turn.turn_id for turn in found.values() if turn.status != "ended"]
        missing = needed - (len(runs) - len(pending))
        if pending and missing > 0:
            one_by_one = len(set(pending)) < len(pending)
            await self.waiters.enough(set(pending), 1 if one_by_one else missing, timeout_s)

    async def results(self, caller: Caller, runs: Sequence[str]) -> list[Row]:
        """What came of runs that have ended."""
        rows = await self._store.read(children.results, runs)
        viewer = resolve.viewer(self._settings, caller)
        for row in rows:
            if key := row.get("sessionKey"):
                row["sessionKey"] = keys.display_stored(key, viewer)
        return rows

    # -- wait and abort

    async def wait(
        self, turn_id: str, timeout_s: float | None = None, *, caller: Caller | None = None
    ) -> Turn:
        """The turn once it has ended, or as it is after the timeout. Raises NotFound.

        With a `caller`, only if that caller may read the session's history.
        """
        known = self.waiters.session_of(turn_id)
        if isinstance(caller, Operator) and known is not None:  # its rights depend on the key alone
            if not self.queries.may_receive_events(caller, known):
                raise turns.not_found(turn_id)
        elif caller is not None:
            await self._store.read_small(self._check_turn, caller, turn_id)
        return await self.waiters.ended(turn_id, timeout_s)

    def forget_ended_turns(self) -> None:
        """Look ended turns up in the store again: some were removed."""
        self.waiters.forget_ended()

    def _check_turn(self, tx: Tx, caller: Caller, turn_id: str) -> None:
        turn = turns.get(tx, turn_id)
        session = session_rows.find(tx, turn.session_key)
        if session is None or not policy.may(self._settings, caller, "history", session).allowed:
            raise turns.not_found(turn_id)  # the same as for a turn that does not exist

    async def abort(
        self, caller: Caller, reference: str, *, turn_id: str | None = None, reason: str = "stopped"
    ) -> Sequence[Turn]:
        """Abort the session's running and queued turns, or just the one named."""

        def end(tx: Tx) -> Sequence[Turn]:
            key = resolve.find(tx, self._settings, caller, "abort", reference).key
            if turn_id is not None:
                turn = turns.get(tx, turn_id)
                if turn.session_key != key:
                    raise NotFound(f"The run {turn_id} is not one of {key}.")
                return [self._effects.abort_turn(tx, turn_id, reason)] if turn.status != "ended" else []
            return [self._effects.abort_turn(tx, t.turn_id, reason) for t in turns.open_of(tx, key)]

        return await self._store.write(end)

    async def abort_tree(self, caller: Caller, reference: str) -> Sequence[Turn]:
        """Abort every open turn of a session and of its descendants."""

        def end(tx: Tx) -> Sequence[Turn]:
            root = resolve.find(tx, self._settings, caller, "abort", reference)
            return children.cancel(tx, self._effects, root)

        return await self._store.write(end)
