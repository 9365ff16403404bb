"""Input made to cost much: each parser takes time in proportion to its length, or refuses it."""

import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from hobnob import briefings, error_texts, json_input, parameters
from hobnob.api.event_frames import TextSoFar
from hobnob.api.routes import hook_templates
from hobnob.config import Settings
from hobnob.models import Request, failures
from hobnob.models.answer import MAX_CALLS, MAX_CHARS, Answer
from hobnob.models.failures import CallFailed
from hobnob.models.formats import google
from hobnob.models.rehearsal import Rehearsal
from hobnob.models.remote import WIRE_FORMATS, _read
from hobnob.requests import SearchQuery
from hobnob.sessions import presentation
from hobnob.workspaces.guest import diffs


def repeated(piece: str, chars: int = 1_000_000) -> str:
    return piece * (chars // len(piece))


def explained(fields: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as found:
        parameters.validate(SearchQuery, fields)
    return parameters.explain(SearchQuery, found.value)


def signed(pieces: list[str]) -> None:
    answer = Answer()
    for piece in pieces:
        answer.sign_thinking(piece)


def whole_texts(deltas: list[str]) -> int:
    text = TextSoFar()
    return sum(len(text.add(delta) or "") for delta in deltas)


def first_and_last(text: str) -> tuple[str, str]:
    """Two texts that only differ in the order of their lines."""
    lines = text.splitlines()
    return text, "\n".join(lines[i * 7 % len(lines)] for i in range(len(lines)))


@pytest.mark.parametrize(
    ("run", "given"),
    [
        (briefings._parts, "Status: done\n" + repeated("x\n", 3_000_000)),
        (briefings._parts, repeated("\n") + "x"),
        (briefings._indented, repeated("status\n")),
        (briefings.unmarked, repeated("[From the session ")),
        (lambda text: hook_templates.render(text, {}), "{{" + repeated(" ")),
        (lambda code: failures.from_stream({"message": "no", "type": code}), repeated("prompt ", 10_000_000)),
        (error_texts.summary, repeated("\n    at ")),
        (error_texts.summary, repeated(" at a (")),
        (lambda text: presentation.snippet(text, ["zebra"] * 2000), repeated("a word ", 4_000_000)),
        (lambda text: presentation.sanitised({"content": text}), repeated('password="a', 20_000_000)),
        (presentation.shown_text, repeated('password="a', 20_000_000)),
        (explained, {f"limi{n}": 1 for n in range(100_000)}),
        (signed, ["a" * 200] * 20_000),
        (whole_texts, ["abcd"] * 500_000),
        (lambda texts: diffs.unified(*texts, "a", "b"), first_and_last(repeated("1\n2\n3\n4\n5\n", 400_000))),
    ],
)
def test_the_time_is_in_proportion_to_the_length(run: Callable[[Any], Any], given: Any) -> None:
    began = time.process_time()
    run(given)
    assert time.process_time() - began < 4  # in proportion to its square it would be minutes


@pytest.mark.parametrize(
    "text", ["1+" * 500_000 + "1", "ask " + " " * 1_000_000, "call x {" + "}" * 1_000_000]
)
async def test_the_rehearsal_model_takes_any_text(text: str) -> None:
    model = Rehearsal(Settings())
    request = Request(model="rehearsal", system="", messages=[{"role": "user", "content": text}])
    began = time.process_time()
    assert [event async for event in model.stream(request)]
    assert time.process_time() - began < 4


async def test_the_rehearsal_model_plays_blanks() -> None:
    settings = Settings.model_validate({"models": {"rehearsal": {"scripts": {"*": [" " * 1_000_000]}}}})
    request = Request(model="rehearsal", system="", messages=[{"role": "user", "content": "go"}])
    began = time.process_time()
    assert len([event async for event in Rehearsal(settings).stream(request)]) == 2
    assert time.process_time() - began < 4


def test_an_answer_with_very_many_calls_is_garbled() -> None:
    reader = google.Reader()
    part = {"functionCall": {"name": "x", "args": {}}}
    with pytest.raises(CallFailed, match="500 tool calls"):
        reader.read({"candidates": [{"content": {"parts": [part] * (MAX_CALLS + 2)}}]})


@pytest.mark.parametrize("add", ["add_text", "add_thinking", "sign_thinking"])
def test_an_answer_that_is_too_long_is_garbled(add: str) -> None:
    answer = Answer()
    with pytest.raises(CallFailed, match="more than 4,000,000 characters"):
        for _ in range(5):
            getattr(answer, add)("x" * (MAX_CHARS // 4))


@pytest.mark.parametrize("api", WIRE_FORMATS)
def test_a_chunk_with_very_many_lists_is_garbled(api: Any) -> None:
    data = b'{"x": [' + b"[]," * json_input.MAX_CONTAINERS + b"[]]}"
    with pytest.raises(CallFailed, match="invalid chunk"):
        _read(WIRE_FORMATS[api].Reader(), data)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_json_is_read_up_to_a_depth_that_can_be_written_again_inside_other_json() -> None:
    found = json_input.loads(nested(json_input.MAX_DEPTH))
    assert orjson.dumps([[[[[found]]]]])
    for depth in (json_input.MAX_DEPTH + 1, 254, 255, 1000, 5000, 200_000):
        with pytest.raises(ValueError, match=r"nested deeper|depth limit"):
            json_input.loads(nested(depth))
    assert json_input.loads("[" + "[]," * 1000 + "[]]")  # many, but not deep


def test_json_with_very_many_objects_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(json_input.TooComplex, match="250,000 objects and lists"):
        json_input.loads(b"[" + b"{}," * json_input.MAX_CONTAINERS + b"{}]")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("The model is overloaded.", "The model is overloaded."),
        (
            "boom: Traceback (most recent call last):\n  File \"/srv/a.py\", line 1, in b\nKeyError: 'c'",
            "boom:",
        ),
        (
            "TypeError: x is undefined\n    at run (/srv/app.js:3:7)\n    at node:internal/a",
            "TypeError: x is undefined",
        ),
        ("Error: no at run (/srv/app.js:3:7)", "Error: no"),
        ("java.lang.X: no\n\tat com.example.Main.run(Main.java:5)", "java.lang.X: no"),
        ("panic: no\\n\\ngoroutine 1 [running]:\\nmain.main()", "panic: no"),
        ('{"detail": "no\\n  File \\"/srv/a.py\\", line 1"}', '{"detail": "no'),
        ("Traceback (most recent call last):\n  …", ""),
        ("meet me at the bar (tonight)", "meet me at the bar (tonight)"),
        ("#12 is missing", "#12 is missing"),
    ],
)
def test_the_summary_of_an_error_ends_before_its_stack_trace(text: str, kept: str) -> None:
    assert error_texts.summary(text) == kept


def test_the_summary_of_an_error_is_redacted_before_it_is_cut() -> None:
    secret = "sk-" + "proj-" + "a1B2" * 20
    text = f"{'x' * 480} key {secret}"
    assert "a1B2a1B2" not in error_texts.summary(text)
