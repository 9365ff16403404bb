"""Names in the settings that name nothing are reported, and no others."""

import os
from typing import Any

import pytest
from tests.known_tools import TOOL_GROUPS

from hobnob import checks
from hobnob.config import Settings
from hobnob.models.catalog import open_models
from hobnob.policy.toolsets import BUILT_IN, ToolFacts

KNOWN = [ToolFacts(name, group) for group, names in BUILT_IN.items() for name in names]
AGENTS: dict[str, Any] = {"list": [{"id": "main"}, {"id": "ghost"}]}


async def found(settings: dict[str, Any], env: dict[str, str] | None = None, *own: str) -> list[str]:
    tree = Settings.model_validate({"agents": AGENTS} | settings)
    async with open_models(tree, env or {}) as models:
        tools = [*KNOWN, *map(ToolFacts, own)]
        return [f"{f.message} {f.fix or ''}".strip() for f in checks.findings(tree, models, tools)]


def agent(**settings: Any) -> dict[str, Any]:
    return {"agents": {"list": [{"id": "main", **settings}, {"id": "ghost"}]}}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"tools": {"deny": ["exek"]}},
            "tools.deny names 'exek', and there is no such tool; did you mean 'exec'?",
        ),
        ({"tools": {"allow": ["exec", "raed"]}}, "tools.allow names 'raed'"),
        ({"tools": {"alsoAllow": ["wirte"]}}, "tools.alsoAllow names 'wirte'"),
        ({"tools": {"deny": ["group:runtim"]}}, "did you mean 'group:runtime'?"),
        ({"tools": {"deny": ["exek*"]}}, "tools.deny names 'exek*'"),
        ({"tools": {"deny": ["mcp__wiki__*"]}}, "tools.deny names 'mcp__wiki__*'"),
        ({"tools": {"subagents": {"tools": {"deny": ["exek"]}}}}, "tools.subagents.tools.deny names 'exek'"),
        (agent(tools={"deny": ["exek"]}), "agents.list[main].tools.deny names 'exek'"),
        ({"gateway": {"tools": {"deny": ["raed"]}}}, "gateway.tools.deny names 'raed'"),
        ({"tools": {"agentToAgent": {"allow": ["gost"]}}}, "did you mean 'ghost'? Nobody is meant by it."),
        (agent(subagents={"allowAgents": ["gost"]}), "agents.list[main].subagents.allowAgents names 'gost'"),
        (agent(subagents={"delegate": ["gost"]}), "agents.list[main].subagents.delegate names 'gost'"),
        ({"hooks": {"allowedAgentIds": ["gost"]}}, "hooks.allowedAgentIds names 'gost'"),
        (
            {"hooks": {"mappings": [{"match": {"path": "x"}, "messageTemplate": "x", "agentId": "gost"}]}},
            "config set 'hooks.mappings[0].agentId' ghost",
        ),
        (
            {
                "gateway": {
                    "auth": {"tokens": [{"name": "a", "token": "t", "scopes": [], "agents": ["gost"]}]}
                }
            },
            "gateway.auth.tokens[a].agents names 'gost'",
        ),
        ({"acp": {"allowedAgents": ["claud"], "harnesses": {"claude": {"command": ["x"]}}}}, "names 'claud'"),
        ({"agents": {"defaults": {"model": "antropic/x"}}}, "agents.defaults.model: The model 'antropic/x'"),
        (agent(model={"primary": "ollama/x", "fallbacks": ["nowhere/x"]}), "agents.list[main].model"),
        (agent(subagents={"model": "openai/x"}), "needs an API key"),
    ],
)
async def test_a_name_that_names_nothing_is_reported(settings: dict[str, Any], says: str) -> None:
    (said,) = await found(settings)
    assert says in said


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tools": {"deny": ["exec", " EXEC ", "bash", "group:fs", "sessions", "web_*", "*", "group:mcp"]}},
        {"tools": {"deny": ["mcp__*"]}},
        {
            "tools": {"allow": ["mcp__wiki__search", "mcp__wiki__*", "mcp__wi*"]},
            "mcp": {"servers": {"wiki": {"command": "x"}}},
        },
        {"tools": {"deny": ["roll_dice", "Roll_*"]}},
        {"tools": {"agentToAgent": {"allow": ["gh*", "Main"]}}},
        agent(subagents={"allowAgents": ["*", "GHOST"]}),
        {"acp": {"allowedAgents": ["*"]}},
        {"agents": {"defaults": {"model": "ollama/llama"}}},
    ],
)
async def test_what_names_something_is_not_reported(settings: dict[str, Any]) -> None:
    assert await found(settings, None, "roll_dice") == []


async def test_a_key_in_the_environment_is_found() -> None:
    settings = {"agents": {"defaults": {"model": "openai/x"}}}
    assert len(await found(settings)) == 1
    assert await found(settings, {**os.environ, "OPENAI_API_KEY": "k"}) == []


def test_the_built_in_tools_are_known() -> None:
    assert {f"group:{group}": set(names) for group, names in BUILT_IN.items()} == TOOL_GROUPS
