"""What a harness may do by asking: the kind it states is believed only as far as the call fits it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.harnesses import harness_settings
from tests.integration.helpers import spawn_and_wait, transcript
from tests.unit.test_acp_permissions import COMMANDS, READS

from hobnob.testing import rehearse

Call = dict[str, Any]


async def answers_to(home: Path, *calls: Call) -> tuple[list[str], list[dict[str, Any]]]:
    """What a harness is answered when it asks for these calls in one turn, and the transcript of it."""
    async with rehearse(home, harness_settings(home)) as gateway:
        ended = await spawn_and_wait(gateway, task=f"ask {json.dumps(calls)}", runtime="acp")
        return ended["steps"][0]["text"].split(), await transcript(gateway, ended["target"])


async def test_a_refused_call_is_not_allowed_when_it_is_asked_again_as_a_milder_kind(tmp_path: Path) -> None:
    command = {"rawInput": {"command": "rm -r notes"}}
    answers, messages = await answers_to(
        tmp_path, {"kind": "execute"} | command, {"kind": "think"} | command, {"kind": "think"}, {}
    )
    assert answers == ["reject"] * 4
    (result,) = [message for message in messages if message["role"] == "toolResult"]
    assert result["toolName"] == "execute"
    assert "acp.permissionMode is approve-reads and this call counts as execute" in str(result["content"])


async def test_an_allowed_call_can_become_stricter_in_the_same_turn(tmp_path: Path) -> None:
    answers, _ = await answers_to(tmp_path, {"kind": "read"}, {"kind": "edit"}, {"kind": "read"})
    assert answers == ["allow", "reject", "reject"]


async def test_a_call_that_is_not_as_mild_as_it_says_is_refused(tmp_path: Path) -> None:
    asked = [call | {"toolCallId": f"p{i}"} for i, call in enumerate([*COMMANDS, *READS])]
    answers, _ = await answers_to(tmp_path, *asked)
    assert answers == ["reject"] * len(COMMANDS) + ["allow"] * len(READS)


@pytest.mark.parametrize("kind", ["shell", "READ", "", 5, ["read"]])
async def test_a_kind_that_the_protocol_does_not_have_counts_as_the_strictest(
    tmp_path: Path, kind: Any
) -> None:
    answers, _ = await answers_to(tmp_path, {"kind": kind}, {"kind": "think"})
    assert answers == ["reject", "reject"]
