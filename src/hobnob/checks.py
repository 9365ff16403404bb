"""Checks of the settings: models and their keys, tools and agents named in lists, chats, shared secrets.

A name that does not exist is valid, because a tool may come later. But a mistyped entry of a deny list denies
nothing, so `hobnob doctor` and the log of the gateway say so.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Iterator
from typing import Literal

from hobnob.config import Settings
from hobnob.config.agents import ModelSetting
from hobnob.config.tools import SubagentToolRules, ToolRules
from hobnob.errors import BadInput
from hobnob.fixes import config_set
from hobnob.models.catalog import Catalog
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.policy import toolsets
from hobnob.policy.toolsets import ToolFacts
from hobnob.records import Struct
from hobnob.store import is_postgres

_MCP = "mcp__"


class Finding(Struct, frozen=True):
    """One result of a check. `fix` says what to change."""

    check: str
    state: Literal["ok", "warn", "fail"]
    message: str
    fix: str | None = None


class _Names(Struct, frozen=True):
    """A list of names in the settings."""

    path: str
    names: list[str]
    effect: str
    """What a name that does not exist means."""


def findings(settings: Settings, models: Catalog, tools: Iterable[ToolFacts]) -> list[Finding]:
    """Everything in the settings that names something which does not exist or cannot be used."""
    return [
        *model_findings(settings, models),
        *_tool_names(settings, list(tools)),
        *_agent_names(settings),
        *channel_findings(settings),
        *secret_findings(settings),
    ]


def used_models(settings: Settings) -> dict[str, str]:
    """The models that turns will use, each with the path of the setting that names it."""
    chosen: list[tuple[str, ModelSetting | None]] = [
        ("agents.defaults.model", settings.agents.defaults.model),
        ("agents.defaults.subagents.model", settings.agents.defaults.subagents.model),
    ]
    for agent in settings.agent_list():
        here = f"agents.list[{agent.id}]"
        chosen += [(f"{here}.model", agent.model), (f"{here}.subagents.model", agent.subagents.model)]
    found: dict[str, str] = {}
    for path, model in chosen:
        for name in (model.primary, *model.fallbacks) if model else ():
            if name:
                found.setdefault(name, path)
    for number, mapping in enumerate(settings.hooks.mappings):
        if mapping.model:
            found.setdefault(mapping.model, f"hooks.mappings[{number}].model")
    return found or {REHEARSAL.name: "agents.defaults.model"}


def model_findings(settings: Settings, models: Catalog) -> Iterator[Finding]:
    """Models that cannot be opened: an unknown name, or a provider without its key."""
    for name, path in used_models(settings).items():
        try:
            models.model(name)
        except BadInput as problem:
            yield Finding("model", "fail", f"{path}: {problem.message}", problem.fix)


def channel_findings(settings: Settings) -> Iterator[Finding]:
    """Chats that would surprise: several people in one session, bindings and groups without their agent."""
    known = [agent.id for agent in settings.agent_list()]
    for number, binding in enumerate(settings.bindings):
        if binding.agent_id not in known:
            listed = _Names(f"bindings[{number}].agentId", [binding.agent_id], "The default agent answers")
            yield _unknown("channels", listed, binding.agent_id, "agent", known)
        if binding.match.channel not in settings.channels.configured:
            message = f"bindings[{number}] is for the channel {binding.match.channel!r}, which is not set up."
            yield Finding("channels", "warn", message, f"hobnob channels add {binding.match.channel}")
    if settings.session.dm_scope != "main":
        return
    for name, root in settings.channels.configured.items():
        people = [entry for entry in root.allow_from if entry not in root.owners]
        if root.enabled and (root.dm_policy == "open" or len(people) > 1):
            message = (
                f"Several people may write to the bot on {name}, and session.dmScope is main: they share one"
                " conversation and read what the others wrote."
            )
            yield Finding("channels", "warn", message, config_set("session.dmScope", "per-channel-peer"))


def secret_findings(settings: Settings) -> Iterator[Finding]:
    """Secrets that a second gateway on the same database would not have."""
    store = settings.store
    if store.url is None or not is_postgres(store.url) or store.secret_key is not None:
        return
    alone = "the tokens of devices and nodes, and MCP grants"
    if settings.gateway.auth.token is None:
        alone = f"the generated token of the owner, {alone}"
    yield Finding(
        "secrets",
        "warn",
        f"store.url is PostgreSQL, and store.secretKey is not set: {alone} are valid at this gateway only.",
        "One gateway needs nothing. For several, set HOBNOB_STORE_KEY for each of them to the same text, made"
        " once with: openssl rand -base64 32",
    )


def _tool_names(settings: Settings, known: list[ToolFacts]) -> Iterator[Finding]:
    for listed in _tool_lists(settings):
        for name in listed.names:
            if not _names_a_tool(name, known, settings):
                names = [tool.name for tool in known] + [f"group:{group}" for group in toolsets.GROUPS]
                yield _unknown("tools", listed, name, "tool", names)


def _tool_lists(settings: Settings) -> Iterator[_Names]:
    rules: list[tuple[str, ToolRules | SubagentToolRules]] = [
        ("tools", settings.tools),
        ("tools.subagents.tools", settings.tools.subagents.tools),
        *((f"agents.list[{agent.id}].tools", agent.tools) for agent in settings.agents.entries),
    ]
    for path, each in rules:
        yield _Names(f"{path}.allow", each.allow or [], "It allows nothing")
        yield _Names(f"{path}.alsoAllow", each.also_allow, "It allows nothing")
        yield _Names(f"{path}.deny", each.deny, "It denies nothing")
    yield _Names("gateway.tools.allow", settings.gateway.tools.allow, "It allows nothing")
    yield _Names("gateway.tools.deny", settings.gateway.tools.deny, "It denies nothing")
    yield _Names("gateway.nodes.tools", settings.gateway.nodes.tools, "It allows nothing")


def _names_a_tool(name: str, known: list[ToolFacts], settings: Settings) -> bool:
    """Whether an entry of a list names a tool, a group, or tools that an MCP server may have."""
    if any(toolsets.named(tool, [name]) for tool in known) or toolsets.is_group(name):
        return True
    plain = name.strip().lower()
    start = plain.partition("*")[0]
    servers = [f"{_MCP}{server}__" for server in settings.mcp.servers]
    return start == _MCP or any(
        start.startswith(s) or (start != plain and s.startswith(start)) for s in servers
    )


def _agent_names(settings: Settings) -> Iterator[Finding]:
    agents = [agent.id for agent in settings.agent_list()]
    for listed in _agent_lists(settings):
        for name in listed.names:
            if not any(fnmatch.fnmatchcase(agent, name.strip().lower()) for agent in agents):
                yield _unknown("agents", listed, name, "agent", agents)
    acp = settings.acp
    for name in acp.allowed_agents:
        if name.strip() != "*" and name.strip() not in acp.harnesses:
            listed = _Names("acp.allowedAgents", list(acp.allowed_agents), "It allows nothing")
            yield _unknown("acp", listed, name, "harness", list(acp.harnesses))


def _agent_lists(settings: Settings) -> Iterator[_Names]:
    nobody = "Nobody is meant by it"
    yield _Names("tools.agentToAgent.allow", settings.tools.agent_to_agent.allow, nobody)
    for agent in settings.agents.entries:
        here = f"agents.list[{agent.id}].subagents"
        yield _Names(f"{here}.allowAgents", agent.subagents.allow_agents, nobody)
        yield _Names(f"{here}.delegate", list(agent.subagents.delegate), nobody)
    for number, grant in enumerate(settings.grants):
        for side, name in (("from", grant.from_agent), ("to", grant.to)):
            if name not in settings.acp.harnesses:
                yield _Names(f"grants[{number}].{side}", [name], "It grants nothing")
    yield _Names("hooks.allowedAgentIds", settings.hooks.allowed_agent_ids, nobody)
    for token in settings.gateway.auth.tokens:
        yield _Names(f"gateway.auth.tokens[{token.name}].agents", list(token.agents or []), nobody)
    for number, mapping in enumerate(settings.hooks.mappings):
        if mapping.agent_id:
            yield _Names(f"hooks.mappings[{number}].agentId", [mapping.agent_id], "Its calls are refused")


def _unknown(check: str, listed: _Names, name: str, kind: str, known: list[str]) -> Finding:
    close = difflib.get_close_matches(name.strip().lower(), known, 1, 0.6)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    message = f"{listed.path} names {name!r}, and there is no such {kind}{hint} {listed.effect}."
    changed = [close[0] if each == name else each for each in listed.names] if close else []
    single = listed.path.endswith((".agentId", ".from", ".to"))
    value = changed[0] if changed and single else changed
    return Finding(
        check, "warn", message, f"To correct it: {config_set(listed.path, value)}" if close else None
    )
