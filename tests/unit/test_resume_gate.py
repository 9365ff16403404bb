"""Turns that ran at a crash are resumed a little apart."""

import asyncio

import pytest
from tests.waiting import LIMIT_S

from hobnob.resume_gate import ResumeGate


@pytest.fixture
def gate() -> ResumeGate:
    return waited_for(ResumeGate(apart_s=3600))


def waited_for(gate: ResumeGate) -> ResumeGate:
    for turn_id in ("a", "b", "c"):
        gate.add(turn_id)
    return gate


async def test_the_next_turn_is_resumed_when_the_one_before_has_progressed(gate: ResumeGate) -> None:
    await gate.wait("a")
    second = asyncio.ensure_future(gate.wait("b"))
    await asyncio.sleep(0)
    assert not second.done()
    gate.progressed("c")  # not the one that is awaited
    await asyncio.sleep(0)
    assert not second.done()
    gate.progressed("a")
    await asyncio.wait_for(second, LIMIT_S)


async def test_a_turn_that_does_not_progress_holds_up_the_next_for_a_short_time_only() -> None:
    gate = waited_for(ResumeGate(apart_s=0))
    await gate.wait("a")
    await asyncio.wait_for(gate.wait("b"), LIMIT_S)


async def test_a_turn_that_did_not_run_at_a_crash_does_not_wait(gate: ResumeGate) -> None:
    await gate.wait("a")
    await asyncio.wait_for(gate.wait("new"), LIMIT_S)
    await asyncio.wait_for(gate.wait("a"), LIMIT_S)  # it waits once


async def test_nothing_waits_when_the_gateway_stops(gate: ResumeGate) -> None:
    await gate.wait("a")
    waiting = [asyncio.ensure_future(gate.wait(turn_id)) for turn_id in ("b", "c")]
    await asyncio.sleep(0)
    gate.close()
    await asyncio.wait_for(asyncio.gather(*waiting), LIMIT_S)
