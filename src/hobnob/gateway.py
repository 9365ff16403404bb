"""The composition root: opens the parts, in order, and closes them in the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hobnob.api import Services
from hobnob.api.auth import Authenticator
from hobnob.api.devices import Devices
from hobnob.api.metrics import Metrics
from hobnob.approvals import Approvals
from hobnob.channels import Pump
from hobnob.channels.webchat import Webchat
from hobnob.config import Config
from hobnob.effects import Effects
from hobnob.errors import unwrap_exception_group
from hobnob.hub import Hub
from hobnob.maintenance import Maintenance
from hobnob.models.catalog import Catalog, open_models
from hobnob.processes import Processes, open_processes
from hobnob.runner import Runner
from hobnob.runtimes import by_session
from hobnob.runtimes.acp.runtime import AcpRuntime
from hobnob.runtimes.agent import AgentRuntime
from hobnob.sandbox import Sandbox
from hobnob.sandbox.bubblewrap import Bubblewrap
from hobnob.sessions import Sessions
from hobnob.store import Store, open_store
from hobnob.tools import Tool, Toolbox
from hobnob.tools.files import file_tools
from hobnob.tools.mcp import open_servers
from hobnob.tools.messages import message_tools
from hobnob.tools.registry import ToolRegistry
from hobnob.tools.sessions import session_tools
from hobnob.tools.shell import end_with_sessions, shell_tools
from hobnob.tools.web import web_tools
from hobnob.types import Session, Turn
from hobnob.workspaces.service import Workspaces

GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Gateway:
    config: Config
    store: Store
    models: Catalog
    hub: Hub
    sessions: Sessions
    runner: Runner
    effects: Effects
    approvals: Approvals
    processes: Processes
    sandbox: Sandbox
    workspaces: Workspaces
    tools: ToolRegistry
    toolbox: Callable[[Session], Awaitable[Toolbox]]


@asynccontextmanager
async def open_gateway(
    config: Config,
    *,
    env: Mapping[str, str] | None = None,
    tools: Iterable[Tool] = (),
    grace_s: float = GRACE_S,
    working: bool = True,
) -> AsyncIterator[Gateway]:
    """Everything but the network, running. On the way out, turns get `grace_s` seconds to end.

    One that is not `working` runs no turn and delivers nothing: what is asked for waits in the store.
    """
    env = os.environ if env is None else env
    async with (
        open_store(config.store_url, transcripts=config.home) as store,
        open_models(config.settings, env) as models,
        open_processes(config.home / "processes") as processes,
        open_servers(config.settings.mcp.servers if working else {}, processes.folder) as servers,
    ):
        hub = Hub()
        store.watch(hub.publish_all)
        settings = config.settings
        effects = Effects(settings, config.home)
        offer = ToolRegistry(servers)
        sandbox, approvals = Sandbox(Bubblewrap()), Approvals(store, settings, effects.channels)
        workspaces = Workspaces(config, sandbox, processes)
        sessions = Sessions(store, config, models, effects, tools=offer, workspaces=workspaces)
        offer.add(session_tools(sessions, settings))
        offer.add(file_tools(sessions, workspaces))
        offer.add(shell_tools(settings, sessions, workspaces, processes, approvals))
        offer.add(web_tools(settings))
        offer.add(message_tools(sessions))
        offer.add(tools)
        end_with_sessions(store, processes)

        async def toolbox(session: Session) -> Toolbox:
            await sessions.check_place(session)
            return offer.box(await sessions.tools_of(session), session)

        async def broken_off(turn: Turn) -> None:
            await processes.end_all(lambda program: program.turn_id == turn.turn_id)

        runtime = by_session(
            AgentRuntime(config, models, store, toolbox, broken_off),
            AcpRuntime(config, store, env, processes.folder),
        )
        runner = Runner(store, settings, hub, runtime, effects)
        pump = Pump(store, effects, [Webchat(hub)])
        sweeper = Maintenance(store, config, effects, workspaces)
        gateway = Gateway(
            config=config,
            store=store,
            models=models,
            hub=hub,
            sessions=sessions,
            runner=runner,
            effects=effects,
            approvals=approvals,
            processes=processes,
            sandbox=sandbox,
            workspaces=workspaces,
            tools=offer,
            toolbox=toolbox,
        )
        if not working:
            yield gateway
            return
        await approvals.recover()
        await processes.recovered()  # a harness that is left must not work beside the next one
        with unwrap_exception_group():
            async with asyncio.TaskGroup() as group:
                if settings.agents.needs_sandbox:
                    group.create_task(sandbox.ready(), name="try the sandbox")
                group.create_task(runner.run(), name="runner")
                beside = [
                    group.create_task(pump.run(), name="deliveries"),
                    group.create_task(sweeper.run(), name="sweeper"),
                ]
                try:
                    yield gateway
                finally:
                    await runner.stop(grace_s)
                    for task in beside:
                        task.cancel()


def api_services(gateway: Gateway) -> Services:
    """What the network surfaces get to see."""
    runner, auth, metrics = gateway.runner, Authenticator(gateway.config), Metrics()
    gateway.store.watch(metrics.changed)
    return Services(
        config=gateway.config,
        sessions=gateway.sessions,
        models=gateway.models,
        hub=gateway.hub,
        store=gateway.store,
        auth=auth,
        devices=Devices(gateway.config, gateway.store, auth),
        running_turns=lambda: runner.busy,
        toolbox=gateway.toolbox,
        metrics=metrics,
        approvals=gateway.approvals,
        tools=gateway.tools,
        sandbox=gateway.sandbox,
    )
