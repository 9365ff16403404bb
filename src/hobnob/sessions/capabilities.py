"""Capabilities: which tools a session has, and whether they run in a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import orjson

from hobnob import keys, policy, routing
from hobnob.config import Config, Settings
from hobnob.errors import BadInput, NotAllowed
from hobnob.policy import authority, toolsets
from hobnob.policy.toolsets import ToolFacts
from hobnob.records import replace
from hobnob.sandbox import Sandbox
from hobnob.sessions import resolve
from hobnob.store import Store, Tx, jobs
from hobnob.store import sessions as session_rows
from hobnob.types import Session, Turn

_Verdicts = dict[tuple[object, ...], dict[str, policy.Verdict]]


class AvailableTools(Protocol):
    """The tools of the gateway. Those of MCP servers are known after a while: `ready` waits for them."""

    @property
    def facts(self) -> tuple[ToolFacts, ...]:
        """The same tuple until the tools change."""
        ...

    async def ready(self) -> None: ...


class Capabilities:
    """What sessions can do. A child never has more than its spawner had, unless a setting delegates it."""

    def __init__(self, store: Store, config: Config, tools: AvailableTools, sandbox: Sandbox) -> None:
        self._store = store
        self._config = config
        self._tools = tools
        self.sandbox = sandbox
        self._cache: tuple[Settings, tuple[ToolFacts, ...], _Verdicts] = config.settings, (), {}

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    async def ready(self) -> None:
        """Wait until the tools are known and the sandbox has been probed."""
        await self._tools.ready()
        await self.sandbox.ready()

    async def tools(self, session: Session) -> dict[str, policy.Verdict]:
        """A verdict for each tool, by name."""
        await self.ready()
        if session.spawned_by is None and session.kind != "cron":
            return self._tools_of_agent(session)
        return await self._store.read_small(self.tools_of, session)

    async def confinement(self, session: Session) -> policy.Confinement:
        """Where a session's tools run."""
        if session.spawned_by is None:
            return policy.confinement(self._settings, session)
        return await self._store.read_small(self.confinement_of, session)

    async def require_sandbox(self, session: Session) -> None:
        """Raise NotAllowed when a session must run in a sandbox and none works."""
        if (await self.confinement(session)).sandboxed and await self.sandbox.ready():
            refuse_without_sandbox(self.sandbox, "sandbox.unavailable")

    def tools_of(self, tx: Tx, session: Session) -> dict[str, policy.Verdict]:
        """Like `tools`, in a transaction: the tools of a child depend on those of its spawner."""
        if session.spawned_by is None:
            return _within_job(tx, session, self._tools_of_agent(session))
        requester = session_rows.find(tx, session.spawned_by)
        held = self.tools_of(tx, requester) if requester is not None else {}
        verdicts = toolsets.tool_set(
            self._settings,
            session,
            self._tools.facts,
            requester=requester or Session.of(keys.parse(session.spawned_by)),
            requester_tools=frozenset(name for name, verdict in held.items() if verdict.allowed),
            confinement=self.confinement_of(tx, session),
            problem=self.sandbox.problem,
        )
        return self._within_spawn(session, verdicts)

    def require_tools(self, tx: Tx, child: Session, names: Sequence[str]) -> None:
        """Refuse a spawn that asks for tools the child may not have. Raises NotAllowed or BadInput."""
        verdicts = self.tools_of(tx, replace(child, spawn_tools=None))
        for name in names:
            meant = [verdicts[facts.name] for facts in self._tools.facts if toolsets.named(facts, [name])]
            if not meant:
                known = ", ".join(sorted(tool for tool, verdict in verdicts.items() if verdict.allowed))
                raise BadInput(
                    f"There is no tool {name!r}.", fix=f"The sub-agent may have: {known or 'none'}."
                )
            if not any(verdict.allowed for verdict in meant):
                resolve.require(meant[0])

    def _within_spawn(self, session: Session, held: dict[str, policy.Verdict]) -> dict[str, policy.Verdict]:
        """A spawn may ask for some of the tools only."""
        if session.spawn_tools is None:
            return held
        names = orjson.loads(session.spawn_tools)
        asked = {facts.name for facts in self._tools.facts if toolsets.named(facts, names)}
        return {
            name: verdict
            if name in asked or not verdict.allowed
            else policy.Verdict(False, "tools.spawn", f"The spawn of this session did not ask for {name}.")
            for name, verdict in held.items()
        }

    def names_in(self, tx: Tx, session: Session, turn: Turn | None) -> frozenset[str]:
        """The tools of a turn of a session: those of the session within the limits of the turn."""
        allowed = {name for name, verdict in self.tools_of(tx, session).items() if verdict.allowed}
        for limit in self.limits(session, turn):
            allowed &= {tool.name for tool in self._tools.facts if toolsets.named(tool, limit)}
        return frozenset(allowed)

    def limits(self, session: Session, turn: Turn | None) -> list[Sequence[str]]:
        """The lists of tools that limit a turn; a tool must be in all of them."""
        return authority.limits(self._settings, orjson.loads(turn.options), session) if turn else []

    def is_reduced(self, session: Session, turn: Turn | None) -> bool:
        """Whether a turn has fewer tools than its session because of the agent that caused it."""
        return turn is not None and authority.is_reduced(self._settings, orjson.loads(turn.options), session)

    def authority_of(
        self, tx: Tx, sender: Session, turn: Turn | None, target: Session
    ) -> authority.Stored | None:
        """The limit of a turn in `target` that a message from the sender's turn starts, if there is one."""
        held = self.names_in(tx, sender, turn)
        there = self.names_in(tx, target, None)
        if self.confinement_of(tx, sender).sandboxed and not self.confinement_of(tx, target).sandboxed:
            # By name both have them, but those of the target work outside a sandbox.
            held -= {tool.name for tool in self._tools.facts if tool.group in ("fs", "runtime")}
        if self.is_reduced(sender, turn):
            return authority.inherited(sender, held, there)
        return authority.stored(self._settings, sender, target, held, there)

    def confinement_of(self, tx: Tx, session: Session) -> policy.Confinement:
        """Like `confinement`, in a transaction: a child is confined at least as much as its spawner."""
        requester = session_rows.find(tx, session.spawned_by) if session.spawned_by else None
        above = self.confinement_of(tx, requester) if requester is not None else None
        return policy.confinement(self._settings, session, above)

    def _tools_of_agent(self, session: Session) -> dict[str, policy.Verdict]:
        """The tools of a session nobody spawned: the same for all sessions of an agent that run alike."""
        settings, facts = self._settings, self._tools.facts
        cache = self._cache
        if settings is not cache[0] or facts is not cache[1]:
            # Replaced as a whole: another thread may still fill the one for the old settings.
            self._cache = cache = settings, facts, {}
        confinement, problem = policy.confinement(settings, session), self.sandbox.problem
        group = routing.group_tools(settings, session)
        chat = (session.channel, session.last_account_id, session.peer) if group else None
        key = (session.agent_id, confinement.sandboxed, problem, chat, session.kind == "node")
        if (known := cache[2].get(key)) is None:
            known = toolsets.tool_set(
                settings, session, facts, confinement=confinement, problem=problem, group=group
            )
            cache[2][key] = known
        return known


