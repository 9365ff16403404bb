"""Starting a sub-agent: everything is checked before anything is made, and the receipt says what will run."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NoReturn, Protocol, get_args

import orjson
from pydantic.alias_generators import to_camel

from hobnob import briefings, keys, policy
from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.delivery_routes import delivery_route
from hobnob.errors import BadAttachment, BadInput, HobnobError, NotAllowed
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.policy import toolsets
from hobnob.sandbox import Sandbox
from hobnob.sessions import resolve
from hobnob.sessions.sending import Cause, next_hop
from hobnob.store import Tx, idempotency, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Exchange, Session, Turn

LABEL_CHARS = 512
WORD_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """What a sub-agent is to do, and how."""

    task: str
    runtime: Literal["subagent", "acp"] = "subagent"
    label: str | None = None
    agent_id: str | None = None
    model: str | None = None
    thinking: str | None = None
    run_timeout_seconds: int | None = None
    thread: bool = False
    mode: Literal["run", "session"] | None = None
    cleanup: Literal["keep", "delete"] = "keep"
    sandbox: Literal["inherit", "require"] = "inherit"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnReceipt:
    """What really runs. The child's first turn is checked against it."""

    run_id: str
    child_session_key: str
    exchange_id: str
    model: str
    thinking: str
    sandbox: bool
    run_timeout_seconds: int
    tools: list[str]
    files: dict[str, Any] | None = None

    def json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    def shown(self) -> dict[str, Any]:
        """As whoever asked for the spawn is told."""
        told = {to_camel(name): value for name, value in asdict(self).items() if name != "files"}
        return {"status": "accepted", **told} | ({"attachments": self.files} if self.files else {})


@dataclass(frozen=True, slots=True)
class SpawnPlan:
    """A spawn that passed every check."""

    agent_id: str
    child: Session
    model: str
    thinking: str
    run_timeout_s: int
    sandboxed: bool
    hop: int


class AvailableTools(Protocol):
    """The tools there are, by name. Some are known only after a while: `ready` waits for that."""

    @property
    def names(self) -> tuple[str, ...]: ...

    async def ready(self) -> None: ...


