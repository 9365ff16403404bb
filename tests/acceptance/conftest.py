"""Runs `hobnob` commands for the acceptance tests, each in a process of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SERVER = Path(__file__).parent.parent / "programs" / "command_server.py"


@cache
def _server() -> subprocess.Popen[str]:
    """It ends with us: its input does."""
    return subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_command(
    words: tuple[str, ...], env: Mapping[str, str], said: str = ""
) -> subprocess.CompletedProcess[str]:
    """A `hobnob` command in a process of its own, and what it printed."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(said)
        for stream in streams[1:]:
            stream.touch()
        job = {"words": words, "env": dict(env), "streams": [str(stream) for stream in streams]}
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (stream.read_text() for stream in streams[1:])
    return subprocess.CompletedProcess(words, code, out, err)
