"""The workspaces of agents, and the jobs in them, which run in the sandbox for a sandboxed session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hobnob import statedir
from hobnob.config import Config
from hobnob.errors import FileError, NotAllowed
from hobnob.policy import Confinement
from hobnob.processes import Processes
from hobnob.sandbox import WORKSPACE, Limits, Sandbox, SandboxSpec, python
from hobnob.workspaces.guest import jobs
from hobnob.workspaces.guest.process import GuestError
from hobnob.workspaces.guest_processes import CODE, GuestProcesses, MakeSpec, argv, host_spec

JOB_TIMEOUT_S = 20.0
_MAX_PROCESSES = 8  # that run jobs at a time
_READ_ONLY = ("read", "ls", "grep")  # can be ended at any time
_CODE_INSIDE = "/run/hobnob"


class Workspaces:
    def __init__(self, config: Config, sandbox: Sandbox, processes: Processes) -> None:
        self._config = config
        self._guests = GuestProcesses(processes, max_running=_MAX_PROCESSES)
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
                    read_only={f"{_CODE_INSIDE}/workspaces/guest": CODE} | python.mounts(),
                )
                command = argv("jobs", WORKSPACE, code=_CODE_INSIDE)
                return await self._in_process(lambda fds: self.sandbox.process_spec(box, command, fds), job)
            if job["action"] == "grep":  # it may have to be ended, which a thread cannot be
                return await self._in_process(host_spec("jobs", str(workspace)), job)
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

    async def _in_process(self, make_spec: MakeSpec, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job in a process. On cancellation, a job that writes is completed first."""
        running = asyncio.ensure_future(self._guests.run(make_spec, job, timeout_s=JOB_TIMEOUT_S))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if job["action"] in _READ_ONLY:
                running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise
        except TimeoutError:
            raise GuestError(
                f"It took longer than {JOB_TIMEOUT_S:g} seconds and was stopped.",
                "Ask for less: a smaller folder or file, or a simpler pattern.",
            ) from None