class Spawner:
    def __init__(
        self, settings: Settings, models: Catalog, offered: AvailableTools, sandbox: Sandbox
    ) -> None:
        self._settings = settings
        self._models = models
        self._offered = offered
        self._sandbox = sandbox
        self._of_agents: dict[tuple[object, ...], dict[str, policy.Verdict]] = {}
        self._found_with = (settings.agents, settings.tools)

    def tools_of(self, tx: Tx, session: Session) -> dict[str, policy.Verdict]:
        """Which tools a session has, and why. A child has none that whoever spawned it lacks."""
        if session.spawned_by is None:
            return self.tools_of_agent(session)
        requester = session_rows.find(tx, session.spawned_by)
        held = self.tools_of(tx, requester) if requester is not None else {}
        return toolsets.tool_set(
            self._settings,
            session,
            self._offered.names,
            requester=requester or Session.of(keys.parse(session.spawned_by)),
            requester_tools=frozenset(name for name, verdict in held.items() if verdict.allowed),
            confinement=self.confinement(tx, session),
            problem=self._sandbox.problem,
        )

    def confinement(self, tx: Tx, session: Session) -> policy.Confinement:
        """Where a session's tools run: a child's are confined at least as much as those of its spawner."""
        requester = session_rows.find(tx, session.spawned_by) if session.spawned_by else None
        above = self.confinement(tx, requester) if requester is not None else None
        return policy.confinement(self._settings, session, above)

    def tools_of_agent(self, session: Session) -> dict[str, policy.Verdict]:
        """Which tools a session has that nobody spawned: its agent's, in a sandbox or out of one."""
        now = (self._settings.agents, self._settings.tools)
        if now[0] is not self._found_with[0] or now[1] is not self._found_with[1]:  # they were read again
            self._of_agents, self._found_with = {}, now
        place, problem = policy.confinement(self._settings, session), self._sandbox.problem
        names = self._offered.names
        kind = (session.agent_id, place.sandboxed, problem, names)
        if (known := self._of_agents.get(kind)) is None:
            known = toolsets.tool_set(self._settings, session, names, confinement=place, problem=problem)
            self._of_agents[kind] = known
        return known

    def earlier(self, tx: Tx, cause: Cause, task: SpawnRequest) -> SpawnReceipt | None:
        """The receipt of the same call, when it was run before."""
        answer = idempotency.recall(tx, cause.scope, cause.key(task))
        return SpawnReceipt(**orjson.loads(answer)) if answer else None

    def plan(
        self, tx: Tx, cause: Cause, task: SpawnRequest, child_id: uuid.UUID, *, files: bool = False
    ) -> SpawnPlan:
        """Check a spawn in full. Creates nothing. Raises BadInput, NotAllowed, UnknownModel or LabelTaken."""
        settings, requester = self._settings, cause.session
        if not task.task.strip():
            raise BadInput("The task is empty.")
        if task.runtime == "acp":
            return self._plan_harness(tx, cause, task, child_id)
        _check_thread(task)
        agent_id = keys.agent_id(task.agent_id) if task.agent_id else requester.agent_id
        require = task.sandbox == "require"
        live = exchange_rows.live_children(tx, requester.key)
        resolve.require(
            policy.may_spawn(settings, requester, agent_id, live_children=live, require_sandbox=require)
        )
        override, model = self._model(requester, agent_id, task)
        thinking = self._thinking(requester, task)
        label = check_label(task.label or "")
        child = Session.of(
            keys.parse(f"agent:{agent_id}:subagent:{child_id}"),
            spawned_by=requester,
            label=label,
            model_override=override,
            thinking_level=thinking,
            sandboxed=require or self.confinement(tx, requester).sandboxed,
        )
        place = policy.confinement(settings, child, self.confinement(tx, requester))
        if place.sandboxed and self._sandbox.problem is not None:
            refuse_without_sandbox(self._sandbox)
        if files and place.sandboxed and place.access == "none":
            raise NotAllowed(
                "The child could not read the files: its sandbox has no access to the workspace.",
                rule="sandbox.workspace_access",
                fix=f'Set workspaceAccess of the sandbox of {agent_id} to "ro", or hand over no files.',
            )
        return self._planned(tx, cause, task, child, model, thinking, sandboxed=place.sandboxed)

    def _plan_harness(self, tx: Tx, cause: Cause, task: SpawnRequest, child_id: uuid.UUID) -> SpawnPlan:
        """The same for an external harness. Which models it has is known only when it runs."""
        settings, requester = self._settings, cause.session
        live = exchange_rows.live_children(tx, requester.key)
        harness = self._harness_of(task)
        resolve.require(policy.may_run(settings, requester, harness, live_children=live))
        if task.sandbox == "require":
            raise NotAllowed(
                "A sandbox is required, and a harness works outside one.",
                rule="spawn.sandbox",
                fix="Leave sandbox out, or let an agent of ours do it.",
            )
        _check_thread(task)
        if harness is None:
            raise self._which_harness()
        model = f"{harness}/{check_word(task.model)}" if task.model else None
        thinking = check_word(task.thinking) if task.thinking else None
        child = Session.of(
            keys.parse(f"agent:{harness}:acp:{child_id}"),
            spawned_by=requester,
            label=check_label(task.label or ""),
            model_override=model,
            thinking_level=thinking,
        )
        return self._planned(tx, cause, task, child, model or harness, thinking or "default")

    def _planned(
        self,
        tx: Tx,
        cause: Cause,
        task: SpawnRequest,
        child: Session,
        model: str,
        thinking: str,
        *,
        sandboxed: bool = False,
    ) -> SpawnPlan:
        settings = self._settings
        resolve.require(policy.send_policy(settings, child))
        session_rows.check_label(tx, child)
        timeout_s = max(task.run_timeout_seconds, 0) if task.run_timeout_seconds is not None else None
        if timeout_s is None:
            timeout_s = settings.agents.defaults.subagents.run_timeout_seconds
        hop = next_hop(settings, cause)
        return SpawnPlan(child.agent_id, child, model, thinking, timeout_s, sandboxed, hop)

    def _harness_of(self, task: SpawnRequest) -> str | None:
        """The harness that is asked for: by name, by default, or because there is no other."""
        acp = self._settings.acp
        if task.agent_id:
            return keys.agent_id(task.agent_id)
        return acp.default_agent or (next(iter(acp.harnesses)) if len(acp.harnesses) == 1 else None)

    def _which_harness(self) -> HobnobError:
        if known := sorted(self._settings.acp.harnesses):
            named = ", ".join(known)
            return BadInput(
                f"Say which harness to run: agentId is one of {named}.",
                fix="Name one, or set acp.defaultAgent.",
            )
        return NotAllowed(
            "No harness is configured.",
            rule="spawn.harness_unknown",
            fix='Set acp.harnesses, for example {"claude": {"command": ["claude-agent-acp"]}}.',
        )

    def accept(
        self, tx: Tx, cause: Cause, task: SpawnRequest, child_id: uuid.UUID, files: HandedFiles | None
    ) -> SpawnReceipt:
        """Make the child and its first turn, or nothing."""
        if (receipt := self.earlier(tx, cause, task)) is not None:
            return receipt
        plan, requester = self.plan(tx, cause, task, child_id, files=files is not None), cause.session
        child = session_rows.create(tx, plan.child)
        route = delivery_route(requester)
        exchange = Exchange(
            kind="spawn",
            requester_key=requester.key,
            target_key=child.key,
            caller_turn_id=cause.turn_id,
            hop=plan.hop,
            request=task.task,
            label=child.label,
            cleanup=task.cleanup,
            on_complete=self._settings.agents.defaults.subagents.on_complete,
            route=route.json() if route else None,
            files=files.folder if files else None,
        )
        # A harness brings tools of its own, and gets none of ours.
        ours = {} if child.is_external else self.tools_of(tx, child)
        tools = sorted(name for name, verdict in ours.items() if verdict.allowed)
        turn = Turn.of(
            child,
            task.task,
            step="primary",
            provenance=briefings.provenance(requester, "sessions_spawn", exchange),
            exchange_id=exchange.exchange_id,
            caused_by=cause.turn_id,
            hop=plan.hop,
            timeout_s=plan.run_timeout_s or None,
        )
        receipt = SpawnReceipt(
            run_id=turn.turn_id,
            child_session_key=child.key,
            exchange_id=exchange.exchange_id,
            model=plan.model,
            thinking=plan.thinking,
            sandbox=plan.sandboxed,
            run_timeout_seconds=plan.run_timeout_s,
            tools=tools,
            files=files.receipt if files else None,
        )
        deepest = self._settings.agents.defaults.subagents.max_spawn_depth
        if child.is_external:
            system = briefings.harness(requester, child)
        else:
            system = briefings.child(
                requester, child, depth=child.spawn_depth, deepest=deepest, label=child.label
            )
        options: dict[str, Any] = {
            "extra_system": "\n".join(filter(None, (system, files.told if files else ""))),
            "receipt": {
                "model": receipt.model,
                "override": child.model_override,
                "thinking": receipt.thinking,
                "sandbox": receipt.sandbox,
                "tools": receipt.tools,
            },
        }
        turns.accept(tx, replace(turn, options=orjson.dumps(options).decode()))
        exchange_rows.begin(tx, replace(exchange, turn_id=turn.turn_id))
        idempotency.remember(tx, cause.scope, cause.key(task), receipt.json())
        return receipt

    def _model(self, requester: Session, agent_id: str, task: SpawnRequest) -> tuple[str | None, str]:
        """The model that is asked for, if any, and the one that runs: else the target agent's own."""
        own = self._settings.agent(requester.agent_id)
        defaults = self._settings.agents.defaults.subagents
        chosen = (own.subagents.model if own else None) or defaults.model
        asked = task.model or (chosen.primary if chosen else None)
        target = self._settings.agent(agent_id)
        assert target is not None
        return asked, self._models.info(asked or model_names(self._settings, target, None)[0]).name

    def _thinking(self, requester: Session, task: SpawnRequest) -> str:
        own = self._settings.agent(requester.agent_id)
        defaults = self._settings.agents.defaults
        return (
            (check_thinking(task.thinking) if task.thinking else None)
            or (own.subagents.thinking if own else None)
            or defaults.subagents.thinking
            or defaults.thinking_default
        )


