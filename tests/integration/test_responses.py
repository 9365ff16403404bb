"""Agents as models of OpenAI's responses API, over a real socket."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import texts
from tests.integration.web import FOR_BOB, READER, WRITER, Answered, Web, web_of

from hobnob.models import Request
from hobnob.testing import calls, script

PATH = "/v1/responses"


async def respond(web: Web, said: Any, *, headers: Any = None, token: str = WRITER, **more: Any) -> Answered:
    body = {"model": "hobnob", "input": said, **more}
    return await web.ask("POST", PATH, body, headers=headers or {}, token=token)


def text(answer: Answered) -> str:
    assert answer.status == 200, answer.json
    found: str = answer.json["output"][0]["content"][0]["text"]
    return found


async def events(web: Web, said: Any, **more: Any) -> list[dict[str, Any]]:
    body = {"model": "hobnob", "input": said, "stream": True, **more}
    async with web.open("POST", PATH, body) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        blocks = (await response.text()).strip().split("\n\n")
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@pytest.mark.promise("gateway.responses_answers")
async def test_an_agent_answers_with_a_response(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        answer = await respond(web, "what is 6 * 7?")
        assert text(answer) == "6 * 7 = 42"
        assert (answer.json["object"], answer.json["status"]) == ("response", "completed")
        assert answer.json["id"].startswith("resp_")
        usage = answer.json["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0


@pytest.mark.promise("gateway.responses_continue")
async def test_a_previous_response_continues_its_session(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        first = await respond(web, "remember the milk")
        other = await respond(web, "what do you remember?")
        assert "milk" not in text(other)
        second = await respond(web, "what do you remember?", previous_response_id=first.json["id"])
        assert text(second) == "You told me: the milk"
        third = await respond(web, "say bye", previous_response_id=second.json["id"])
        key = third.headers["X-Hobnob-Session-Key"]
        assert key == first.headers["X-Hobnob-Session-Key"]
        assert await texts(web.gateway, key, "user") == [
            "remember the milk",
            "what do you remember?",
            "say bye",
        ]


@pytest.mark.promise("gateway.responses_continue")
async def test_a_previous_response_is_found_after_a_restart(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        first = await respond(web, "remember the milk")
    async with web_of(tmp_path) as web:
        second = await respond(web, "what do you remember?", previous_response_id=first.json["id"])
        assert text(second) == "You told me: the milk"


async def test_a_response_that_the_caller_may_not_read_is_unknown(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        first = await respond(web, "say hi")
        for response_id in (first.json["id"], "resp_none"):
            refused = await respond(web, "and?", previous_response_id=response_id, token=FOR_BOB)
            assert (refused.status, refused.json["error"]["code"]) == (404, "not_found")
        assert (await respond(web, "x", token=READER)).status == 403


@pytest.mark.promise("gateway.responses_streams")
async def test_a_response_is_streamed_as_numbered_events(tmp_path: Path) -> None:
    async with web_of(tmp_path, script("One two three.", session="*")) as web:
        found = await events(web, "go")
        kinds = [event["type"] for event in found]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "One two three."
        last = found[-1]["response"]
        assert last["output"][0]["content"][0]["text"] == "One two three."
        assert last["id"] == found[0]["response"]["id"]
        assert last["usage"]["total_tokens"] > 0


async def test_a_turn_that_fails_is_reported_in_the_stream(tmp_path: Path) -> None:
    async with web_of(tmp_path, script({"error": "the model broke"}, session="*")) as web:
        found = await events(web, "go")
        assert found[-1]["type"] == "response.failed"
        assert "the model broke" in found[-1]["response"]["error"]["message"]


async def test_instructions_and_earlier_input_reach_the_model(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    said = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "My name is Zoe."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"role": "user", "content": "Who am I?"},
    ]
    async with web_of(tmp_path) as web:
        await respond(web, said, instructions="You are a clerk.", reasoning={"effort": "high"})
    [request] = model_requests
    assert "You are a clerk.\n\nBe brief." in request.system
    assert "My name is Zoe." in str(request.messages[-1]) and "Who am I?" in str(request.messages[-1])
    assert request.thinking == "high"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"tools": [{"type": "function", "name": "x"}]}, "tools"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"text": {"format": {"type": "json_schema"}}}, "response_format"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
            "function_call_output",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": []}, "empty"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_name(
    tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    async with web_of(tmp_path) as web:
        refused = await respond(web, more.pop("input", "hi"), **more)
        assert refused.status == 400
        assert why in refused.json["error"]["message"]


async def test_a_tool_call_in_the_turn_does_not_end_the_response(tmp_path: Path) -> None:
    steps = (calls("agents_list", "Looking."), "Found.")
    async with web_of(tmp_path, script(*steps, session="*")) as web:
        assert text(await respond(web, "go")) == "Found."
