"""The agents of `hobnob demo` and the script of their model."""

from __future__ import annotations

from typing import Any

from hobnob.exchanges import REPLY_SKIP

NAMES = {"ada": "Ada", "bo": "Bo", "cy": "Cy"}
COLOURS = {"ada": "cyan", "bo": "green", "cy": "magenta"}
_DELAY_MS = 100
_CHILD_DELAY_MS = 1200  # longer than Ada takes to check on it and end her turn


def _says(text: str, *, delay_ms: int = _DELAY_MS) -> dict[str, Any]:
    return {"text": text, "delayMs": delay_ms}


_TABLES = {
    "type": "object",
    "properties": {"tables": {"type": "integer", "minimum": 0}},
    "required": ["tables"],
}


def _counts(street: str) -> dict[str, Any]:
    """A call that has the tables of a street counted."""
    task = f"Count the tables in {street.title()} Street."
    arguments = {"task": task, "label": street, "collect": True, "groupId": "tables", "outputSchema": _TABLES}
    return {"name": "sessions_spawn", "arguments": arguments}


def _calls(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"toolCalls": [{"name": tool, "arguments": arguments}], "delayMs": _DELAY_MS}


_ADA = [
    # Plan the street party on Saturday.
    _calls("sessions_list"),
    _calls("sessions_search", query="Saturday weather"),
    _calls("sessions_history", sessionKey="agent:bo:main"),
    _calls("sessions_send", sessionKey="agent:bo:main", message="How long does it stay dry on Saturday?"),
    _says("It stays dry until five. The party begins at two."),
    # Reply turns: they answer each other until one of them has nothing to add.
    _says("Then we end at half past four. Can you bring the kites?"),
    _says(REPLY_SKIP),
    # Do we have enough chairs?
    _calls("agents_list"),
    _calls("sessions_spawn", task="Count the chairs. We expect 40 guests.", label="chairs", agentId="bo"),
    _calls("subagents"),
    _calls("session_status"),
    _calls("sessions_yield", message="The chairs are being counted."),
    # The sub-agent's report starts her next turn.
    _says("Two chairs are missing. I will borrow them."),
    # How many tables do we have?
    {"toolCalls": [_counts("elm"), _counts("oak"), _counts("ash")], "delayMs": _DELAY_MS},
    _calls("agents_wait", groupId="tables"),
    _says("Each street has four tables, twelve in all."),
    # Design an invitation.
    _calls(
        "sessions_spawn",
        task="Design it.",
        label="card",
        collect=True,
        groupId="card",
        budget={"tokens": 500},
    ),
    _calls("agents_wait", groupId="card"),
    _says("500 tokens do not pay one model call, so none was made. I will ask for more."),
    # What is in Cy's books?
    _calls("sessions_history", sessionKey="agent:cy:main"),
    _says("I may not look into Cy's session. The refusal says which rule it is, and what would change it."),
]
_BO = [
    _says("Sunny on Saturday, and windy from three on."),
    _says("Dry until five. The wind comes up at three."),
    _says("Gladly. I bring six."),
    _says("Ada and I agreed: the party is from two to half past four, and I bring six kites."),
]
_CY = [_says("200 is put aside.")]
_CHILD = [
    _says("I have counted twice: 38 chairs.", delay_ms=_CHILD_DELAY_MS),
    _says("38 chairs for 40 guests.\nNotes: two are missing."),
]

SETTINGS: dict[str, Any] = {
    "agents": {
        "list": [
            {"id": "ada", "name": "Ada", "default": True, "subagents": {"allowAgents": ["bo"]}},
            {"id": "bo", "name": "Bo"},
            {"id": "cy", "name": "Cy"},
        ]
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True, "allow": ["ada", "bo"]}},
    "models": {
        "rehearsal": {
            "scripts": {
                "agent:ada:main": _ADA,
                "agent:bo:main": _BO,
                "agent:cy:main": _CY,
                "agent:ada:*": [_calls("structured_output", tables=4)],
                "*": _CHILD,
            }
        }
    },
}
