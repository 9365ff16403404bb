"""Compatibility with configuration files of other systems: older names, and settings that Hobnob ignores.

Both are reported, so that `hobnob doctor` can list them.
"""

from __future__ import annotations

import copy
from typing import Any

Note = tuple[str, str]

IGNORED = """
$schema approvals audio auth broadcast browser canvasHost cli diagnostics discovery env
logging media memory meta nodeHost.agentRuns nodeHost.autoUpdate nodeHost.browserProxy nodeHost.mcp
nodeHost.skills nodeHost.workerRuns plugins secrets skills talk telemetry
ui update web wizard
agents.defaults.blockStreamingBreak agents.defaults.blockStreamingChunk agents.defaults.blockStreamingCoalesce
agents.defaults.blockStreamingDefault agents.defaults.bootstrapMaxChars agents.defaults.bootstrapTotalMaxChars
agents.defaults.cliBackends agents.defaults.compaction.customInstructions
agents.defaults.compaction.identifierInstructions agents.defaults.compaction.identifierPolicy
agents.defaults.compaction.maxActiveTranscriptBytes agents.defaults.compaction.maxHistoryShare
agents.defaults.compaction.memoryFlush.forceFlushTranscriptBytes agents.defaults.compaction.memoryFlush.model
agents.defaults.compaction.midTurnPrecheck
agents.defaults.compaction.mode agents.defaults.compaction.notifyUser
agents.defaults.compaction.postCompactionSections agents.defaults.compaction.postIndexSync
agents.defaults.compaction.provider agents.defaults.compaction.qualityGuard
agents.defaults.compaction.recentTurnsPreserve agents.defaults.compaction.reserveTokens
agents.defaults.compaction.reserveTokensFloor agents.defaults.contextPruning.hardClearRatio
agents.defaults.contextPruning.keepLastAssistants agents.defaults.contextPruning.minPrunableToolChars
agents.defaults.contextPruning.softTrim agents.defaults.contextPruning.softTrimRatio
agents.defaults.elevatedDefault agents.defaults.envelopeTimezone
agents.defaults.heartbeat agents.defaults.humanDelay agents.defaults.imageGenerationModel
agents.defaults.imageMaxDimensionPx agents.defaults.imageModel agents.defaults.mediaMaxMb
agents.defaults.memorySearch agents.defaults.models agents.defaults.pdfModel agents.defaults.repoRoot
agents.defaults.skipBootstrap agents.defaults.timeFormat agents.defaults.typingIntervalSeconds
agents.defaults.userTimezone agents.defaults.verboseDefault
agents.defaults.identity agents.defaults.params
agents.defaults.sandbox.backend agents.defaults.sandbox.browser
agents.defaults.sandbox.docker agents.defaults.sandbox.perSession agents.defaults.sandbox.prune
agents.defaults.sandbox.scope agents.defaults.sandbox.ssh agents.defaults.sandbox.workspaceRoot
agents.defaults.subagents.allowAgents agents.defaults.subagents.requireAgentId
agents.list[].params agents.list[].sandbox.backend agents.list[].sandbox.browser agents.list[].sandbox.docker
agents.list[].sandbox.perSession agents.list[].sandbox.prune agents.list[].sandbox.scope
agents.list[].sandbox.sessionToolsVisibility agents.list[].sandbox.ssh agents.list[].sandbox.workspaceRoot
agents.list[].tools.byProvider agents.list[].tools.elevated agents.list[].tools.exec agents.list[].tools.fs
agents.list[].tools.loopDetection agents.list[].tools.message agents.list[].tools.sandbox
agents.list[].agentDir agents.list[].heartbeat agents.list[].humanDelay
agents.list[].identity.theme agents.list[].identity.avatar agents.list[].memorySearch
agents.list[].runtime agents.list[].skills
agents.list[].thinkingDefault
acp.backend acp.dispatch acp.runtime acp.stream
cron.failureDestination cron.maxRunHistory cron.retry cron.runLog cron.store cron.triggers cron.webhook
gateway.allowRealIpFallback gateway.auth.allowTailscale gateway.auth.rateLimit gateway.auth.trustedProxy
gateway.channelHealthCheckMinutes gateway.controlUi.allowInsecureAuth gateway.controlUi.basePath
gateway.controlUi.dangerouslyAllowHostHeaderOriginFallback gateway.controlUi.dangerouslyDisableDeviceAuth
gateway.controlUi.enabled gateway.controlUi.root gateway.customBindHost gateway.http gateway.mode
gateway.nodes.allowSkills gateway.nodes.browser gateway.nodes.pairing.sshVerify gateway.nodes.pluginTools
gateway.nodes.skills gateway.push gateway.reload gateway.remote gateway.tailscale gateway.tls
hooks.gmail hooks.internal hooks.presets hooks.transformsDir
hooks.mappings[].allowUnsafeExternalContent hooks.mappings[].id hooks.mappings[].sessionMode
hooks.mappings[].transform
messages.messagePrefix
messages.queue.cap messages.queue.debounceMs messages.queue.debounceMsByChannel messages.queue.drop
messages.removeAckAfterReply messages.statusReactions messages.tts
models.bedrockDiscovery models.mode models.pricing
models.providers.*.auth models.providers.*.authHeader models.providers.*.headers
session.forkPolicy session.idleMinutes session.maintenance.archiveDashboardAfter
session.maintenance.coldStorage session.maintenance.highWaterBytes session.maintenance.maxDiskBytes
session.maintenance.preserveRecent session.maintenance.rotateBytes session.notifyOnCreate
session.parentForkMaxTokens session.store
session.typingIntervalSeconds session.typingMode
tools.byProvider tools.elevated tools.exec.applyPatch tools.exec.cleanupMs
tools.exec.notifyOnExit tools.exec.pathPrepend tools.exec.safeBins
tools.fs tools.links tools.loopDetection tools.media tools.message
tools.sandbox tools.subagents.model tools.web.fetch.cacheTtlMinutes
tools.web.fetch.firecrawl tools.web.fetch.readability tools.web.fetch.userAgent tools.web.search
routing
commands.allowFrom commands.native commands.text commands.bash commands.config commands.debug commands.restart
commands.useAccessGroups commands.mcp commands.plugins
session.threadBindings.spawnSessions session.threadBindings.defaultSpawnContext
messages.groupChat.visibleReplies messages.groupChat.unmentionedInbound
channels.defaults.contextVisibility channels.defaults.implicitMentions channels.defaults.heartbeat
channels.modelByChannel channels.defaults.botLoopProtection.cooldownSeconds
channels.*.configWrites channels.*.healthMonitor channels.*.heartbeatVisibility channels.*.joinIntro
channels.*.execApprovals channels.*.actions channels.*.capabilities channels.*.markdown channels.*.commands
channels.*.dmHistoryLimit channels.*.dms channels.*.contextVisibility channels.*.mentionPatterns
channels.*.reactionNotifications channels.*.reactionLevel channels.*.retry channels.*.network channels.*.proxy
channels.*.richMessages channels.*.customCommands channels.*.errorPolicy channels.*.blockStreaming
channels.*.streaming.block channels.*.streaming.preview channels.*.streaming.progress
channels.*.streaming.nativeTransport channels.*.implicitMentions
channels.slack.thread channels.slack.slashCommand channels.slack.userToken channels.slack.typingReaction
channels.slack.replyToModeByChatType channels.slack.postAs
tools.swarm.enabled tools.swarm.maxConcurrent tools.swarm.defaultAgentId
bindings[].session bindings[].type bindings[].acp
""".split()


