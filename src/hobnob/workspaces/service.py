"""The workspaces of agents, and the jobs in them, which run in the sandbox for a sandboxed session."""

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
from hobnob.workspaces.guest import jobs
from hobnob.workspaces.guest.files import GuestError

JOB_TIMEOUT_S = 20.0
_MAX_PROCESSES = 8  # that run jobs at a time
_READ_ONLY = ("read", "ls", "grep")  # can be ended at any time
_CODE = Path(guest.__file__).parent
_CODE_INSIDE = "/run/hobnob"
_log = logging.getLogger(__name__)
# Makes the guest modules importable by their own names, without importing the rest of Hobnob.
_BOOTSTRAP = (
    "import sys, types; "
    "hobnob = sys.modules['hobnob'] = types.ModuleType('hobnob'); hobnob.__path__ = [sys.argv.pop(1)]; "
    "from hobnob.workspaces.guest.jobs import main; main()"
)


class Workspaces:
    def __init__(self, config: Config, sandbox: Sandbox, processes: Processes) -> None:
        self._config = config
        self._processes = processes
        self._job_slots = asyncio.Semaphore(_MAX_PROCESSES)
        self.sandbox = sandbox

    def of(self, agent_id: str) -> Path:
        """An agent's workspace, created with mode 0700 at first use."""
        return statedir.private_dir(self._config.workspace(agent_id))

    def sandbox_spec(self, agent_id: str, confinement: Confinement, **more: Any) -> SandboxSpec:
        """What a program of a session can see in the sandbox."""
        settings = self._config.settings.agents.defaults.sandbox
        return SandboxSpec(
            workspace=None if confinement.access == "none" else self.of(agent_id),
            writable=confinement.access == "rw",
            limits=Limits(settings.memory_mb, settings.max_processes, settings.max_file_mb),
            **more,
        )

    async def run_job(self, agent_id: str, confinement: Confinement, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job as `guest.jobs.run` takes it. Raises FileError or NotAllowed.

        Also raises OSError, but only for the file or folder that the job names.
        """
        workspace = self.of(agent_id)
        try:
            if confinement.sandboxed:
                await self._check_sandbox()
                box = self.sandbox_spec(
                    agent_id,
                    confinement,
                    read_only={f"{_CODE_INSIDE}/workspaces/guest": _CODE} | python.mounts(),
                )
                argv = _job_argv(_CODE_INSIDE, WORKSPACE)
                return await self._in_process(lambda fds: self.sandbox.process_spec(box, argv, fds), job)
            if job["action"] == "grep":  # it may have to be killed, which a thread cannot be
                spec = ProcessSpec(_job_argv(str(_CODE.parent.parent), str(workspace)), env={})
                return await self._in_process(lambda _: spec, job)
            return await asyncio.to_thread(jobs.run, str(workspace), job)
        except GuestError as error:
            raise FileError(error.message, fix=error.fix) from None

    async def _check_sandbox(self) -> None:
        problem = await self.sandbox.ready() or python.problem(self._config.home)
        if problem is not None:
            raise NotAllowed(
                f"The file tools of this session run in a sandbox, and none works here: {problem}",
                rule="sandbox.unavailable",
                fix="Install bubblewrap; `hobnob doctor` says whether it works.",
            )

    async def _in_process(
        self, make_spec: Callable[[ExitStack], ProcessSpec], job: dict[str, Any]
    ) -> dict[str, Any]:
        """Run a job in a process. On cancellation, a job that writes is completed first."""
        answering = asyncio.ensure_future(self._answer(make_spec, job))
        try:
            answer = await asyncio.shield(answering)
        except asyncio.CancelledError:
            if job["action"] in _READ_ONLY:
                answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            raise
        return jobs.result(answer)

    async def _answer(self, make_spec: Callable[[ExitStack], ProcessSpec], job: dict[str, Any]) -> Any:
        try:
            async with self._job_slots:
                with ExitStack() as fds:
                    stdout = await self._processes.answer(
                        make_spec(fds), orjson.dumps(job), timeout_s=JOB_TIMEOUT_S
                    )
            return orjson.loads(stdout)
        except TimeoutError:
            raise GuestError(
                f"It took longer than {JOB_TIMEOUT_S:g} seconds and was stopped.",
                "Ask for less: a smaller folder or file, or a simpler pattern.",
            ) from None
        except (OSError, orjson.JSONDecodeError) as error:
            _log.error("the process of a workspace job failed, the tool call is refused: %r", error)
            raise GuestError("The job in the workspace failed; the gateway's log says why.") from None


def _job_argv(code: str, workspace: str) -> Sequence[str]:
    return [*python.PROGRAM, "-c", _BOOTSTRAP, code, workspace]