@dataclass(frozen=True, slots=True)
class HandedFiles:
    """Files that were handed over: where they are, and what the child is told of them."""

    folder: str
    told: str
    receipt: dict[str, Any]


def refuse_without_sandbox(sandbox: Sandbox, rule: str = "spawn.sandbox") -> NoReturn:
    """Say no to what has to run in a sandbox, since none works."""
    raise NotAllowed(
        f"It has to run in a sandbox, and there is no sandbox that works on this machine: {sandbox.problem}",
        rule=rule,
        fix="Install bubblewrap (0.8 or newer) and allow user namespaces; `hobnob doctor` tries it.",
    )


def check_label(text: str) -> str | None:
    """A label or name: one line, not too long; None when there is nothing in it."""
    label = " ".join(text.split())
    if len(label) > LABEL_CHARS or not label.isprintable():
        raise BadInput(f"A label is one line of printable text, at most {LABEL_CHARS} characters.")
    return label or None


def check_thinking(level: str) -> str:
    levels = get_args(Thinking)
    if level.strip().lower() not in levels:
        raise BadInput(f"There is no thinking level {level!r}. Levels: {', '.join(levels)}.")
    return level.strip().lower()


def check_word(text: str) -> str:
    """A name in somebody else's words: one line of printable text, not too long."""
    word = text.strip()
    if not word or len(word) > WORD_CHARS or not word.isprintable():
        raise BadInput(f"A model or thinking level is one line of 1 to {WORD_CHARS} characters.")
    return word


def check_changes(session: Session, fields: Collection[str]) -> None:
    """Refuse what cannot be changed of a session, by the names of the fields."""
    if session.is_external and "model_override" in fields:
        raise BadInput("The model of a harness is chosen when it is spawned.", fix="Spawn another.")


def check_files(task: SpawnRequest, files: Sequence[dict[str, Any]]) -> None:
    if files and task.runtime == "acp":
        raise BadAttachment(
            "The runtime acp takes no attachments.",
            fix="Put the content into the task, or the files into the harness's workspace.",
        )


def _check_thread(task: SpawnRequest) -> None:
    """What this gateway cannot do yet is refused, not ignored."""
    if task.mode == "session" and not task.thread:
        raise BadInput("mode session needs thread: true.", fix="Leave mode out, or add thread: true.")
    if task.thread:
        raise NotAllowed(
            "The chat of this session has no threads a child could be bound to.",
            rule="spawn.thread",
            fix="Leave thread out.",
        )
