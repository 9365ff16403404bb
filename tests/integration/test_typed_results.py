"""Typed results of spawns and sends: the tool, its one correction, and what is said without a result."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import ANN, BOB, spawning_agents, three_agents, transcript, use

from hobnob.output_schemas import TOOL
from hobnob.testing import calls, exchange_ended, rehearse

COUNT = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "unit": {"type": "string"}},
    "required": ["count"],
    "additionalProperties": False,
}


async def typed(path: Path, *script: Any, schema: Any = COUNT) -> tuple[dict[str, Any], list[Any]]:
    """The result of a sub-agent that plays a script, and its transcript."""
    async with rehearse(path, spawning_agents({"*": list(script)})) as gateway:
        child = await use(gateway, "sessions_spawn", task="Count.", collect=True, outputSchema=schema)
        assert child["status"] == "accepted", child
        answer = await use(gateway, "agents_wait", ids=[child["runId"]])
        return answer["completed"][0], await transcript(gateway, child["childSessionKey"])


@pytest.mark.promise("typed.structured_beside_reply")
async def test_a_result_that_fits_is_structured_beside_the_reply(tmp_path: Path) -> None:
    row, _ = await typed(tmp_path, calls(TOOL, "I counted.", count=42))
    assert (row["status"], row["structured"], row["reply"]) == ("ok", {"count": 42}, "I counted.")
    assert "schemaError" not in row


async def test_without_a_text_the_reply_is_the_result_as_json(tmp_path: Path) -> None:
    row, _ = await typed(tmp_path, calls(TOOL, count=42))
    assert (row["structured"], row["reply"]) == ({"count": 42}, '{"count":42}')


@pytest.mark.promise("typed.the_tool_takes_exactly_the_schema")
async def test_the_other_side_has_a_tool_with_exactly_the_schema(tmp_path: Path, model_requests: Any) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": [calls(TOOL, count=1)]})) as gateway:
        child = await use(gateway, "sessions_spawn", task="x", collect=True, outputSchema=COUNT)
        assert TOOL in child["tools"]
        await exchange_ended(gateway, child["exchangeId"])
        plain = await use(gateway, "sessions_spawn", task="x", collect=True)
        assert TOOL not in plain["tools"]
    [request] = [r for r in model_requests if r.session_key == child["childSessionKey"]]
    [spec] = [t for t in request.tools if t.name == TOOL]
    assert spec.parameters == COUNT
    assert TOOL in request.system


@pytest.mark.promise("typed.one_correction")
async def test_a_wrong_call_is_corrected_once(tmp_path: Path) -> None:
    row, messages = await typed(tmp_path, calls(TOOL, count="many"), calls(TOOL, count=42))
    assert row["structured"] == {"count": 42}
    refused = next(m for m in messages if m["role"] == "toolResult")
    assert refused["isError"] and "count must be integer, not string" in str(refused["content"])


@pytest.mark.promise("typed.one_correction", "typed.schema_error_says_what_was_wrong")
async def test_a_second_wrong_call_ends_the_turn_with_what_was_wrong(tmp_path: Path) -> None:
    row, messages = await typed(
        tmp_path, calls(TOOL, "Many.", count="many"), calls(TOOL, number=42), calls(TOOL, count=1)
    )
    assert (row["status"], row["reply"]) == ("ok", "Many.")
    assert "structured" not in row
    assert "count is missing" in row["schemaError"] and "number is not expected" in row["schemaError"]
    assert sum(m["role"] == "toolResult" for m in messages) == 2


@pytest.mark.promise("typed.one_correction")
async def test_an_answer_in_text_is_reminded_once(tmp_path: Path) -> None:
    row, messages = await typed(tmp_path, "There are 42.", calls(TOOL, count=42))
    assert (row["structured"], row["status"]) == ({"count": 42}, "ok")
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "toolResult"]
    assert TOOL in messages[2]["content"]


@pytest.mark.promise("typed.schema_error_says_what_was_wrong")
async def test_an_answer_that_stays_text_is_kept_with_the_reason(tmp_path: Path) -> None:
    row, messages = await typed(tmp_path, "There are 42.", "As I said: 42.", "Never read.")
    assert (row["status"], row["reply"]) == ("ok", "As I said: 42.")
    assert row["schemaError"] == f"{TOOL} was not called."
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]


@pytest.mark.promise("typed.one_correction")
async def test_several_wrong_calls_in_one_answer_are_one_mistake(tmp_path: Path) -> None:
    wrong = {"toolCalls": [{"name": TOOL, "arguments": {"count": "x"}}] * 2}
    row, _ = await typed(tmp_path, wrong, calls(TOOL, count=42))
    assert row["structured"] == {"count": 42}


@pytest.mark.promise("typed.structured_beside_reply")
async def test_an_answer_to_a_send_can_be_typed_and_only_that_turn_is(
    tmp_path: Path, model_requests: Any
) -> None:
    scripts = {BOB: [calls(TOOL, "I counted.", count=42), "ANNOUNCE_SKIP"], ANN: []}
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        answer = await use(gateway, "sessions_send", agentId="bob", message="?", outputSchema=COUNT)
        assert (answer["status"], answer["reply"]) == ("ok", "I counted.")
        assert answer["structured"] == {"count": 42}
        await exchange_ended(gateway, answer["exchangeId"])
    asked = [r for r in model_requests if r.session_key == BOB]
    assert [TOOL in {t.name for t in r.tools} for r in asked] == [True] + [False] * (len(asked) - 1)


@pytest.mark.promise("typed.schemas_are_bounded")
@pytest.mark.parametrize("tool", ["sessions_spawn", "sessions_send"])
async def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_created(
    tmp_path: Path, tool: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}
    given = {"task": "x"} if tool == "sessions_spawn" else {"agentId": "bob", "message": "x"}
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, tool, **given, outputSchema=schema)
        assert answer["status"] == "error" and "pattern" in answer["error"]
        assert "Supported:" in answer["fix"]
        assert (await use(gateway, "subagents"))["total"] == 0
