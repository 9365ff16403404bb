"""Runs `hobnob` commands, each in a process of its own, without importing everything each time.

It has imported all of it once, and forks. A job is a line of JSON on stdin, its exit code a line on stdout.
"""

import gc
import io
import json
import os
import sys
import traceback
from typing import Any

import hobnob.api.server
import hobnob.cli
import hobnob.client
import hobnob.gateway


def serve() -> None:
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_command(job))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _command(job: dict[str, Any]) -> int:
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        os.dup2(os.open(job["streams"][number], flags), number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv = ["hobnob", *job["words"]]
    try:
        hobnob.cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve()
