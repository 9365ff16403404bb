"""The composition root: opens the parts, in order, and closes them in the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hobnob.api import Parts
from hobnob.config import Config
from hobnob.errors import unwrapped
from hobnob.events import Hub
from hobnob.models.catalog import Catalog, open_models
from hobnob.runner import Runner
from hobnob.runtimes.agent import AgentRuntime
from hobnob.sessions import Sessions
from hobnob.store import Store, open_store
from hobnob.tools import Toolbox
from hobnob.types import Session

GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Gateway:
    config: Config
    store: Store
    models: Catalog
    hub: Hub
    sessions: Sessions
    runner: Runner


@asynccontextmanager
async def open_gateway(
    config: Config,
    *,
    env: Mapping[str, str] | None = None,
    toolbox: Callable[[Session], Toolbox] = lambda _: Toolbox(),
    grace_s: float = GRACE_S,
) -> AsyncIterator[Gateway]:
    """Everything but the network, running. On the way out, turns get `grace_s` seconds to end."""
    env = os.environ if env is None else env
    async with (
        open_store(config.store_url, transcripts=config.home) as store,
        open_models(config.settings, env) as models,
    ):
        hub = Hub()
        sessions = Sessions(store, config.settings)
        runtime = AgentRuntime(config.settings, models, store, config.home, toolbox)
        runner = Runner(store, config.settings, hub, runtime)
        with unwrapped():
            async with asyncio.TaskGroup() as group:
                group.create_task(runner.run(), name="runner")
                try:
                    yield Gateway(config, store, models, hub, sessions, runner)
                finally:
                    await runner.stop(grace_s)


def outside(gateway: Gateway) -> Parts:
    """What the network surfaces get to see."""
    runner = gateway.runner
    return Parts(gateway.config, gateway.sessions, gateway.models, gateway.hub, lambda: runner.busy)