def _within_job(tx: Tx, session: Session, held: dict[str, policy.Verdict]) -> dict[str, policy.Verdict]:
    """The session of a job that an agent made has at most the tools of the turn that made it."""
    job = jobs.find(tx, session.peer or "") if session.kind == "cron" else None
    if job is None or job.tools is None:
        return held
    limit = frozenset(orjson.loads(job.tools))
    return {
        name: verdict
        if name in limit or not verdict.allowed
        else policy.Verdict(False, "tools.job", f"The turn that made this job did not have {name}.")
        for name, verdict in held.items()
    }


def untyped_harness() -> NotAllowed:
    """A harness brings its own tools: it has none that takes a typed result."""
    return NotAllowed("A harness gives no typed results.", rule="output_schema.harness", fix="Ask an agent.")


def refuse_without_sandbox(sandbox: Sandbox, rule: str = "spawn.sandbox") -> NoReturn:
    raise NotAllowed(
        f"It must run in a sandbox, and no sandbox works on this machine: {sandbox.problem}",
        rule=rule,
        fix="Install bubblewrap (0.8 or newer) and allow user namespaces; `hobnob doctor` tests it.",
    )


def refuse_unlimited_harness(target: Session, limit: authority.Stored | None) -> None:
    """Refuse a message to a harness that would have to be limited."""
    if target.is_external and limit is not None and limit["mode"] == "both":
        refuse_harness()


def refuse_harness() -> NoReturn:
    """Refuse to use a harness where tools are limited: its own ones are out of reach."""
    raise NotAllowed(
        "A harness has tools of its own, which cannot be limited to those of the sender.",
        rule="authority.harness",
        fix='Let the session that spawned it do it, or use a grant with authority "target".',
    )
