"""This Python, as a program that can be started inside a sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hobnob.sandbox import WORKSPACE

# Without what is installed beside it, and without a look at the environment or the folder it is started in.
PROGRAM = (os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-I", "-S")
_PREFIX = Path(os.path.realpath(sys.base_prefix))


def shown() -> dict[str, Path]:
    """What has to be seen of it: where it lies, unless that is among the programs that are seen anyhow."""
    return {} if _PREFIX.is_relative_to("/usr") else {str(_PREFIX): _PREFIX}


def problem(*private: Path) -> str | None:
    """Why it must not be shown: with its folder one would see something private, or not see the workspace."""
    hidden = [path for path in (Path.home(), *private) if path.is_relative_to(_PREFIX)]
    if shown() and (hidden or _PREFIX.is_relative_to(WORKSPACE)):
        return f"This Python lies in {_PREFIX}, which cannot be shown in a sandbox."
    return None