def adapt(raw: dict[str, Any]) -> tuple[dict[str, Any], list[Note], list[Note]]:
    """The settings under their current names, the renamed ones, and the ignored ones."""
    renamed: list[Note] = []
    raw = _moved(raw, renamed)
    ignored: list[Note] = []
    for pattern in IGNORED:
        _drop(raw, pattern.split("."), "", ignored)
    return raw, renamed, ignored


def _moved(raw: dict[str, Any], notes: list[Note]) -> dict[str, Any]:
    """Move old sections to their current place. A value of the wrong type stays; validation refuses it."""
    raw = copy.deepcopy(raw)
    if isinstance(raw.get("agent"), dict) and isinstance(raw.get("agents", {}), dict):
        notes.append(("agent", "is now called agents.defaults"))
        agents, old = raw.setdefault("agents", {}), raw.pop("agent")
        _move_child_tools(raw, old, notes)
        agents["defaults"] = merged(old, agents.get("defaults", {}))
    for section, name in (("routing", "agents"), ("agents", "entries")):
        holder, agents = raw.get(section), raw.get("agents", {})
        if not isinstance(holder, dict) or not isinstance(agents, dict):
            continue
        if not _agents_by_id(holder.get(name)) or not isinstance(agents.get("list", []), list):
            continue
        notes.append((f"{section}.{name}", "is now called agents.list, with the name as id"))
        by_id = holder.pop(name)
        agents = raw.setdefault("agents", {})
        agents["list"] = [*agents.get("list", []), *({"id": i, **(a or {})} for i, a in by_id.items())]
    if not raw.get("routing"):
        raw.pop("routing", None)
    _move_node_commands(raw, notes)
    return _renamed_matches(raw, notes)


