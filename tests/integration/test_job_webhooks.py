"""Answers of jobs that are posted to a webhook, with a real HTTP server on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.integration.test_jobs import MAIN, add, last_run, run_due, stored
from tests.waiting import LIMIT_S

from hobnob.gateway import Gateway
from hobnob.store import deliveries
from hobnob.testing import rehearse, script

ALLOWED = {"cron": {"webhookToken": "hook-secret", "webhookSsrfPolicy": {"allowedHostnames": ["127.0.0.1"]}}}


@dataclass
class Receiver:
    """Answers with the given statuses, then with 200. `got` are the requests: headers and body."""

    statuses: list[int]
    port: int = 0
    got: list[tuple[dict[str, str], Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.json()))
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 302 else {})

    def delivery(self, **more: Any) -> dict[str, Any]:
        return {"mode": "webhook", "to": f"http://127.0.0.1:{self.port}/runs?x=1"} | more


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    found = Receiver(list(statuses))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    found.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield found
    finally:
        await runner.cleanup()


async def settled(
    gateway: Gateway, job_id: str, wanted: Callable[[dict[str, Any]], bool] = lambda run: True
) -> dict[str, Any]:
    """The last run once its delivery is no longer pending."""
    changed = asyncio.Event()
    gateway.store.watch(lambda _: changed.set())
    async with asyncio.timeout(LIMIT_S):
        while True:
            changed.clear()
            run = await last_run(gateway, job_id)
            if run["deliveryStatus"] != "pending" and wanted(run):
                return run
            await changed.wait()


@pytest.mark.promise("jobs.webhooks")
async def test_the_finished_run_is_posted_with_the_token_and_an_idempotency_key(tmp_path: Path) -> None:
    async with receiver() as target, rehearse(tmp_path, ALLOWED) as gateway:
        job = await add(gateway, "say All is well.", delivery=target.delivery())
        await run_due(gateway, job["id"])
        run = await settled(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"]) == ("ok", "delivered")
        ((headers, body),) = target.got
        assert headers["Authorization"] == "Bearer hook-secret"
        assert headers["Content-Type"] == "application/json" and headers["Idempotency-Key"]
        assert (body["action"], body["jobId"], body["runId"]) == ("finished", job["id"], run["runId"])
        assert (body["status"], body["summary"]) == ("ok", "All is well.")
        assert await gateway.store.read(deliveries.of_session, MAIN) == []


@pytest.mark.promise("jobs.webhooks")
async def test_an_attempt_that_may_pass_is_repeated_with_the_same_body_and_key(tmp_path: Path) -> None:
    async with receiver(503, 429) as target, rehearse(tmp_path, ALLOWED) as gateway:
        job = await add(gateway, delivery=target.delivery())
        await run_due(gateway, job["id"])
        run = await settled(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"]) == ("ok", "delivered")
        assert len(target.got) == 3
        assert len({headers["Idempotency-Key"] for headers, _ in target.got}) == 1
        assert target.got[0][1] == target.got[1][1] == target.got[2][1]


@pytest.mark.promise("jobs.webhooks")
@pytest.mark.parametrize("status", [404, 302])
async def test_a_refused_answer_makes_the_run_a_failure(tmp_path: Path, status: int) -> None:
    async with receiver(status) as target, rehearse(tmp_path, ALLOWED) as gateway:
        job = await add(gateway, delivery=target.delivery())
        await run_due(gateway, job["id"])
        run = await settled(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"]) == ("error", "not-delivered")
        assert f"answered {status}" in run["error"] and len(target.got) == 1
        after = await stored(gateway, job["id"])
        assert (after.last_status, after.consecutive_errors) == ("error", 1)


async def test_failed_deliveries_in_a_row_count_until_one_succeeds(tmp_path: Path) -> None:
    async with receiver(404, 404) as target, rehearse(tmp_path, ALLOWED) as gateway:
        job = await add(gateway, delivery=target.delivery())
        for expected in (1, 2, 0):
            await run_due(gateway, job["id"])
            await settled(gateway, job["id"])
            assert (await stored(gateway, job["id"])).consecutive_errors == expected


@pytest.mark.promise("jobs.webhooks")
async def test_with_best_effort_a_refused_answer_leaves_the_run_a_success(tmp_path: Path) -> None:
    async with receiver(404) as target, rehearse(tmp_path, ALLOWED) as gateway:
        once = {"kind": "at", "at": "1h"}
        job = await add(gateway, schedule=once, delivery=target.delivery(bestEffort=True))
        await run_due(gateway, job["id"])
        run = await settled(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"]) == ("ok", "not-delivered")


async def test_a_job_for_one_time_whose_answer_was_refused_stays_switched_off(tmp_path: Path) -> None:
    async with receiver(404) as target, rehearse(tmp_path, ALLOWED) as gateway:
        job = await add(gateway, schedule={"kind": "at", "at": "1h"}, delivery=target.delivery())
        await run_due(gateway, job["id"])
        await settled(gateway, job["id"])
        after = await stored(gateway, job["id"])
        assert (after.enabled, after.last_status, after.next_run_at_ms) == (False, "error", None)


async def test_a_run_that_failed_is_posted_with_its_error(tmp_path: Path) -> None:
    failing = script({"error": "no credit"}, session="*") | ALLOWED
    async with receiver() as target, rehearse(tmp_path, failing) as gateway:
        job = await add(gateway, delivery=target.delivery())
        await run_due(gateway, job["id"])
        await settled(gateway, job["id"])
        ((_, body),) = target.got
        assert body["status"] == "error" and "no credit" in body["error"] and body["summary"] is None


async def test_a_silent_answer_is_not_posted(tmp_path: Path) -> None:
    async with receiver() as target, rehearse(tmp_path, script("NO_REPLY", session="*") | ALLOWED) as gateway:
        job = await add(gateway, delivery=target.delivery())
        run = await run_due(gateway, job["id"])
        assert (run["status"], run["deliveryStatus"], target.got) == ("ok", "not-requested", [])


@pytest.mark.promise("jobs.webhooks")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_private_address_that_the_settings_do_not_name_is_refused(tmp_path: Path, host: str) -> None:
    async with receiver() as target, rehearse(tmp_path) as gateway:
        job = await add(gateway, delivery=target.delivery(to=f"http://{host}:{target.port}/"))
        await run_due(gateway, job["id"])
        run = await settled(gateway, job["id"])
        assert (run["deliveryStatus"], target.got) == ("not-delivered", [])
        assert "cron.webhookSsrfPolicy.allowedHostnames" in run["error"]
