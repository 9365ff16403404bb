"""This Python interpreter as a program that can run inside a sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hobnob.sandbox import WORKSPACE

# Isolated: no site-packages, no environment variables, and the working directory is not on the import path.
PROGRAM = (os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-I", "-S")
_PREFIX = Path(os.path.realpath(sys.base_prefix))


def mounts() -> dict[str, Path]:
    """The folder to mount read-only for it; empty when it lies below /usr, which is mounted anyway."""
    return {} if _PREFIX.is_relative_to("/usr") else {str(_PREFIX): _PREFIX}


def problem(*private: Path) -> str | None:
    """Why its folder must not be mounted: it contains something private, or would hide the workspace."""
    exposed = [path for path in (Path.home(), *private) if path.is_relative_to(_PREFIX)]
    if mounts() and (exposed or _PREFIX.is_relative_to(WORKSPACE)):
        return f"The gateway's Python is in {_PREFIX}, which must not be mounted in a sandbox."
    return None
