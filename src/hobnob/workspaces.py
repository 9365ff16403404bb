"""The workspaces of agents, and the work done in them: for a sandboxed session, inside the sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from hobnob import inside, statedir
from hobnob.config import Config
from hobnob.errors import FileTrouble, NotAllowed
from hobnob.inside import work
from hobnob.inside.files import Trouble
from hobnob.policy import Confinement
from hobnob.processes import Processes
from hobnob.sandbox import WORKSPACE, Box, Launch, Limits, Sandbox

WORK_S = 20.0  # for one piece of work
_CODE = Path(inside.__file__).parent
_CODE_INSIDE = "/opt/hobnob"
# Our modules by their own names, without the rest of Hobnob, which needs more than the standard library.
_START = (
    "import sys, types; "
    "hobnob = sys.modules['hobnob'] = types.ModuleType('hobnob'); hobnob.__path__ = [sys.argv.pop(1)]; "
    "from hobnob.inside.work import main; main()"
)


class Workspaces:
    def __init__(self, config: Config, sandbox: Sandbox, processes: Processes) -> None:
        self._config = config
        self._processes = processes
        self.sandbox = sandbox

    def of(self, agent_id: str) -> Path:
        """An agent's folder, made 0700 at first use."""
        return statedir.private_dir(self._config.workspace(agent_id))

    def box(self, agent_id: str, place: Confinement, **more: Any) -> Box:
        """What a program of a session gets to see in the sandbox."""
        rules = self._config.settings.agents.defaults.sandbox
        return Box(
            workspace=None if place.access == "none" else self.of(agent_id),
            writable=place.access == "rw",
            limits=Limits(rules.memory_mb, rules.max_processes, rules.max_file_mb),
            **more,
        )

    async def do(self, agent_id: str, place: Confinement, job: dict[str, Any]) -> dict[str, Any]:
        """Have work done, as `inside.work` takes it. Raises FileTrouble, OSError or NotAllowed."""
        try:
            if place.sandboxed:
                await self._check_sandbox()
                box = self.box(agent_id, place, shown=_python() | {f"{_CODE_INSIDE}/inside": _CODE})
                with ExitStack() as fds:
                    launch = self.sandbox.launch(box, _program(_CODE_INSIDE, WORKSPACE), fds)
                    return await self._answer(launch, job)
            workspace = self.of(agent_id)
            if job["do"] == "grep":  # it may have to be ended, and only a process can be
                return await self._answer(Launch(_program(str(_CODE.parent), str(workspace)), env={}), job)
            return await asyncio.to_thread(work.do, str(workspace), job)
        except Trouble as trouble:
            raise FileTrouble(trouble.message, fix=trouble.fix) from None

    async def _check_sandbox(self) -> None:
        if (problem := await self.sandbox.ready()) is not None:
            raise NotAllowed(
                f"Files of this session are worked on in a sandbox, and none works here: {problem}",
                rule="sandbox.unavailable",
                fix="Install bubblewrap; `hobnob doctor` says whether it works.",
            )

    async def _answer(self, launch: Launch, job: dict[str, Any]) -> dict[str, Any]:
        try:
            said = await self._processes.answer(launch, orjson.dumps(job), timeout_s=WORK_S)
        except TimeoutError:
            raise Trouble(
                f"It took longer than {WORK_S:g} seconds and was stopped.",
                "Ask for less: a smaller folder or file, or a simpler pattern.",
            ) from None
        try:
            answer = orjson.loads(said)
        except orjson.JSONDecodeError:
            raise Trouble("The work in the workspace broke down; the gateway's log says why.") from None
        return work.outcome(answer)


def _program(code: str, workspace: str) -> Sequence[str]:
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", _START, code, workspace]


def _python() -> dict[str, Path]:
    """Where this Python lies, unless it is one of the machine's programs, which are to be seen anyhow."""
    prefix = os.path.realpath(sys.base_prefix)
    return {} if f"{prefix}/".startswith("/usr/") else {prefix: Path(prefix)}
