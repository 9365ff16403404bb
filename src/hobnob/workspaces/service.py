"""The workspaces of agents, and the work done in them: for a sandboxed session, inside the sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from hobnob import statedir
from hobnob.config import Config
from hobnob.errors import FileError, NotAllowed
from hobnob.policy import Confinement
from hobnob.processes import Processes
from hobnob.sandbox import WORKSPACE, Limits, ProcessSpec, Sandbox, SandboxSpec, python
from hobnob.workspaces import guest
from hobnob.workspaces.guest import work
from hobnob.workspaces.guest.files import GuestError

WORK_S = 20.0  # for one piece of work
_AT_A_TIME = 8  # processes that work
_HARMLESS = ("read", "ls", "grep")  # they can be ended at any time
_CODE = Path(guest.__file__).parent
_CODE_INSIDE = "/run/hobnob"
_log = logging.getLogger(__name__)
# Our modules by their own names, without the rest of Hobnob, which needs more than the standard library.
_START = (
    "import sys, types; "
    "hobnob = sys.modules['hobnob'] = types.ModuleType('hobnob'); hobnob.__path__ = [sys.argv.pop(1)]; "
    "from hobnob.workspaces.guest.work import main; main()"
)


class Workspaces:
    def __init__(self, config: Config, sandbox: Sandbox, processes: Processes) -> None:
        self._config = config
        self._processes = processes
        self._at_work = asyncio.Semaphore(_AT_A_TIME)
        self.sandbox = sandbox

    def of(self, agent_id: str) -> Path:
        """An agent's folder, made 0700 at first use."""
        return statedir.private_dir(self._config.workspace(agent_id))

    def box(self, agent_id: str, place: Confinement, **more: Any) -> SandboxSpec:
        """What a program of a session gets to see in the sandbox."""
        rules = self._config.settings.agents.defaults.sandbox
        return SandboxSpec(
            workspace=None if place.access == "none" else self.of(agent_id),
            writable=place.access == "rw",
            limits=Limits(rules.memory_mb, rules.max_processes, rules.max_file_mb),
            **more,
        )

    async def do(self, agent_id: str, place: Confinement, job: dict[str, Any]) -> dict[str, Any]:
        """Have work done, as `inside.work` takes it. Raises FileError or NotAllowed.

        An OSError is one of the file or folder the work is about, and of nothing else.
        """
        workspace = self.of(agent_id)
        try:
            if place.sandboxed:
                await self._check_sandbox()
                box = self.box(
                    agent_id, place, shown={f"{_CODE_INSIDE}/workspaces/guest": _CODE} | python.shown()
                )
                argv = _program(_CODE_INSIDE, WORKSPACE)
                return await self._in_process(lambda fds: self.sandbox.launch(box, argv, fds), job)
            if job["do"] == "grep":  # it may have to be ended, and only a process can be
                launch = ProcessSpec(_program(str(_CODE.parent.parent), str(workspace)), env={})
                return await self._in_process(lambda _: launch, job)
            return await asyncio.to_thread(work.do, str(workspace), job)
        except GuestError as trouble:
            raise FileError(trouble.message, fix=trouble.fix) from None

    async def _check_sandbox(self) -> None:
        problem = await self.sandbox.ready() or python.problem(self._config.home)
        if problem is not None:
            raise NotAllowed(
                f"Files of this session are worked on in a sandbox, and none works here: {problem}",
                rule="sandbox.unavailable",
                fix="Install bubblewrap; `hobnob doctor` says whether it works.",
            )

    async def _in_process(
        self, launched: Callable[[ExitStack], ProcessSpec], job: dict[str, Any]
    ) -> dict[str, Any]:
        """Have a process do it. What would leave something half done is let come to its end."""
        asking = asyncio.ensure_future(self._answer(launched, job))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            if job["do"] in _HARMLESS:
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)  # nobody hears any more how it went
            raise
        return work.outcome(answer)

    async def _answer(self, launched: Callable[[ExitStack], ProcessSpec], job: dict[str, Any]) -> Any:
        try:
            async with self._at_work:
                with ExitStack() as fds:
                    told = orjson.dumps(job)
                    said = await self._processes.answer(launched(fds), told, timeout_s=WORK_S)
            return orjson.loads(said)
        except TimeoutError:
            raise GuestError(
                f"It took longer than {WORK_S:g} seconds and was stopped.",
                "Ask for less: a smaller folder or file, or a simpler pattern.",
            ) from None
        except (OSError, orjson.JSONDecodeError) as error:
            _log.error("work in a workspace broke down: %r", error)
            raise GuestError("The work in the workspace broke down; the gateway's log says why.") from None


def _program(code: str, workspace: str) -> Sequence[str]:
    return [*python.PROGRAM, "-c", _START, code, workspace]
