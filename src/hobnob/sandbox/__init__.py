"""The sandbox interface: what confines the programs an agent runs.

A backend is probed by running something in it. Where none works, a program that needs a sandbox is refused
with the reason; it never runs outside instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

WORKSPACE = "/workspace"  # the path of the workspace inside
_RETRY_PROBE_S = 30.0  # after a failure: an operator may have fixed it


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for all processes of a command together; memory and files also for each single process."""

    memory_mb: int = 2048
    processes: int = 256
    file_mb: int = 1024


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a command in the sandbox can see. Without a workspace it gets an empty folder in its place.

    `read_only` maps paths inside to further folders it can read.
    """

    workspace: Path | None = None
    writable: bool = False
    network: bool = False
    workdir: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    read_only: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A program ready to be started, with the descriptors it inherits.

    `processes` and `memory_mb` are limits for all its processes together that the gateway has to enforce.
    `staged` is set if a gateway of root starts it as an unprivileged user: the folders of root it can use, by
    the paths where it finds them.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    fds: Sequence[int] = ()
    sandboxed: bool = False
    processes: int | None = None
    memory_mb: int | None = None
    staged: Mapping[str, Path] | None = None


class Backend(Protocol):
    """One way to confine programs."""

    name: str

    async def probe(self) -> str | None:
        """Run something in the sandbox. Returns why that fails, as a sentence, or None."""
        ...

    def process_spec(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        """How to start a command in the sandbox. `fds` holds its descriptors: close it after the start."""
        ...


class Sandbox:
    """The backend of this machine. `problem` is the result of `ready`: None when the sandbox works."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._probing = asyncio.Lock()
        self._probed_at: float | None = None
        self.problem: str | None = "it has not been tried yet"

    @property
    def name(self) -> str:
        return self._backend.name

    async def ready(self) -> str | None:
        """Why the sandbox does not work, None when it does. Probes at first use and again after a failure."""
        if self.problem is None:
            return None
        async with self._probing:
            now = time.monotonic()
            if self._probed_at is None or (self.problem and now - self._probed_at > _RETRY_PROBE_S):
                self.problem = await self._backend.probe()
                self._probed_at = time.monotonic()
        return self.problem

    def process_spec(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        return self._backend.process_spec(box, argv, fds)
