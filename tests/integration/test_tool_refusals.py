"""What the session tools have in common: which there are, what they give back, and how they say no."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    create_sessions,
    spawning_agents,
    three_agents,
    transcript,
    use,
)
from tests.pasting import paste

from hobnob.testing import rehearse, say

PROMISED = ("sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "agents_list")
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("sessions_list", {}),
    ("sessions_history", {"sessionKey": "main"}),
    ("sessions_send", {"sessionKey": BOB, "message": "say: yes"}),
    ("sessions_spawn", {"task": "say done"}),
    ("agents_list", {}),
    ("session_status", {}),
    ("sessions_search", {"query": "zebra"}),
    ("subagents", {}),
    ("sessions_yield", {}),
    ("sessions_history", {"sessionKey": "agent:"}),
    ("sessions_send", {"sessionKey": "main", "message": "to myself"}),
    ("sessions_list", {"limitt": 3}),
]


@pytest.mark.promise("tools.the_set")
async def test_an_agent_has_the_session_tools(tmp_path: Path, model_requests: Any) -> None:
    async with rehearse(tmp_path) as gateway:
        await say(gateway, "hi")
    assert set(PROMISED) <= {tool.name for tool in model_requests[0].tools}


@pytest.mark.promise("tools.one_json_object")
@pytest.mark.parametrize(("tool", "arguments"), CALLS, ids=lambda value: str(value)[:40])
async def test_what_a_tool_gives_back_is_a_json_object_also_when_it_refuses(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        await say(gateway, f"call {tool} {orjson.dumps(arguments).decode()}", ANN)
        [result] = [m for m in await transcript(gateway, ANN) if m["role"] == "toolResult"]
        [part] = result["content"]
        assert isinstance(orjson.loads(part["text"]), dict)


@pytest.mark.promise("tools.refusal_has_status", "tools.refusal_has_a_sentence")
@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [
        ("sessions_history", {"sessionKey": BOB}, "forbidden"),
        ("sessions_send", {"sessionKey": BOB, "message": "hi"}, "forbidden"),
        ("sessions_send", {"message": "hi"}, "error"),
        ("sessions_spawn", {"task": "x", "agentId": "eve"}, "forbidden"),
        ("sessions_spawn", {"task": ""}, "error"),
        ("session_status", {"sessionKey": BOB}, "forbidden"),
        ("session_status", {"model": "none/such"}, "error"),
        ("sessions_search", {"query": " "}, "error"),
        ("sessions_yield", {}, "error"),
        ("subagents", {"action": "cancel"}, "error"),
        ("sessions_list", {"limit": "many"}, "error"),
    ],
)
async def test_a_refusal_has_a_status_and_a_sentence(
    tmp_path: Path, tool: str, arguments: dict[str, Any], status: str
) -> None:
    async with rehearse(tmp_path, spawning_agents() | {"tools": {}}) as gateway:
        answer = await use(gateway, tool, **arguments)
        assert answer["status"] == status
        assert " " in answer["error"]
        assert answer["error"].endswith((".", "?"))


@pytest.mark.promise("tools.refusal_has_a_fix")
async def test_doing_what_a_refusal_says_is_enough(tmp_path: Path) -> None:
    """The fix is pasted into a shell, and the same call goes through."""
    settings = three_agents() | {"tools": {}}
    async with rehearse(tmp_path, settings) as gateway:
        await create_sessions(gateway, BOB)
        refused = await use(gateway, "sessions_history", sessionKey=BOB)
        assert refused["status"] == "forbidden"
    paste(refused["fix"], settings)
    assert settings["tools"] == {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}
    async with rehearse(tmp_path, settings) as gateway:
        assert "messages" in await use(gateway, "sessions_history", sessionKey=BOB)


@pytest.mark.promise("tools.unknown_choices_are_refused")
@pytest.mark.parametrize(
    ("tool", "arguments", "valid"),
    [
        ("sessions_spawn", {"task": "x", "cleanup": "burn"}, ["keep", "delete"]),
        ("sessions_spawn", {"task": "x", "sandbox": "maybe"}, ["inherit", "require"]),
        ("sessions_spawn", {"task": "x", "thinking": "hard"}, ["off", "minimal", "xhigh"]),
        ("subagents", {"action": "love"}, ["list", "cancel"]),
        ("sessions_list", {"kinds": ["cats"]}, ["main", "group", "other"]),
    ],
)
async def test_a_choice_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, tool: str, arguments: dict[str, Any], valid: list[str]
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, tool, **arguments)
        assert answer["status"] == "error"
        for word in valid:
            assert word in answer["error"]


@pytest.mark.promise("tools.numbers_may_be_text", "tools.numbers_are_clamped")
@pytest.mark.parametrize(("seconds", "status"), [("0", "accepted"), ("60", "ok"), (-9, "accepted")])
async def test_a_time_to_wait_may_be_text_and_below_zero_is_none(
    tmp_path: Path, seconds: Any, status: str
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(
            gateway, "sessions_send", sessionKey=BOB, message="say: yes", timeoutSeconds=seconds
        )
        assert answer["status"] == status
