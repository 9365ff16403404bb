"""Files for a child: what becomes of them when there is no child."""

from typing import Any

import pytest

from hobnob.attachments import Attachment
from hobnob.errors import FileError
from hobnob.sessions import SpawnReceipt
from hobnob.sessions.handing import hand_over
from hobnob.sessions.spawning import HandedFiles

BATCH = "0193a6c2-7b1d-7f00-8000-0123456789ab"


@pytest.mark.parametrize("stopped", ["write_batch", "spawn"])
async def test_whatever_stops_a_spawn_its_files_are_taken_back(stopped: str) -> None:
    done: list[str] = []

    async def do(job: dict[str, Any]) -> None:
        done.append(job["action"])
        if job["action"] == stopped:
            raise FileError("It took longer than 20 seconds and was stopped.")

    async def spawn(_: HandedFiles) -> SpawnReceipt:
        raise FileError("It is refused.")

    async def earlier() -> None:
        return None

    with pytest.raises(FileError):
        await hand_over(do, [Attachment("a", b"x")], BATCH, spawn=spawn, earlier=earlier)
    assert done == ["write_batch", "remove_batch"]
