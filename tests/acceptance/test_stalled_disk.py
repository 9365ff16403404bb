"""A gateway whose disk does not answer: syncs of the real process wait until the test lets them go on."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.stepped_model import SteppedModel
from tests.waiting import LIMIT_S, until

from hobnob.client import Client, open_client

SOURCE = Path(__file__).parent.parent / "programs" / "stall_fsync.c"
TOKEN = "token-of-the-stalled-disk"
NOTES = "agent:main:notes"


class Disk:
    """The disk of a gateway, which the test can stall."""

    def __init__(self, folder: Path) -> None:
        self.stall_file = folder / "stall"
        self._reached = folder / "stall.reached"

    def stall(self) -> None:
        self.stall_file.touch()

    async def is_reached(self) -> None:
        """Wait until a write waits for the disk."""
        await until(self._reached.exists)

    def go_on(self) -> None:
        self.stall_file.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.go_on()


@pytest.fixture
def model() -> Iterator[SteppedModel]:
    made = SteppedModel()
    yield made
    made.close()


@pytest.fixture
def url(tmp_path: Path, disk: Disk, model: SteppedModel) -> Iterator[str]:
    """A gateway in its own process, with syncs that wait while the disk is stalled."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler to build the library that delays syncs")
    library = tmp_path / "stall_fsync.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    gateway = {"port": 0, "auth": {"token": TOKEN}}
    (home / "hobnob.json5").write_text(json.dumps({"gateway": gateway} | model.settings()))
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOBNOB_")}
    env |= {"HOBNOB_HOME": str(home), "LD_PRELOAD": str(library), "STALL_FILE": str(disk.stall_file)}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "hobnob", "serve"], env=env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        words = process.stdout.readline().split()
        yield next(word for word in words if word.startswith("ws://")).rstrip(".")
    finally:
        disk.go_on()
        process.kill()
        process.communicate()


async def streamed(client: Client, text: str) -> None:
    """Wait for an event with this piece of an answer."""
    while event := await client.events.get():
        if event["event"] == "chat" and event["payload"].get("deltaText") == text:
            return


@pytest.mark.promise("gateway.stalled_disk")
async def test_a_stalled_disk_stops_neither_reads_nor_answers_nor_streams(
    url: str, disk: Disk, model: SteppedModel
) -> None:
    async with asyncio.timeout(LIMIT_S), open_client(url, TOKEN) as client:
        await client.call("sessions.create", key=NOTES)
        await client.call("chat.inject", sessionKey=NOTES, message="before")
        run = await client.call("chat.send", sessionKey="hook:1", message="Hi", idempotencyKey="k")
        model.stream("first")
        await streamed(client, "first")
        disk.stall()
        writing = asyncio.create_task(client.call("chat.inject", sessionKey=NOTES, message="during"))
        await disk.is_reached()

        assert (await client.call("health"))["runningTurns"] == 1
        history = await client.call("chat.history", sessionKey=NOTES)
        assert [message["content"] for message in history["messages"]] == [
            [{"type": "text", "text": "before"}]
        ]
        listed = await client.call("sessions.list", limit=200)
        assert {NOTES, "agent:main:hook:1"} <= {row["key"] for row in listed["sessions"]}
        async with open_client(url, TOKEN) as newcomer:
            await newcomer.call("agent.identity.get")
        model.stream("second")
        await streamed(client, "second")
        assert not writing.done()  # what is not on disk is not acknowledged

        disk.go_on()
        await writing
        model.finish()
        assert (await client.wait(run["runId"]))["status"] == "ok"
        history = await client.call("chat.history", sessionKey=NOTES)
        assert len(history["messages"]) == 2