def _move_child_tools(raw: dict[str, Any], agent: dict[str, Any], notes: list[Note]) -> None:
    """Move `agent.subagents.tools` to `tools.subagents.tools`, where the current setting wins."""
    children, tools = agent.get("subagents"), raw.get("tools", {})
    if not isinstance(children, dict) or "tools" not in children or not isinstance(tools, dict):
        return
    current = tools.get("subagents", {})
    if not isinstance(current, dict):
        return
    notes.append(("agent.subagents.tools", "is now called tools.subagents.tools"))
    old = {"tools": children.pop("tools")}
    raw["tools"] = {**tools, "subagents": merged(old, current)}


def _move_node_commands(raw: dict[str, Any], notes: list[Note]) -> None:
    """Move `gateway.nodes.allowCommands` and `denyCommands`; lists under both names count."""
    gateway = raw.get("gateway")
    nodes = gateway.get("nodes") if isinstance(gateway, dict) else None
    commands = nodes.get("commands", {}) if isinstance(nodes, dict) else None
    if not isinstance(nodes, dict) or not isinstance(commands, dict):
        return
    for old, name in (("allowCommands", "allow"), ("denyCommands", "deny")):
        if isinstance(nodes.get(old), list) and isinstance(commands.get(name, []), list):
            notes.append((f"gateway.nodes.{old}", f"is now called gateway.nodes.commands.{name}"))
            nodes["commands"] = commands = {**commands, name: [*commands.get(name, []), *nodes.pop(old)]}


def _agents_by_id(value: Any) -> bool:
    return isinstance(value, dict) and all(a is None or isinstance(a, dict) for a in value.values())


def merged(lower: Any, upper: Any) -> Any:
    """Two layers of settings as one; the upper one wins."""
    if not isinstance(lower, dict) or not isinstance(upper, dict):
        return upper
    both = {key: merged(lower[key], upper[key]) for key in lower.keys() & upper.keys()}
    return {**lower, **upper, **both}


def _renamed_matches(raw: dict[str, Any], notes: list[Note]) -> dict[str, Any]:
    """Rename `surface` and `provider` in send rules to `channel`."""
    session = raw.get("session")
    policy = session.get("sendPolicy") if isinstance(session, dict) else None
    rules = policy.get("rules") if isinstance(policy, dict) else None
    if not isinstance(session, dict) or not isinstance(policy, dict) or not isinstance(rules, list):
        return raw
    new_rules = []
    for i, rule in enumerate(rules):
        match = rule.get("match") if isinstance(rule, dict) else None
        if isinstance(match, dict):
            for old in ("surface", "provider"):
                if old in match:
                    notes.append((f"session.sendPolicy.rules[{i}].match.{old}", "is now called channel"))
                    rest = {k: v for k, v in match.items() if k != old}
                    match = {"channel": match[old], **rest}
            rule = {**rule, "match": match}
        new_rules.append(rule)
    return {**raw, "session": {**session, "sendPolicy": {**policy, "rules": new_rules}}}


def _drop(node: Any, pattern: list[str], path: str, notes: list[Note]) -> None:
    """Remove the settings that match a pattern, and note each."""
    name, rest = pattern[0], pattern[1:]
    if not isinstance(node, dict):
        return
    if name == "*":
        for key, child in node.items():
            _drop(child, rest, f"{path}{key}.", notes)
    elif name.endswith("[]"):
        items = node.get(name[:-2])
        for i, child in enumerate(items if isinstance(items, list) else []):
            _drop(child, rest, f"{path}{name[:-2]}[{i}].", notes)
    elif rest:
        _drop(node.get(name), rest, f"{path}{name}.", notes)
    elif name in node:
        del node[name]
        notes.append((f"{path}{name}", "is ignored: Hobnob does not use it"))
