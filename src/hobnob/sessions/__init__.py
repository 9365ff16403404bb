"""What one can do to sessions: every surface comes through here.

Each verb resolves what was named, asks the policy once, and acts in one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from hobnob import attachments, crashpoints, keys, policy
from hobnob.config import Config
from hobnob.delivery_routes import WEBCHAT
from hobnob.effects import Effects
from hobnob.errors import BadInput, Conflict, NotFound, SessionNotFound
from hobnob.models.catalog import Catalog
from hobnob.policy import Caller, Operator
from hobnob.sessions import children, resolve, sending, slash_commands, spawning, transcript_edits
from hobnob.sessions.handing import hand_over
from hobnob.sessions.looking import Looking
from hobnob.sessions.presentation import Row
from hobnob.sessions.queries import SessionQuery
from hobnob.sessions.refusals import Refusals
from hobnob.sessions.sending import Cause, SendTarget, TurnOptions
from hobnob.sessions.spawning import AvailableTools, HandedFiles, SpawnReceipt, SpawnRequest
from hobnob.sessions.waiters import TurnWaiters
from hobnob.store import Store, Tx, ledger, turns
from hobnob.store import sessions as rows
from hobnob.types import Delivery, Entry, Exchange, Lane, QueueMode, Session, Turn, new_id
from hobnob.workspaces.service import Workspaces

__all__ = [
    "Cause",
    "Row",
    "SendTarget",
    "SessionQuery",
    "Sessions",
    "SpawnReceipt",
    "SpawnRequest",
    "TurnOptions",
]

_CHILDREN = uuid.UUID("6f1c4f0e-8b1d-4f0c-9c55-0b2f5d7c1a90")
PATCHABLE = ("label", "display_name", "send_policy", "model_override", "thinking_level", "verbose_level")


class Sessions(Looking):
    def __init__(
        self,
        store: Store,
        config: Config,
        models: Catalog,
        effects: Effects,
        *,
        tools: AvailableTools,
        workspaces: Workspaces,
    ) -> None:
        sandbox = workspaces.sandbox
        super().__init__(
            store, config, spawning.Spawner(config.settings, models, tools, sandbox), tools, sandbox
        )
        self._workspaces = workspaces
        self._models = models
        self._effects = effects
        self.refusals = Refusals()
        self._waiting = TurnWaiters(store)

    # -- changing

    async def create(
        self, caller: Caller, reference: str | None = None, *, agent_id: str | None = None, **fields: Any
    ) -> Session:
        """Make a session, under a key of its own when none is given. Raises SessionExists."""
        if reference is None:
            agent = keys.agent_id(agent_id) if agent_id else self._settings.default_agent.id
            reference = f"agent:{agent}:dashboard:{uuid.uuid4()}"
        key = keys.parse(reference, resolve.viewer(self._settings, caller))
        if key.is_child:
            raise BadInput("Sessions of sub-agents come from sessions_spawn only.")

        def make(tx: Tx) -> Session:
            session = Session.of(key, **self._checked(fields))
            resolve.require(policy.may(self._settings, caller, "control", session))
            sending.check_agent(self._settings, session)
            return rows.create(tx, session)

        return await self._store.write(make)

    async def patch(
        self, caller: Caller, reference: str, *, expected: str | None = None, **fields: Any
    ) -> Session:
        """Change settings of a session; None takes one back. Refused unless its transcript is as expected."""
        changes = self._checked(fields)

        def change(tx: Tx, session: Session) -> Session:
            if expected not in (None, session.session_id):
                raise Conflict(f"The session {session.key} has another transcript by now.")
            spawning.check_changes(session, changes)
            return rows.patch(tx, session.key, **changes) if changes else session

        return await self._change(caller, reference, change)

    async def reset(self, caller: Caller, reference: str) -> Session:
        """Begin a new transcript. The old one stays readable by its id."""
        return await self._change(caller, reference, lambda tx, s: rows.reset(tx, s.key))

    async def inject(
        self, caller: Caller, reference: str, text: str, *, label: str | None = None
    ) -> tuple[Session, Entry]:
        """Put a line into a transcript as if the agent had said it."""

        def put(tx: Tx) -> tuple[Session, Entry]:
            session = resolve.not_archived(resolve.find(tx, self._settings, caller, "control", reference))
            return session, transcript_edits.inject(tx, session, _words(text), label)

        return await self._store.write(put)

    async def compact(self, caller: Caller, reference: str, keep: int) -> transcript_edits.Compacted:
        """Go on with the last messages only. Raises Conflict while a turn is under way."""

        def shorten(tx: Tx) -> transcript_edits.Compacted:
            session = resolve.find(tx, self._settings, caller, "control", reference)
            return transcript_edits.compact(tx, session, keep)

        return await self._store.write(shorten)

    async def archive(self, caller: Caller, reference: str) -> Session:
        return await self._change(caller, reference, lambda tx, s: rows.archive(tx, s.key))

    async def restore(self, caller: Caller, reference: str) -> Session:
        return await self._change(caller, reference, lambda tx, s: rows.restore(tx, s.key))

    async def delete(self, caller: Caller, reference: str) -> Session:
        """Remove a session with all that was said in it."""

        def remove(tx: Tx, session: Session) -> Session:
            self._effects.delete(tx, session.key)
            return session

        return await self._change(caller, reference, remove)

    async def _change(self, caller: Caller, reference: str, act: Any) -> Session:
        def change(tx: Tx) -> Session:
            changed: Session = act(tx, resolve.find(tx, self._settings, caller, "control", reference))
            return changed

        return await self._store.write(change)

    def _checked(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields of a session somebody wants to set, as far as they may be."""
        if wrong := [name for name in fields if name not in PATCHABLE]:
            raise BadInput(f"{wrong[0]} of a session cannot be set. What can: {', '.join(PATCHABLE)}.")
        if (policy_ := fields.get("send_policy")) not in (None, "allow", "deny"):
            raise BadInput(f"sendPolicy is allow or deny, or null to take it back; not {policy_!r}.")
        if model := fields.get("model_override"):
            fields["model_override"] = self._models.info(model).name
        if level := fields.get("thinking_level"):
            spawning.check_thinking(level)
        for name in ("label", "display_name"):
            if (text := fields.get(name)) is not None:
                fields[name] = spawning.check_label(text)
        return fields

    # -- sending

    async def send(
        self,
        caller: Caller,
        reference: str,
        text: str,
        *,
        idempotency_key: str | None = None,
        turn_id: str | None = None,
        mode: QueueMode | None = None,
        timeout_s: int | None = None,
        lane: Lane | None = None,
        options: TurnOptions | None = None,
        plain: bool = False,
        expected: str | None = None,
        provenance: dict[str, Any] | None = None,
        step: Literal["message", "note"] = "message",
    ) -> Turn:
        """Accept a message as a turn of a session. It is on disk when this returns.

        The same idempotency key gives the same turn, today and after a restart. A message that is nothing
        but a command is obeyed, unless it is `plain` text from who knows where; `provenance` is where, and
        only the server says it. A `note` asks nobody: it is read at the session's next turn. Where a
        transcript is `expected`, it is refused when the session has another by now.
        """
        text = _words(text)
        scope = f"send:{caller.name if isinstance(caller, Operator) else caller.key}"

        def accept(tx: Tx) -> Turn:
            earlier = ledger.recall(tx, scope, idempotency_key) if idempotency_key else None
            if earlier and (turn := turns.find(tx, earlier)):
                resolve.find(tx, self._settings, caller, "send", turn.session_key)
                return turn
            known, key = resolve.lookup(tx, self._settings, caller, reference)
            if resolve.is_id(reference):
                known = resolve.find(tx, self._settings, caller, "send", reference)
            if known is None and key.is_child:
                raise SessionNotFound(f"There is no session {key}; sub-agents come from sessions_spawn only.")
            session = known or Session.of(key)
            resolve.require(policy.may(self._settings, caller, "send", session))
            sending.check_agent(self._settings, session)
            resolve.not_archived(session)
            if expected not in (None, session.session_id):
                raise Conflict(f"A new conversation has begun in {session.key}.", fix="Load it, then send.")
            if isinstance(caller, Operator) and not plain and (said := slash_commands.parse(text)):
                if known is None:
                    rows.create(tx, session)
                around = slash_commands.CommandContext(
                    tx, self._settings, self._models, self._effects, session, caller
                )
                turn = slash_commands.execute(around, caller, said, text, turn_id=_free(tx, turn_id))
                if idempotency_key:
                    ledger.remember(tx, scope, idempotency_key, turn.turn_id)
                return turn
            resolve.require(policy.send_policy(self._settings, session))
            if isinstance(caller, Operator) and not (session.last_channel or session.channel):
                # Whoever writes at the gateway itself is answered there.
                if known:
                    session = rows.patch(tx, session.key, last_channel=WEBCHAT, last_to=session.key)
                else:
                    session = replace(session, last_channel=WEBCHAT, last_to=session.key)
            if known is None:
                rows.create(tx, session)
            running = turns.running(tx, session.key) if self._mode(session, mode) == "interrupt" else None
            turn = turns.accept(
                tx,
                Turn.of(
                    session,
                    text,
                    turn_id=_free(tx, turn_id),
                    options=(options or TurnOptions()).json(),
                    queue_mode=self._mode(session, mode),
                    timeout_s=timeout_s,
                    provenance=provenance,
                    step=step,
                    **({"lane": lane} if lane else {}),
                ),
            )
            if running is not None:
                self._effects.abort(tx, running.turn_id, "newer input came in")
            if idempotency_key:
                ledger.remember(tx, scope, idempotency_key, turn.turn_id)
            return turn

        turn = await self._store.write(accept)
        crashpoints.point("after-accept")
        return turn

    async def tell(self, cause: Cause, to: SendTarget, text: str, *, wait_s: float) -> tuple[Turn, Exchange]:
        """Accept a message of one agent for another. The same tool call is the same message, for ever."""
        with self.refusals.noted(cause):
            accepted = await self._store.write(
                sending.send, self._settings, cause, to, _words(text), wait_s=wait_s
            )
        crashpoints.point("after-tell")
        return accepted

    async def post(self, cause: Cause, text: str) -> Delivery:
        """Send a message to the people of a session. The same tool call is the same message, for ever."""
        channels = self._effects.channels
        return await self._store.write(sending.post, self._settings, channels, cause, _words(text))

    async def spawn(
        self, cause: Cause, task: SpawnRequest, files: Sequence[dict[str, Any]] = ()
    ) -> SpawnReceipt:
        """Start a sub-agent in the background. Returns what will run."""
        await self._settle()
        child_id = uuid.uuid5(_CHILDREN, f"{cause.scope} {cause.key(task)}")  # the same when run again
        spawning.check_files(task, files)
        limits = self._settings.tools.sessions_spawn.attachments
        checked = attachments.check(files, limits) if files else []
        if not checked:
            return await self._spawn(cause, task, child_id, None)
        if (done := await self._earlier(cause, task)) is not None:
            return done
        plan = await self._store.read(self._spawning.plan, cause, task, child_id, files=True)
        place = policy.Confinement(plan.sandboxed, "rw")  # whatever the child may do with them
        return await hand_over(
            partial(self._workspaces.run_job, plan.agent_id, place),
            checked,
            str(child_id),
            spawn=lambda given: self._spawn(cause, task, child_id, given),
            earlier=lambda: self._earlier(cause, task),
        )

    async def _earlier(self, cause: Cause, task: SpawnRequest) -> SpawnReceipt | None:
        return await self._store.read(self._spawning.earlier, cause, task)

    async def spawn_for(
        self, caller: Caller, reference: str, task: SpawnRequest, *, idempotency_key: str | None = None
    ) -> SpawnReceipt:
        """Start a sub-agent for a session, as somebody who may act for it. It reports to that session."""
        session = resolve.not_archived(await self.resolve(caller, reference, verb="spawn"))
        if task.agent_id is not None:  # a credential for some agents has no others work either
            target = Session.of(keys.parse(f"agent:{keys.agent_id(task.agent_id)}:main"))
            resolve.require(policy.may(self._settings, caller, "spawn", target))
        return await self.spawn(Cause(session, None, idempotency_key or new_id()), task)

    async def _spawn(
        self, cause: Cause, task: SpawnRequest, child_id: uuid.UUID, files: HandedFiles | None
    ) -> SpawnReceipt:
        with self.refusals.noted(cause):
            receipt = await self._store.write(self._spawning.accept, cause, task, child_id, files)
        crashpoints.point("after-spawn")
        return receipt

    def shown(self, caller: Caller, key: str) -> str:
        """A key as the caller knows it."""
        return keys.shown(key, resolve.viewer(self._settings, caller))

    async def children(self, session: Session) -> Sequence[Exchange]:
        """The spawns of a session and of what it spawned, newest first."""
        return await self._store.read(children.spawns, session)

    async def wake_on_completion(self, session: Session) -> int:
        """Give the session a turn when a child of it is done. Returns how many are under way."""
        return await self._store.write(children.wake_on_completion, session)

    async def wait(
        self, turn_id: str, timeout_s: float | None = None, *, caller: Caller | None = None
    ) -> Turn:
        """The turn once it has ended, or as it is when the time is up. Raises NotFound.

        With a `caller`, only of a session whose history that caller may read.
        """
        if caller is not None:
            await self._store.read_small(self._check_turn, caller, turn_id)
        return await self._waiting.ended(turn_id, timeout_s)

    def _check_turn(self, tx: Tx, caller: Caller, turn_id: str) -> None:
        turn = turns.get(tx, turn_id)
        session = rows.find(tx, turn.session_key)
        if session is None or not policy.may(self._settings, caller, "history", session).allowed:
            raise NotFound(f"There is no run {turn_id}.")  # no hint that there is one elsewhere

    async def abort(
        self, caller: Caller, reference: str, *, turn_id: str | None = None, reason: str = "stopped"
    ) -> Sequence[Turn]:
        """End the session's running turn and those that wait, or just the one named."""

        def end(tx: Tx) -> Sequence[Turn]:
            key = resolve.find(tx, self._settings, caller, "abort", reference).key
            if turn_id is not None:
                turn = turns.get(tx, turn_id)
                if turn.session_key != key:
                    raise NotFound(f"The run {turn_id} is not one of {key}.")
                return [self._effects.abort(tx, turn_id, reason)] if turn.status != "ended" else []
            return [self._effects.abort(tx, t.turn_id, reason) for t in turns.open_of(tx, key)]

        return await self._store.write(end)

    async def cancel_tree(self, caller: Caller, reference: str) -> Sequence[Turn]:
        """End what a session is doing, and everything it spawned."""

        def end(tx: Tx) -> Sequence[Turn]:
            root = resolve.find(tx, self._settings, caller, "abort", reference)
            return children.cancel(tx, self._effects, root)

        return await self._store.write(end)

    def _mode(self, session: Session, asked: QueueMode | None) -> QueueMode:
        queue = self._settings.messages.queue
        return asked or queue.by_channel.get(session.channel or session.last_channel or "", queue.mode)


def _free(tx: Tx, turn_id: str | None) -> str:
    """The id a client chose for a run, where no other has it."""
    return turn_id if turn_id and turns.find(tx, turn_id) is None else new_id()


def _words(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # half a character of another encoding is no text
    if not text.strip():
        raise BadInput("The message is empty.")
    return text
