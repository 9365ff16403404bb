"""Shell commands on nodes: choose the node, get its plan, and run exactly that plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from hobnob.config import Config
from hobnob.errors import BadInput, NodeFailed, NotAllowed, NotFound
from hobnob.fixes import config_set
from hobnob.node_types import Node
from hobnob.nodes.invocations import Invocations
from hobnob.nodes.registry import Nodes
from hobnob.records import Struct
from hobnob.types import Session

Row = dict[str, Any]
RUN, PREPARE = "system.run", "system.run.prepare"
PREPARE_S = 30.0
GRACE_S = 15.0  # beyond the time limit of a command, for its answer
MAX_PLAN_BYTES = 256 * 1024
OUTPUT_CHARS = 64_000


class Plan(Struct, frozen=True):
    """What a node says it will run. `sent` is its own text, which goes back to it unchanged."""

    node: Node
    argv: list[str]
    cwd: str | None
    text: str
    sent: Row | None

    def details(self) -> Row:
        """The plan as a person is shown it."""
        shown = {"argv": self.argv, "cwd": self.cwd}
        return {"host": "node", "node": self.node.shown_name, "nodeId": self.node.node_id, "plan": shown}


class NodeCommands:
    def __init__(self, config: Config, registry: Nodes, invocations: Invocations) -> None:
        self._config = config
        self._nodes = registry
        self._invocations = invocations

    async def choose(self, wanted: str | None) -> Node:
        """The node that commands run on: of the setting, the one named, or the only one there is."""
        fixed = self._config.settings.tools.exec.node
        if fixed is not None:
            node = await self._nodes.named(fixed)
            if wanted is not None and (await self._nodes.named(wanted)).node_id != node.node_id:
                raise NotAllowed(
                    f"Commands on nodes run on {node.shown_name} only.",
                    rule="exec.node",
                    fix=f"Leave node out, or: {config_set('tools.exec.node', wanted)}",
                )
            return node
        if wanted is not None:
            return await self._nodes.named(wanted)
        able = [
            node
            for node in await self._nodes.all()
            if RUN in self._nodes.commands(node) and self._nodes.is_connected(node.node_id)
        ]
        if not able:
            raise NotFound(
                "No node that runs commands is connected.", fix="`hobnob node list` shows the nodes."
            )
        if len(able) > 1:
            names = ", ".join(node.shown_name for node in able[:10])
            raise BadInput(f"Several nodes run commands: {names}.", fix="Name one with node.")
        return able[0]

    async def plan(self, session: Session, node: Node, command: str, workdir: str | None) -> Plan:
        """What the node would run. Raises NodeFailed."""
        argv = ["/bin/sh", "-lc", command]
        if PREPARE not in self._nodes.commands(node):
            return Plan(node, argv, workdir, command, None)
        asked = {"command": argv, "rawCommand": command, "cwd": workdir, **_asker(session)}
        answer = await self._invocations.invoke(
            session.key, node, PREPARE, _given(asked), timeout_s=PREPARE_S
        )
        found = answer.payload.get("plan") if isinstance(answer.payload, dict) else None
        if (
            not isinstance(found, dict)
            or not isinstance(planned := found.get("argv"), list)
            or not planned
            or not all(isinstance(part, str) for part in planned)
            or len(orjson.dumps(found)) > MAX_PLAN_BYTES
        ):
            raise NodeFailed(f"The node {node.shown_name} gave no usable plan.", reason="BAD_PLAN")
        cwd, text = found.get("cwd"), found.get("commandText")
        return Plan(
            node,
            planned,
            cwd if isinstance(cwd, str) else None,
            text if isinstance(text, str) else command,
            found,
        )

    async def run(
        self,
        session: Session,
        plan: Plan,
        *,
        env: Mapping[str, str],
        timeout_s: float,
        run_id: str,
        approved: bool,
    ) -> Row:
        """Run a plan to its end. Raises NodeFailed. Cancelling stops it on the node."""
        asked = {
            "command": plan.argv,
            "rawCommand": plan.text,
            "cwd": plan.cwd,
            "env": dict(env) or None,
            "timeoutMs": int(timeout_s * 1000),
            "runId": run_id,
            "systemRunPlan": plan.sent,
            "approved": True if approved else None,
            "approvalDecision": "allow-once" if approved else None,
            **_asker(session),
        }
        answer = await self._invocations.invoke(
            session.key, plan.node, RUN, _given(asked), timeout_s=timeout_s + GRACE_S
        )
        return _result(plan.node, answer.payload)


def _result(node: Node, payload: Any) -> Row:
    """The outcome of a command as the agent reads it. What a node says is bounded."""
    said = payload if isinstance(payload, dict) else {}
    code = said.get("exitCode")
    if said.get("timedOut"):
        status = "timeout"
    else:
        status = "ok" if code == 0 and said.get("success", True) else "failed"
    text = "".join(str(said.get(part) or "") for part in ("stdout", "stderr"))
    row: Row = {"status": status, "host": "node", "node": node.shown_name}
    row["exitCode"] = code if isinstance(code, int) else None
    if error := said.get("error"):
        row["error"] = str(error)[:1_000]
    return row | {"output": bounded(text)}


def bounded(text: str) -> str:
    """The head and the tail of an output."""
    if len(text) <= OUTPUT_CHARS:
        return text
    head, tail = OUTPUT_CHARS // 4, OUTPUT_CHARS - OUTPUT_CHARS // 4
    return f"{text[:head]}\n[… {len(text) - OUTPUT_CHARS:,} characters left out …]\n{text[-tail:]}"


def _asker(session: Session) -> Row:
    return {"agentId": session.agent_id, "sessionKey": session.key}


def _given(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}
