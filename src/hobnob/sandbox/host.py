"""Commands outside of a sandbox: the shell that runs them, and what they inherit of the environment."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hobnob.sandbox import ProcessSpec

# API keys of model providers and tokens must not be among them.
_INHERITED = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TERM|TZ|TMPDIR|XDG_RUNTIME_DIR")


def shell(command: str) -> list[str]:
    """The program and arguments that run a shell command."""
    return ["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c", command]


def host_spec(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> ProcessSpec:
    """How to start a command with the rights of this process."""
    inherited = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    program, *arguments = argv
    return ProcessSpec([shutil.which(program) or program, *arguments], env=inherited | dict(env), cwd=folder)
