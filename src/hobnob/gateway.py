"""The composition root: opens the parts of a gateway in order and closes them in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial

from hobnob import kept_secrets, statedir
from hobnob.api import Services
from hobnob.api.auth import Authenticator
from hobnob.api.budgets import Budgets
from hobnob.api.devices import Devices
from hobnob.api.mcp.access import McpAccess
from hobnob.api.mcp.calls import SessionCalls
from hobnob.api.mcp.service import McpService
from hobnob.api.metrics import Metrics
from hobnob.api.nodes.service import NodeService
from hobnob.api.nodes.sign_in import NodeSignIn
from hobnob.api.tool_invocation import ToolInvoker
from hobnob.approvals import Approvals
from hobnob.chats.accounts import Accounts
from hobnob.chats.service import Chats
from hobnob.cluster import Alone, Cluster
from hobnob.config import Config
from hobnob.effects import Effects
from hobnob.errors import BadConfig, BadInput, unwrap_exception_group
from hobnob.fixes import config_set
from hobnob.hub import Hub
from hobnob.jobs.scheduler import Scheduler
from hobnob.jobs.service import Jobs
from hobnob.maintenance import Maintenance, keep_memory_low
from hobnob.mcp_grants import McpGrants
from hobnob.models.catalog import Catalog, open_models
from hobnob.nodes.commands import NodeCommands
from hobnob.nodes.elsewhere import NodesElsewhere
from hobnob.nodes.invocations import Invocations
from hobnob.nodes.node_events import NodeEvents
from hobnob.nodes.registry import Nodes
from hobnob.processes import Processes, open_processes
from hobnob.records import Struct
from hobnob.retention import Retention
from hobnob.runner import Runner
from hobnob.runtimes import by_session, while_allowed
from hobnob.runtimes.acp.runtime import AcpRuntime
from hobnob.runtimes.agent import AgentRuntime
from hobnob.sandbox import Sandbox
from hobnob.sandbox.bubblewrap import Bubblewrap
from hobnob.schedule.deliveries import WEBHOOK
from hobnob.sessions import Sessions
from hobnob.store import Store, open_mirror, open_store
from hobnob.store.engine.sqlite_file import lock_file
from hobnob.tools import Tool, Toolbox
from hobnob.tools.cron import cron_tools
from hobnob.tools.files import file_tools
from hobnob.tools.mcp import McpServers, open_servers
from hobnob.tools.messages import message_tools
from hobnob.tools.modules import load_modules
from hobnob.tools.nodes import node_tools
from hobnob.tools.registry import ToolRegistry
from hobnob.tools.sessions import session_tools
from hobnob.tools.shell import end_with_sessions, shell_tools
from hobnob.tools.web import web_tools
from hobnob.trace_export import Tracer, open_tracer, traced
from hobnob.types import Session, Turn
from hobnob.workspaces.service import Workspaces

GRACE_S = 20.0
_NAMESAKE = (
    "another gateway of this database is also named %s. With store.files: local both run the sessions that"
    " have their home there. Unless they have the same disk, set gateway.name to another name"
)
_log = logging.getLogger(__name__)


class Gateway(Struct, frozen=True):
    """The parts of a gateway, without the network surfaces."""

    config: Config
    store: Store
    cluster: Cluster
    models: Catalog
    hub: Hub
    effects: Effects
    processes: Processes
    harnesses: AcpRuntime
    sandbox: Sandbox
    workspaces: Workspaces
    approvals: Approvals
    tools: ToolRegistry
    sessions: Sessions
    runner: Runner
    retention: Retention
    chats: Chats
    mcp_grants: McpGrants
    nodes: Nodes
    invocations: Invocations
    jobs: Jobs
    scheduler: Scheduler

    async def toolbox(self, session: Session) -> Toolbox:
        """The tools of a session. Raises NotAllowed when it must run in a sandbox and none works."""
        return await _toolbox(self.sessions, self.tools, session)


@asynccontextmanager
async def open_gateway(
    config: Config,
    *,
    env: Mapping[str, str] | None = None,
    tools: Iterable[Tool] = (),
    grace_s: float = GRACE_S,
    working: bool = True,
    scheduling: bool = True,
) -> AsyncIterator[Gateway]:
    """Open a gateway without its network surfaces. On exit, running turns get `grace_s` seconds to end.

    Without `working` it runs no turns and delivers nothing: what is accepted stays queued in the store.
    Without `scheduling` it starts no jobs.
    """
    env = os.environ if env is None else env
    async with (
        open_store(config.store_url) as store,
        _open_cluster(store, config, working=working) as cluster,
        open_mirror(store, config.transcripts, cluster.lead) if config.transcripts else nullcontext(),
        open_models(config.settings, env) as models,
        open_processes(config.home / "processes") as processes,
        open_servers(config.settings.mcp.servers if working else {}, processes.folder) as servers,
        open_tracer(store, config.settings.gateway.tracing) as tracer,
    ):
        await kept_secrets.share(config, store)
        gateway = _compose(config, env, store, cluster, models, processes, servers, tools, tracer)
        if not working:
            yield gateway
            return
        async with _running(gateway, grace_s, scheduling=scheduling):
            yield gateway


@asynccontextmanager
async def _open_cluster(store: Store, config: Config, *, working: bool) -> AsyncIterator[Cluster]:
    """The gateways that share the store. One that does not work is not among them."""
    if not working or not store.shared:
        yield Alone()
        return
    from hobnob.cluster.postgres import open_cluster  # not at the top: it needs psycopg

    # What an earlier gateway left running is found by files there: they must not be those of another one.
    await asyncio.to_thread(statedir.private_dir, config.home)
    with lock_file(config.home / "gateway"):
        settings = config.settings
        async with open_cluster(store, settings.gateway.known_as, settings.store.files) as cluster:
            for member in cluster.members:
                if member.files != settings.store.files:
                    raise BadInput(
                        f"store.files is {settings.store.files!r} here, and {member.files!r} on the gateway"
                        f" {member.name}, which runs: sessions would lose their files.",
                        fix=config_set("store.files", member.files),
                    )
            home = settings.home_name
            if home is not None and sum(member.name == home for member in cluster.members) > 1:
                _log.warning(_NAMESAKE, home)
            yield cluster


def _compose(
    config: Config,
    env: Mapping[str, str],
    store: Store,
    cluster: Cluster,
    models: Catalog,
    processes: Processes,
    servers: McpServers,
    tools: Iterable[Tool],
    tracer: Tracer | None,
) -> Gateway:
    hub = Hub()
    store.watch(hub.publish_all)
    accounts, registry = Accounts(config, processes, cluster), ToolRegistry(servers)
    effects = Effects(config, accounts.names)
    sandbox = Sandbox(Bubblewrap(lambda: config.settings.agents.defaults.sandbox.run_as_root))
    approvals = Approvals(store, config, lambda: effects.channels)
    workspaces = Workspaces(config, sandbox, processes)
    sessions = Sessions(
        store,
        config,
        models,
        effects,
        tools=registry,
        workspaces=workspaces,
        why_no_thread=accounts.why_no_thread,
    )
    jobs = Jobs(store, config, models, effects)
    nodes = Nodes(store, config)
    invocations = Invocations(store, nodes)

    async def tools_of(session: Session, turn: Turn) -> list[str]:
        await sessions.capabilities.ready()
        return sorted(await store.read_small(sessions.capabilities.names_in, session, turn))

    for group in (
        session_tools(sessions, config),
        file_tools(sessions, workspaces),
        shell_tools(
            config, sessions, workspaces, processes, approvals, NodeCommands(config, nodes, invocations)
        ),
        web_tools(config, processes),
        message_tools(sessions, workspaces, config.home / "outgoing"),
        node_tools(nodes, invocations),
        cron_tools(jobs, tools_of, sessions.capabilities.confinement),
        tools,
    ):
        registry.add(group)
    registry.add(load_modules(config.tool_modules(), (tool.name for tool in registry.facts)))
    end_with_sessions(store, processes)

    def toolbox(session: Session) -> Awaitable[Toolbox]:
        return _toolbox(sessions, registry, session)

    async def end_programs(turn: Turn) -> None:
        await processes.end_all(lambda program: program.turn_id == turn.turn_id)

    async def prepare_turns() -> None:
        await registry.warm_up()
        await models.warm_up()

    mcp_grants = McpGrants(store)
    harnesses = AcpRuntime(config, store, env, processes.folder, mcp_grants)
    runtime = while_allowed(
        by_session(
            AgentRuntime(config, models, store, toolbox, end_programs),
            harnesses,
        ),
        lambda turn: store.read_small(effects.why_withdrawn, turn),
    )
    return Gateway(
        config=config,
        store=store,
        cluster=cluster,
        models=models,
        hub=hub,
        effects=effects,
        processes=processes,
        harnesses=harnesses,
        sandbox=sandbox,
        workspaces=workspaces,
        approvals=approvals,
        tools=registry,
        sessions=sessions,
        runner=Runner(store, config, hub, traced(runtime, tracer) if tracer else runtime, effects, cluster),
        retention=Retention(store, config, effects, sessions.forget_ended_turns),
        chats=Chats(store, config, models, effects, hub, workspaces, accounts, cluster),
        mcp_grants=mcp_grants,
        nodes=nodes,
        invocations=invocations,
        jobs=jobs,
        scheduler=Scheduler(store, config, models, effects, prepare_turns),
    )


async def _toolbox(sessions: Sessions, tools: ToolRegistry, session: Session) -> Toolbox:
    await sessions.capabilities.require_sandbox(session)
    return tools.toolbox(await sessions.capabilities.tools(session), session)


@asynccontextmanager
async def _running(gateway: Gateway, grace_s: float, *, scheduling: bool) -> AsyncIterator[None]:
    """Run turns, chats, jobs and maintenance. Stop in this order: channels, turns, then the rest."""
    maintenance = Maintenance(gateway.store, gateway.config, gateway.effects, gateway.workspaces)
    lead = gateway.cluster.lead
    if gateway.cluster.shared:
        _connect_gateways(gateway)
    await gateway.approvals.recover()
    await gateway.processes.recovered()  # a harness left running must not work beside the next one
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            if gateway.config.settings.agents.needs_sandbox:
                group.create_task(gateway.sandbox.ready(), name="probe the sandbox")
            group.create_task(gateway.runner.run(), name="runner")
            channels, deliveries = gateway.chats.start(group)
            background = [
                *deliveries,
                group.create_task(lead("maintenance", maintenance.run), name="maintenance"),
                group.create_task(lead("retention", gateway.retention.run), name="retention"),
                group.create_task(keep_memory_low(), name="memory"),
            ]
            if scheduling:
                background.append(group.create_task(lead("cron", gateway.scheduler.run), name="scheduler"))
            try:
                yield
            finally:
                channels.cancel()  # no new messages; those that are being stored are completed
                await gateway.runner.stop(grace_s)
                await gateway.chats.stop_deliveries()
                for task in background:
                    task.cancel()
    await gateway.chats.accounts.close()


def _connect_gateways(gateway: Gateway) -> None:
    """Let the parts of this gateway know what happens on the others."""
    from hobnob.cluster.live_events import LiveEvents
    from hobnob.cluster.postgres import PostgresCluster
    from hobnob.cluster.remote_changes import RemoteChanges
    from hobnob.store.engine.postgres import PostgresStore

    cluster, store, runner = gateway.cluster, gateway.store, gateway.runner
    assert isinstance(cluster, PostgresCluster) and isinstance(store, PostgresStore)
    live = LiveEvents(gateway.hub, cluster)
    changes, waiters = RemoteChanges(store, cluster, live.flush), gateway.sessions.waiters

    async def recheck() -> None:
        waiters.gone(await changes.recheck(waiters.unsettled(), live.topics))

    NodesElsewhere(gateway.nodes, gateway.invocations, cluster)
    cluster.interests += [runner.wants, waiters.wants]
    cluster.rechecks += [recheck, runner.recheck, gateway.approvals.recheck]
    cluster.polls.append(runner.recover)
    cluster.on("work", lambda _: runner.look_for_work())
    cluster.on_fence += [runner.fence, gateway.processes.stop_all, gateway.harnesses.kill_all]
    cluster.on_fence.append(lambda: gateway.chats.end_sends(cluster.lease_left_s))
    cluster.on_fence.append(store.cut_connections)
    cluster.running_turns = lambda: runner.busy


def api_services(gateway: Gateway) -> Services:
    """What the network surfaces use of a gateway."""
    config, store, sessions = gateway.config, gateway.store, gateway.sessions
    auth, metrics, runner = Authenticator(config), Metrics(), gateway.runner
    store.watch(metrics.on_changes, own_only=True)
    nodes = NodeService(
        gateway.nodes,
        gateway.invocations,
        NodeEvents(config, sessions, gateway.nodes, lambda: gateway.effects.channels - {WEBHOOK}),
        NodeSignIn(config, auth, gateway.nodes),
    )
    services = Services(
        config=config,
        sessions=sessions,
        models=gateway.models,
        hub=gateway.hub,
        auth=auth,
        devices=Devices(config, store, auth),
        mcp=McpService(
            McpAccess(config, auth, sessions, gateway.mcp_grants),
            SessionCalls(config, sessions, gateway.tools),
        ),
        nodes=nodes,
        approvals=gateway.approvals,
        retention=gateway.retention,
        jobs=gateway.jobs,
        scheduler=gateway.scheduler,
        tools=gateway.tools,
        tool_calls=ToolInvoker(config, store, sessions, gateway.tools, gateway.toolbox),
        sandbox=gateway.sandbox,
        metrics=metrics,
        budgets=Budgets(lambda: config.settings.gateway.limits),
        chats=gateway.chats,
        running_turns=lambda: runner.busy,
        stopping=lambda: runner.stopping,
        cluster=gateway.cluster,
        channels=lambda: sorted(gateway.effects.channels - {WEBHOOK}),
    )
    gateway.nodes.on_news = partial(services.clients.tell_holders, "operator.pairing")
    _serve_other_gateways(services)
    return services


def _serve_other_gateways(services: Services) -> None:
    """Do what other gateways ask for, and show them who is connected here."""
    from hobnob.api.methods.config import reload_settings  # not at the top: it imports all methods

    cluster, clients = services.cluster, services.clients

    def reload() -> None:
        with suppress(BadConfig):  # logged; the settings stay as they are
            reload_settings(services, everywhere=False)

    async def close_revoked() -> None:
        for device in clients.devices():
            if not await services.devices.is_paired(device):
                clients.close_device(device.device_id, "the device was removed")

    cluster.on("device", lambda revoked: clients.close_device(*revoked))
    cluster.polls.append(close_revoked)
    cluster.clients, cluster.on_clients, cluster.on_reload = clients.here, clients.changed, reload
    clients.elsewhere = cluster.clients_elsewhere
