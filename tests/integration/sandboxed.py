"""The mark for tests that need a working sandbox: they are skipped, with the reason, where none works.

HOBNOB_TESTS_NEED_SANDBOX=1 runs them all the same, so that they fail. `.ci/run` sets it.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import use
from tests.waiting import LIMIT_S

from hobnob.gateway import Gateway
from hobnob.sandbox import bubblewrap

_open_folders = tempfile.TemporaryDirectory(prefix="hobnob-tests-")
Path(_open_folders.name).chmod(0o755)
bubblewrap.PROBE_S = LIMIT_S  # a slow machine is not one without a sandbox
PROBLEM = asyncio.run(bubblewrap.Bubblewrap().probe())
needs_sandbox = pytest.mark.skipif(
    PROBLEM is not None and os.environ.get("HOBNOB_TESTS_NEED_SANDBOX") != "1",
    reason=f"no sandbox works on this machine: {PROBLEM}",
)


async def run(gateway: Gateway, command: str, session: str = "main", /, **more: Any) -> dict[str, Any]:
    """Have an agent run a command, in a real turn."""
    return await use(gateway, "exec", session, command=command, **more)


def open_folder() -> Path:
    """A folder that every user can reach, unlike those of pytest. Removed with this process."""
    folder = Path(tempfile.mkdtemp(dir=_open_folders.name))
    folder.chmod(0o777)
    return folder


def without_sandbox(monkeypatch: pytest.MonkeyPatch, script: str | None = None) -> Path:
    """A machine without bubblewrap, or with one that does as the script says. Returns the folder on PATH."""
    programs = open_folder()
    if script is not None:
        (programs / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return programs


def running(word: str) -> list[int]:
    """The processes of this machine with this word among their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
