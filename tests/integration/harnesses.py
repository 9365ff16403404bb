"""Settings with the stub harness, and what it logged."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import ANN, spawning_agents, texts, use

from hobnob.gateway import Gateway
from hobnob.processes.launcher import Grace
from hobnob.runtimes.acp import client, process

STUB = Path(__file__).parent.parent / "programs" / "stub_harness.py"


def harness_settings(home: Path, *arguments: str, more: Any = None, **acp: Any) -> dict[str, Any]:
    """Settings with the harness `stub`, started with these arguments; `more` are settings of the harness."""
    stub = {"command": [sys.executable, str(STUB), *arguments], "env": {"STUB_LOG": str(home / "log")}}
    return spawning_agents(acp={"harnesses": {"stub": stub | (more or {})}} | acp)


def harness_log(home: Path, word: str = "") -> list[str]:
    """The lines of the harness's log that begin with a word, without it."""
    lines = (home / "log").read_text().splitlines() if (home / "log").exists() else []
    return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]


def is_alive(pid: str | int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def start_harness(gateway: Gateway, **arguments: Any) -> dict[str, Any]:
    """Spawn the harness, and do not wait for it."""
    answer = await use(gateway, "sessions_spawn", ANN, runtime="acp", **arguments)
    assert answer["status"] == "accepted", answer
    return answer


async def reports(gateway: Gateway) -> list[str]:
    return [text for text in await texts(gateway, ANN, "user") if text.startswith("Status:")]


def set_grace(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """How long the gateway waits for a harness to end by itself, at each step."""
    monkeypatch.setattr(client, "_CANCEL_GRACE_S", seconds)
    monkeypatch.setattr(process, "_GRACE", Grace(eof_s=seconds, term_s=seconds, kill_s=2.0))
