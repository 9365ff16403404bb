"""Kills a gateway at every crash point of a run of a job, and starts it again, each in its own process.

Prints the name of each crash point when its cases are done. The file `result` in the folder of the point has
a list with one case for each visit: the runs, their transcripts, and what was posted.
"""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hobnob import crashpoints
from hobnob.events import Change, DeliveryChanged, JobChanged
from hobnob.gateway import Gateway
from hobnob.store import deliveries, entries, jobs, sessions, turns
from hobnob.testing import OWNER, calls, rehearse
from hobnob.types import now_ms

JOB = "report"
KEY, MAIN = f"agent:main:cron:{JOB}", "agent:main:main"
SCRIPT = {"models": {"rehearsal": {"scripts": {KEY: [calls("session_status"), "All is well.", "Again?"]}}}}
VISITS = 4


async def begin(home: Path) -> None:
    async with rehearse(home, SCRIPT) as gateway:
        spec = {
            "schedule": {"kind": "at", "at": "1h"},
            "payload": {"kind": "agentTurn", "message": "Report."},
            "deleteAfterRun": False,
        }
        await gateway.jobs.add(OWNER, spec, idempotency_key=JOB)


async def live(home: Path) -> None:
    """Run the job, which is due, or go on with its run; wait until its answer is delivered."""
    async with rehearse(home, SCRIPT) as gateway:
        settled = asyncio.Event()

        def on_changes(changes: list[Change]) -> None:
            if any(isinstance(change, JobChanged | DeliveryChanged) for change in changes):
                settled.set()

        gateway.store.watch(on_changes)
        await gateway.scheduler.run_once(now_ms() + 2 * 3_600_000)  # more than once would find nothing due
        async with asyncio.timeout(60):
            while not await _delivered(gateway):
                settled.clear()
                if await _delivered(gateway):
                    break
                await settled.wait()
        await gateway.scheduler.run_once(now_ms() + 2 * 3_600_000)
        (home / "report").write_text(json.dumps(await _report(gateway)))


async def _delivered(gateway: Gateway) -> bool:
    found = await gateway.store.read(jobs.runs, JOB)
    return bool(found) and all(run.delivery_status == "delivered" for run in found)


async def _report(gateway: Gateway) -> dict[str, Any]:
    read = gateway.store.read
    for turn in await read(turns.open_of, MAIN):
        await gateway.sessions.wait(turn.turn_id, 60)
    found = await read(jobs.runs, JOB)
    session = await read(sessions.get, KEY)
    main = await read(sessions.get, MAIN)
    job = await read(jobs.get, JOB)
    return {
        "runs": [[run.status, run.summary] for run in found],
        "job": [job.enabled, job.turn_id, job.last_status, job.next_run_at_ms],
        "transcript": [e.message for e in await read(entries.history, session.session_id)],
        "main": [e.message for e in await read(entries.history, main.session_id)],
        "posted": [d.text for d in await read(deliveries.of_session, MAIN)],
    }


def in_child(home: Path, at: str | None) -> bool:
    """Live in a child process. True when it was killed."""
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = at
        asyncio.run(live(home))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def run_case(begun: Path, home: Path, at: str) -> dict[str, Any]:
    shutil.copytree(begun, home)
    killed = in_child(home, at)
    if killed:
        in_child(home, None)
    return {"killed": killed, **json.loads((home / "report").read_text())}


def main(base: Path) -> None:
    begun = base / "begun"
    begun.mkdir(parents=True)
    asyncio.run(begin(begun))
    for point in (*crashpoints.JOB_POINTS, *crashpoints.TURN_POINTS[1:], "before-delivery", "after-delivery"):
        cases: list[dict[str, Any]] = []
        while len(cases) < VISITS and (not cases or cases[-1]["killed"]):  # else it is not visited that often
            visit = len(cases) + 1
            cases.append(run_case(begun, base / point / str(visit), f"{point}:{visit}"))
        (base / point / "result").write_text(json.dumps(cases))
        print(point, flush=True)  # noqa: T201 - the test reads it


main(Path(sys.argv[1]))
