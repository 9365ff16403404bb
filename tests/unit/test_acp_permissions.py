"""The kind of a harness's tool call, from what it states and from what it shows."""

import pytest
from acp.schema import ToolCallUpdate

from hobnob.runtimes.acp.permissions import KINDS, evident_kind, may_use, strictest

COMMANDS = [
    {"kind": "think", "rawInput": {"command": "ls"}},
    {"kind": "read", "rawInput": {"cmd": ["bash", "-lc", "cat x"], "cwd": "/"}},
    {"kind": "search", "rawInput": {"tool": {"input": [{"shellCommand": "ls"}]}}},
    {"kind": "think", "rawInput": {"script": "print(1)"}},
    {"kind": "think", "rawInput": {"code": "print(1)"}},
    {"kind": "read", "rawInput": {"file": "x", "args": ["-c", "ls"]}},
    {"kind": "think", "rawInput": "rm -r notes"},
    {"kind": "think", "rawInput": ["rm", "-r", "notes"]},
    {"kind": "read", "content": [{"type": "terminal", "terminalId": "t"}]},
    {"kind": "read", "content": [{"type": "diff", "path": "a", "newText": "b"}]},
    {"kind": "think", "rawInput": {"patch": "*** Begin"}},
    {"kind": "think", "_meta": {"terminal_info": {"terminal_id": "t"}}},
]
READS = [
    {"kind": "read", "rawInput": {"file_path": "notes.txt", "offset": 3, "limit": 10}},
    {"kind": "search", "rawInput": {"pattern": "command", "path": ".", "output_mode": "content", "-n": True}},
    {"kind": "think", "rawInput": {"todos": [{"content": "run the script", "status": "pending"}]}},
    {"kind": "read", "rawInput": {"transcript": "t", "command": None}},
    {"kind": "think"},
]


@pytest.mark.parametrize("call", COMMANDS)
def test_a_command_or_a_change_shows_in_the_call(call: dict[str, object]) -> None:
    shown = evident_kind(ToolCallUpdate.model_validate({"toolCallId": "c"} | call))
    assert shown is not None and not may_use("approve-reads", shown)


@pytest.mark.parametrize("call", READS)
def test_a_read_shows_nothing_stricter(call: dict[str, object]) -> None:
    assert evident_kind(ToolCallUpdate.model_validate({"toolCallId": "c"} | call)) is None


def test_an_input_nested_too_deeply_to_be_looked_through_counts_as_a_command() -> None:
    nested: dict[str, object] = {"path": "x"}
    for _ in range(20):
        nested = {"a": nested}
    assert evident_kind(ToolCallUpdate(tool_call_id="c", raw_input=nested)) == "execute"


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_kinds_the_stricter_one_counts_in_either_order(kind: str) -> None:
    assert strictest((kind, "execute")) == strictest(("execute", kind)) == "execute"
    assert strictest((None, kind, None, "think")) == kind


def test_only_reading_searching_and_thinking_are_reads() -> None:
    assert [kind for kind in KINDS if may_use("approve-reads", kind)] == ["think", "search", "read"]
    assert [kind for kind in KINDS if may_use("deny-all", kind)] == []
    assert all(may_use("approve-all", kind) for kind in KINDS)
