"""The sandbox socket: what confines the programs an agent runs.

Whether a backend works is found out by running it. Where none does, whoever needs a sandbox is refused with
the reason; nothing is ever run outside instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

WORKSPACE = "/workspace"  # the name of the workspace inside
_LOOK_AGAIN_S = 30.0  # after a failure: somebody may have mended it


@dataclass(frozen=True, slots=True)
class Limits:
    """For the processes of a command together; memory and files also for each program that is started."""

    memory_mb: int = 2048
    processes: int = 256
    file_mb: int = 1024


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a command in the sandbox gets to see. Without a workspace it has an empty folder in its place.

    `shown` are other folders it can read, by the path they have inside.
    """

    workspace: Path | None = None
    writable: bool = False
    network: bool = False
    workdir: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shown: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A program ready to be started, with the descriptors it needs.

    It is ended when it has more `processes`, or all of them together more memory.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    fds: Sequence[int] = ()
    processes: int | None = None
    memory_mb: int | None = None


class Backend(Protocol):
    """One way to confine programs."""

    name: str

    async def probe(self) -> str | None:
        """Run something in it. Returns why that does not work, in a sentence, or None."""
        ...

    def launch(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        """A command in a box. Descriptors it needs are closed by `fds`, once it has been started."""
        ...


class Sandbox:
    """The backend of this machine. `problem` is what `ready` found: None when it works."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._asking = asyncio.Lock()
        self._asked_at: float | None = None
        self.problem: str | None = "it has not been tried yet"

    @property
    def name(self) -> str:
        return self._backend.name

    async def ready(self) -> str | None:
        """Why it does not work, None when it does. The first to ask has it tried."""
        if self.problem is None:
            return None
        async with self._asking:
            now = time.monotonic()
            if self._asked_at is None or (self.problem and now - self._asked_at > _LOOK_AGAIN_S):
                self.problem = await self._backend.probe()
                self._asked_at = time.monotonic()
        return self.problem

    def launch(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        return self._backend.launch(box, argv, fds)
