"""Sends and spawns when the process is killed between any two commits: nothing is lost, nothing doubled."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.crashes import CrashCases, crash_cases

from hobnob.crashpoints import EXCHANGE_POINTS, TURN_POINTS

PROGRAM = "exchange_crash_cases.py"
ANN, BOB = "agent:ann:main", "agent:bob:main"


@pytest.fixture(scope="module")
def send_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases(PROGRAM, tmp_path_factory.mktemp("send"), "send") as cases:
        yield cases


@pytest.fixture(scope="module")
def spawn_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases(PROGRAM, tmp_path_factory.mktemp("spawn"), "spawn") as cases:
        yield cases


@pytest.fixture(params=TURN_POINTS + EXCHANGE_POINTS)
def sends(request: pytest.FixtureRequest, send_cases: CrashCases) -> list[Any]:
    """How a send ended when it was killed at one point, for each visit of that point."""
    return send_cases[request.param]


@pytest.fixture(params=TURN_POINTS + EXCHANGE_POINTS)
def spawns(request: pytest.FixtureRequest, spawn_cases: CrashCases) -> list[Any]:
    """How a spawn ended when it was killed at one point, for each visit of that point."""
    return spawn_cases[request.param]


def said(case: Any, key: str, role: str) -> list[str]:
    texts = []
    for message in case["pages"][key]:
        if message["role"] == role:
            content = message["content"]
            texts.append(content if isinstance(content, str) else "".join(p.get("text", "") for p in content))
    return texts


@pytest.mark.parametrize("point", TURN_POINTS + EXCHANGE_POINTS)
def test_every_crash_point_is_reached_by_a_send_or_a_spawn(
    send_cases: CrashCases, spawn_cases: CrashCases, point: str
) -> None:
    assert any(cases[point][0]["killed"] for cases in (send_cases, spawn_cases))


@pytest.mark.promise("exchange.survives_a_kill")
def test_a_send_ends_as_it_would_have(sends: list[Any]) -> None:
    for send in sends:
        assert send["turn"] == ["ok", "Ann is done."]
        found = send["exchange"]
        assert (found["state"], found["end"], found["loopEnd"]) == ("done", "delivered", "reply_skip")


@pytest.mark.promise("exchange.nothing_doubled")
def test_a_send_is_one_exchange_and_each_of_its_steps_happens_once(sends: list[Any]) -> None:
    for send in sends:
        assert send["exchanges"] == 1
        steps = [(s["step"], s["sessionKey"], s.get("text")) for s in send["exchange"]["steps"]]
        assert steps == [
            ("primary", BOB, "It is 42."),
            ("reply", ANN, "And what else?"),
            ("reply", BOB, "Nothing else."),
            ("reply", ANN, None),
            ("announce", BOB, "Bob told Ann that it is 42."),
        ]


@pytest.mark.promise("exchange.nothing_doubled")
def test_both_transcripts_of_a_send_hold_every_message_once(sends: list[Any]) -> None:
    for send in sends:
        assert said(send, BOB, "user")[:3] == ["Hello?", "What is it?", "And what else?"]
        assert said(send, BOB, "assistant") == [
            "Bob is here.",
            "It is 42.",
            "Nothing else.",
            "Bob told Ann that it is 42.",
        ]
        assert said(send, ANN, "user") == ["Go.", "It is 42.", "Nothing else."]
        assert said(send, ANN, "assistant") == ["", "Ann is done.", "And what else?", "REPLY_SKIP"]


@pytest.mark.promise("exchange.nothing_doubled")
def test_the_announcement_of_a_send_is_delivered_once(sends: list[Any]) -> None:
    for send in sends:
        assert send["posted"] == ["Bob told Ann that it is 42."]
        assert send["exchange"]["delivery"]["state"] == "delivered"


@pytest.mark.promise("exchange.survives_a_kill", "report.turn_in_the_child")
def test_a_spawn_ends_as_it_would_have_with_one_child(spawns: list[Any]) -> None:
    for spawn in spawns:
        assert spawn["turn"] == ["ok", "Ann is done."]
        assert spawn["exchanges"] == 1
        found = spawn["exchange"]
        assert (found["state"], found["end"], found["outcome"]) == ("done", "delivered", "ok")
        assert [s["step"] for s in found["steps"]] == ["primary", "announce"]


@pytest.mark.promise("exchange.nothing_doubled")
def test_the_report_of_a_spawn_reaches_its_requester_once(spawns: list[Any]) -> None:
    for spawn in spawns:
        reports = [text for text in said(spawn, ANN, "user") if text.startswith("Status:")]
        assert len(reports) == 1
        assert reports[0].startswith("Status: completed\nResult: 42\nNotes: it took a while\nStats: runtime")
        assert spawn["posted"] == reports


def test_no_transcript_of_a_send_has_a_gap(sends: list[Any]) -> None:
    assert_no_gaps(sends)


def test_no_transcript_of_a_spawn_has_a_gap(spawns: list[Any]) -> None:
    assert_no_gaps(spawns)


def assert_no_gaps(cases: list[Any]) -> None:
    for case in cases:
        for page in case["pages"].values():
            assert [m["seq"] for m in page] == list(range(1, len(page) + 1))
