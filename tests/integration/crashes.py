"""Results of a program that kills a gateway in many ways: each is read as soon as the program has it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import postgres, stores

PROGRAMS = Path(__file__).parent.parent / "programs"


class CrashCases:
    """The results of one program, which works through all its cases while tests look at the first.

    A test waits for its own case only: no test waits for the whole program, and one bad case fails
    no other.
    """

    def __init__(self, program: subprocess.Popen[str], folder: Path, errors: Path) -> None:
        self._program = program
        self._folder = folder
        self._errors = errors
        self._results: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        assert self._program.stdout is not None
        while name not in self._results:
            done = self._program.stdout.readline().strip()
            assert done, f"the program ended without {name!r}: {self._errors.read_text()[-3000:]}"
            self._results[done] = json.loads((self._folder / done / "result").read_text())
        return self._results[name]


@contextmanager
def crash_cases(program: str, folder: Path, *arguments: str) -> Iterator[CrashCases]:
    if stores.ON_POSTGRES:
        postgres.require_server()  # of which the program learns from the environment
    errors = folder / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, PROGRAMS / program, folder, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        try:
            yield CrashCases(process, folder, errors)
        finally:
            process.kill()
