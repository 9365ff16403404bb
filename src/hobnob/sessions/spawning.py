"""Spawn sub-agents: check everything, then create the child, its first turn and the exchange.

`SpawnReceipt` says what really will run; the child's first turn is checked against it.
"""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from pydantic.alias_generators import to_camel

from hobnob import briefings, keys, metering, output_schemas, policy
from hobnob.chat_types import BoundThread
from hobnob.config import Config, Settings
from hobnob.config.channels import ThreadRules, account_of
from hobnob.delivery_routes import DeliveryRoute, delivery_route
from hobnob.errors import BadInput, HobnobError, NotAllowed
from hobnob.fixes import config_set
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.policy import authority
from hobnob.records import Struct, asdict, replace
from hobnob.requests import SpawnRequest, check_harness_word, check_label, check_thinking
from hobnob.sessions import resolve
from hobnob.sessions.capabilities import (
    Capabilities,
    refuse_harness,
    refuse_without_sandbox,
    untyped_harness,
)
from hobnob.sessions.children import check_thread, fork_transcript, no_thread
from hobnob.sessions.sending import Cause
from hobnob.sessions.waiters import next_hop
from hobnob.store import Tx, deliveries, idempotency, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.store.chats import threads
from hobnob.types import Exchange, Reports, Session, Turn, new_id

_TITLE_CHARS = 90  # of a thread
_CHILD_NAMESPACE = uuid.UUID("6f1c4f0e-8b1d-4f0c-9c55-0b2f5d7c1a90")


class SpawnReceipt(Struct, frozen=True, kw_only=True):
    """What really runs."""

    run_id: str
    child_session_key: str
    exchange_id: str
    model: str
    thinking: str
    sandbox: bool
    run_timeout_seconds: int
    tools: list[str]
    files: dict[str, Any] | None = None
    group_id: str | None = None
    context: str = "isolated"
    expects_completion_message: bool = True

    def json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    def answer(self) -> dict[str, Any]:
        """The receipt as callers get it."""
        values = asdict(self).items()
        optional = ("files", "group_id")
        shown = {to_camel(name): v for name, v in values if name not in optional or (v and name != "files")}
        return {"status": "accepted", **shown} | ({"attachments": self.files} if self.files else {})


class SpawnPlan(Struct, frozen=True):
    """A spawn that passed every check."""

    child: Session
    model: str
    thinking: str
    run_timeout_s: int
    sandboxed: bool
    hop: int
    settings: Settings
    """The settings it was checked against."""


class WrittenAttachments(Struct, frozen=True):
    """Attachments in the child's workspace: their folder, the briefing for the child, and the receipt."""

    folder: str
    briefing: str
    receipt: dict[str, Any]


