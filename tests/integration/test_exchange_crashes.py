"""Sends and spawns when the process is killed between any two commits: nothing is lost, nothing doubled."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hobnob.crashpoints import POINTS

PROGRAM = Path(__file__).parent.parent / "programs" / "exchange_crash_cases.py"
ANN, BOB = "agent:ann:main", "agent:bob:main"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of each scene, for each place at which it was killed. The scenes run side by side."""
    programs = {
        scene: subprocess.Popen(
            [sys.executable, PROGRAM, tmp_path_factory.mktemp(scene), scene],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for scene in ("send", "spawn")
    }
    found = {}
    for scene, program in programs.items():
        out, err = program.communicate()
        assert program.returncode == 0, err[-3000:]
        found[scene] = json.loads(out)
    return found


@pytest.fixture(params=POINTS)
def sends(request: pytest.FixtureRequest, cases: Any) -> list[Any]:
    return [case for at, case in cases["send"].items() if at.startswith(f"{request.param}:")]


@pytest.fixture(params=POINTS)
def spawns(request: pytest.FixtureRequest, cases: Any) -> list[Any]:
    return [case for at, case in cases["spawn"].items() if at.startswith(f"{request.param}:")]


def said(case: Any, key: str, role: str) -> list[str]:
    texts = []
    for message in case["pages"][key]:
        if message["role"] == role:
            content = message["content"]
            texts.append(content if isinstance(content, str) else "".join(p.get("text", "") for p in content))
    return texts


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", POINTS)
def test_every_crash_point_is_reached_by_a_send_or_a_spawn(cases: Any, point: str) -> None:
    assert any(cases[scene][f"{point}:1"]["killed"] for scene in ("send", "spawn"))


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


def test_no_transcript_of_an_exchange_has_a_gap(cases: Any) -> None:
    for case in [*cases["send"].values(), *cases["spawn"].values()]:
        for page in case["pages"].values():
            assert [m["seq"] for m in page] == list(range(1, len(page) + 1))