class Spawner:
    """Plans and accepts spawns. Its methods run in a transaction."""

    def __init__(self, config: Config, models: Catalog, capabilities: Capabilities) -> None:
        self._config = config
        self._models = models
        self._capabilities = capabilities

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    def accepted_before(self, tx: Tx, cause: Cause, request: SpawnRequest) -> SpawnReceipt | None:
        """The receipt of the same call, when it was accepted before."""
        answer = idempotency.recall(tx, cause.scope, cause.key(request.content()))
        if answer is None:
            return None
        receipt = SpawnReceipt(**orjson.loads(answer))
        self._check_client(cause, receipt.child_session_key)
        return receipt

    def plan(self, tx: Tx, cause: Cause, request: SpawnRequest, *, attachments: bool = False) -> SpawnPlan:
        """Check a spawn in full. Creates nothing. Raises BadInput, NotAllowed, UnknownModel or LabelTaken."""
        if not request.task.strip():
            raise BadInput("The task is empty.")
        if request.output_schema is not None:
            output_schemas.check(request.output_schema)
        if request.runtime == "acp":
            return self._plan_harness(tx, cause, request)
        return self._plan_subagent(tx, cause, request, attachments=attachments)

    def accept(
        self,
        tx: Tx,
        cause: Cause,
        request: SpawnRequest,
        plan: SpawnPlan | None = None,
        written: WrittenAttachments | None = None,
    ) -> SpawnReceipt:
        """Create the child and its first turn.

        With attachments, the plan was made before they were written: what may have changed is checked again.
        """
        if (receipt := self.accepted_before(tx, cause, request)) is not None:
            return receipt
        tx.lock("session", cause.session.key)  # children are counted one at a time
        if plan is None or plan.settings is not self._settings:  # reloaded since
            plan = self.plan(tx, cause, request, attachments=written is not None)
        else:
            live = self._live_children(tx, cause, request)
            resolve.require(policy.may_have_child(self._settings, cause.session, live))
            self._check_child(tx, plan.child)
        route = delivery_route(cause.session)
        child = session_rows.create(tx, _in_chat(plan.child, route) if request.thread else plan.child)
        if request.context == "fork":
            fork_transcript(tx, cause.session, child)
        if request.budget is not None:
            metering.set_limits(tx, "session", child.key, request.budget.limits)
        if request.thread:
            self._bind_thread(tx, cause.session, child, request, route)
        exchange = self._exchange(cause, request, plan, written)
        limit = self._limit(tx, cause)
        receipt = self._receipt(tx, request, plan, exchange, written, limit)
        turns.accept(tx, self._first_turn(cause, request, plan, exchange, receipt, written, limit))
        exchange_rows.begin(tx, replace(exchange, turn_id=receipt.run_id, target_key=child.key))
        idempotency.remember(tx, cause.scope, cause.key(request.content()), receipt.json())
        return receipt

    def _bind_thread(
        self, tx: Tx, requester: Session, child: Session, request: SpawnRequest, route: DeliveryRoute | None
    ) -> None:
        """Queue the opening of a thread in the requester's chat, and bind it to the child."""
        if route is None:
            raise no_thread("nobody has written to this session from a chat that has threads")
        rules = self._thread_rules(route)
        threads.bind(
            tx,
            BoundThread(
                session_key=child.key,
                requester_key=requester.key,
                channel=route.channel,
                account_id=route.account_id or "",
                recipient=route.to,
                mode=request.mode or "run",
                idle_ms=int(rules[0] * 3_600_000),
                max_age_ms=int(rules[1] * 3_600_000),
            ),
        )
        title = " ".join((child.label or request.task).split())[:_TITLE_CHARS]
        opening = replace(route, thread_id=None).delivery(child.key, title, kind="thread")
        deliveries.create(tx, opening)

    def _thread_rules(self, route: DeliveryRoute) -> tuple[float, float]:
        """Hours after which a thread is given back: without a message, and in any case."""
        shared = self._settings.session.thread_bindings
        root = self._settings.channels.configured.get(route.channel)
        own = account_of(root, route.account_id or "").thread_bindings if root else ThreadRules()
        idle = shared.idle_hours if own.idle_hours is None else own.idle_hours
        return idle, shared.max_age_hours if own.max_age_hours is None else own.max_age_hours

    def _plan_subagent(self, tx: Tx, cause: Cause, request: SpawnRequest, *, attachments: bool) -> SpawnPlan:
        settings, requester = self._settings, cause.session
        check_thread(request)
        agent_id = keys.agent_id(request.agent_id) if request.agent_id else policy.spawning_agent(requester)
        key = f"agent:{agent_id}:subagent:{_child_id(cause, request)}"
        self._check_client(cause, key)
        require_sandbox = request.sandbox == "require"
        live = self._live_children(tx, cause, request)
        resolve.require(
            policy.may_spawn(
                settings, requester, agent_id, live_children=live, require_sandbox=require_sandbox
            )
        )
        override, model = self._model(requester, agent_id, request)
        thinking = self._thinking(requester, request)
        above = self._capabilities.confinement_of(tx, requester)
        child = Session.of(
            keys.parse(key),
            spawned_by=requester,
            label=check_label(request.label or ""),
            model_override=override,
            thinking_level=thinking,
            sandboxed=require_sandbox or above.sandboxed,
            spawn_tools=orjson.dumps(list(request.tools)).decode() if request.tools is not None else None,
        )
        self._capabilities.require_tools(tx, child, request.tools or ())
        if request.context == "fork" and agent_id != requester.agent_id:
            raise BadInput("context fork needs the same agent.", fix="Leave agentId out, or context.")
        confinement = policy.confinement(settings, child, above)
        if confinement.sandboxed and self._capabilities.sandbox.problem is not None:
            refuse_without_sandbox(self._capabilities.sandbox)
        if attachments and confinement.sandboxed and confinement.access == "none":
            raise NotAllowed(
                "The child could not read the attachments: its sandbox has no access to the workspace.",
                rule="sandbox.workspace_access",
                fix="Attach no files, or: "
                + config_set(f"agents.list[{agent_id}].sandbox.workspaceAccess", "ro"),
            )
        return self._plan(tx, cause, request, child, model, thinking, sandboxed=confinement.sandboxed)

    def _plan_harness(self, tx: Tx, cause: Cause, request: SpawnRequest) -> SpawnPlan:
        """The plan for an external harness. Which models it has is known only when it runs."""
        settings, requester = self._settings, cause.session
        live = self._live_children(tx, cause, request)
        harness = self._harness_of(request)
        key = f"agent:{harness}:acp:{_child_id(cause, request)}"
        if harness is not None:
            self._check_client(cause, key)
        resolve.require(policy.may_run(settings, requester, harness, live_children=live))
        if request.output_schema is not None:
            raise untyped_harness()
        if request.tools is not None or request.context == "fork":
            raise BadInput("A harness brings its own tools and context.", fix="Leave tools and context out.")
        if self._capabilities.is_reduced(requester, cause.turn):
            refuse_harness()
        if request.sandbox == "require":
            raise NotAllowed(
                "A sandbox is required, and a harness runs outside one.",
                rule="spawn.sandbox",
                fix="Leave sandbox out, or spawn an agent instead.",
            )
        check_thread(request)
        if harness is None:
            raise self._no_harness_named()
        model = f"{harness}/{check_harness_word(request.model)}" if request.model else None
        thinking = check_harness_word(request.thinking) if request.thinking else None
        child = Session.of(
            keys.parse(key),
            spawned_by=requester,
            label=check_label(request.label or ""),
            model_override=model,
            thinking_level=thinking,
        )
        return self._plan(tx, cause, request, child, model or harness, thinking or "default")

    def _plan(
        self,
        tx: Tx,
        cause: Cause,
        request: SpawnRequest,
        child: Session,
        model: str,
        thinking: str,
        *,
        sandboxed: bool = False,
    ) -> SpawnPlan:
        self._check_child(tx, child)
        timeout_s = request.run_timeout_seconds
        if timeout_s is None:
            timeout_s = self._settings.agents.defaults.subagents.run_timeout_seconds
        hop = next_hop(self._settings, cause.turn)
        return SpawnPlan(child, model, thinking, max(timeout_s, 0), sandboxed, hop, self._settings)

    def _live_children(self, tx: Tx, cause: Cause, request: SpawnRequest) -> int:
        """How many children count against the limit of the session. A group has limits of its own."""
        if not request.collect:
            if request.group_id:
                raise BadInput("groupId needs collect: true.", fix="Add collect: true, or leave groupId out.")
            return exchange_rows.live_children(tx, cause.session.key)
        if request.thread:
            raise BadInput("collect reports to nobody, thread to a chat.", fix="Leave one of them out.")
        limits, group_id = self._settings.tools.swarm, _group(cause, request)
        working, total = exchange_rows.group_size(tx, cause.session.key, group_id)
        if working >= limits.max_children_per_group:
            raise NotAllowed(
                f"The group has {working} sub-agents that have not finished"
                f" (maximum: {limits.max_children_per_group}).",
                rule="spawn.group",
                fix="Wait for some with agents_wait, or: "
                + config_set("tools.swarm.maxChildrenPerGroup", working + 1),
            )
        if group_id is not None and total >= limits.max_total_per_group:
            raise NotAllowed(
                f"The group has had {total} sub-agents (maximum: {limits.max_total_per_group}).",
                rule="spawn.group_total",
                fix=f"Use another groupId, or: {config_set('tools.swarm.maxTotalPerGroup', total + 1)}",
            )
        return 0

    def _check_child(self, tx: Tx, child: Session) -> None:
        resolve.require(policy.send_policy(self._settings, child))
        session_rows.check_label(tx, child)

    def _check_client(self, cause: Cause, child_key: str) -> None:
        """A client's credential must cover the child that was resolved, also when a default named it."""
        if cause.client is not None:
            child = Session.of(keys.parse(child_key))
            resolve.require(policy.may(self._settings, cause.client, "spawn", child))

    def _harness_of(self, request: SpawnRequest) -> str | None:
        """The harness by name, by default, or the only one configured."""
        acp = self._settings.acp
        if request.agent_id:
            return keys.agent_id(request.agent_id)
        return acp.default_agent or (next(iter(acp.harnesses)) if len(acp.harnesses) == 1 else None)

    def _no_harness_named(self) -> HobnobError:
        if known := sorted(self._settings.acp.harnesses):
            return BadInput(
                f"Name the harness to run: agentId is one of {', '.join(known)}.",
                fix=f"Name one, or: {config_set('acp.defaultAgent', known[0])}",
            )
        return NotAllowed(
            "No harness is configured.",
            rule="spawn.harness_unknown",
            fix=f"For example: {config_set('acp.harnesses.claude', {'command': ['claude-agent-acp']})}",
        )

    def _exchange(
        self, cause: Cause, request: SpawnRequest, plan: SpawnPlan, written: WrittenAttachments | None
    ) -> Exchange:
        route = delivery_route(cause.session)
        return Exchange(
            kind="spawn",
            requester_key=cause.session.key,
            target_key=plan.child.key,
            caller_turn_id=cause.turn_id,
            hop=plan.hop,
            request=request.task,
            label=plan.child.label,
            cleanup=request.cleanup,
            on_complete=self._settings.agents.defaults.subagents.on_complete,
            reports=_reports(request),
            group_id=_group(cause, request),
            route=route.json() if route else None,
            files=written.folder if written else None,
        )

    def _limit(self, tx: Tx, cause: Cause) -> frozenset[str] | None:
        """The tools of the turn that spawns, if it has fewer than its session: the child has no others."""
        if not self._capabilities.limits(cause.session, cause.turn):
            return None
        return self._capabilities.names_in(tx, cause.session, cause.turn)

    def _receipt(
        self,
        tx: Tx,
        request: SpawnRequest,
        plan: SpawnPlan,
        exchange: Exchange,
        written: WrittenAttachments | None,
        limit: frozenset[str] | None,
    ) -> SpawnReceipt:
        # A harness brings its own tools and gets none of ours.
        verdicts = {} if plan.child.is_external else self._capabilities.tools_of(tx, plan.child)
        tools = {name for name, verdict in verdicts.items() if verdict.allowed}
        if limit is not None:
            tools &= limit
        return SpawnReceipt(
            run_id=new_id(),
            child_session_key=plan.child.key,
            exchange_id=exchange.exchange_id,
            model=plan.model,
            thinking=plan.thinking,
            sandbox=plan.sandboxed,
            run_timeout_seconds=plan.run_timeout_s,
            tools=sorted(tools | ({output_schemas.TOOL} if request.output_schema else set())),
            files=written.receipt if written else None,
            group_id=exchange.group_id,
            context=request.context,
            expects_completion_message=exchange.reports == "announce",
        )

    def _first_turn(
        self,
        cause: Cause,
        request: SpawnRequest,
        plan: SpawnPlan,
        exchange: Exchange,
        receipt: SpawnReceipt,
        written: WrittenAttachments | None,
        limit: frozenset[str] | None,
    ) -> Turn:
        child, requester = plan.child, cause.session
        if child.is_external:
            system = briefings.harness(requester, child)
        else:
            max_depth = self._settings.agents.defaults.subagents.max_spawn_depth
            system = briefings.child(
                requester, child, depth=child.spawn_depth, max_depth=max_depth, label=child.label
            )
        options: dict[str, Any] = {
            "extra_system": "\n".join(filter(None, (system, written.briefing if written else ""))),
            "receipt": {
                "model": receipt.model,
                "override": child.model_override,
                "thinking": receipt.thinking,
                "sandbox": receipt.sandbox,
                "tools": receipt.tools,
            },
        }
        if request.output_schema is not None:
            options["output_schema"] = request.output_schema
        if limit is not None:
            options[authority.OPTION] = authority.inherited(requester, limit)
        return Turn.of(
            child,
            request.task,
            turn_id=receipt.run_id,
            step="primary",
            provenance=briefings.provenance(requester, "sessions_spawn", exchange),
            exchange_id=exchange.exchange_id,
            caused_by=cause.turn_id,
            hop=plan.hop,
            timeout_s=plan.run_timeout_s or None,
            options=orjson.dumps(options).decode(),
        )

    def _model(self, requester: Session, agent_id: str, request: SpawnRequest) -> tuple[str | None, str]:
        """The model override of the child, if any, and the model that runs: else the target agent's own."""
        own = self._settings.agent(requester.agent_id)
        defaults = self._settings.agents.defaults.subagents
        chosen = (own.subagents.model if own else None) or defaults.model
        override = request.model or (chosen.primary if chosen else None)
        target = self._settings.agent(agent_id)
        assert target is not None
        return override, self._models.info(override or model_names(self._settings, target, None)[0]).name

    def _thinking(self, requester: Session, request: SpawnRequest) -> str:
        own = self._settings.agent(requester.agent_id)
        defaults = self._settings.agents.defaults
        return (
            (check_thinking(request.thinking) if request.thinking else None)
            or (own.subagents.thinking if own else None)
            or defaults.subagents.thinking
            or defaults.thinking_default
        )


def _reports(request: SpawnRequest) -> Reports:
    if request.collect:
        return "collect"
    return "announce" if request.expects_completion_message else "quiet"


def _group(cause: Cause, request: SpawnRequest) -> str | None:
    """The group of a collected spawn: the one it names, else all of its turn."""
    return (request.group_id or cause.turn_id) if request.collect else None


def _in_chat(child: Session, route: DeliveryRoute | None) -> Session:
    """A child that speaks in the chat of its requester."""
    if route is None:
        return child
    return replace(child, last_channel=route.channel, last_to=route.to, last_account_id=route.account_id)


def _child_id(cause: Cause, request: SpawnRequest) -> uuid.UUID:
    """The id of the child: the same when the same call is run again."""
    return uuid.uuid5(_CHILD_NAMESPACE, f"{cause.scope} {cause.key(request.content())}")
