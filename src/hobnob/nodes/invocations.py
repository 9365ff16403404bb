"""Invoke commands on nodes: one request, progress, one answer; bounded in time, size and number.

A node may answer twice, late, never, or with too much. Only the first answer in time counts, and only if it
comes from the node that was asked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from hobnob import json_input
from hobnob.errors import BadInput, Conflict, LimitReached, NodeFailed, NotAllowed, NotFound
from hobnob.fixes import config_set
from hobnob.node_types import Node
from hobnob.nodes.registry import NodeConnection, Nodes
from hobnob.records import Struct
from hobnob.store import Store, idempotency
from hobnob.types import new_id

Row = dict[str, Any]
Progress = Callable[[Row], None]
DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 30.0, 24 * 3600.0
MAX_RESULT_BYTES = 1024 * 1024
MAX_PARAMS_BYTES = 256 * 1024
MAX_CHUNK_CHARS = 16_384
MAX_PROGRESS_CHARS = 1024 * 1024
MAX_IN_FLIGHT = 64  # of one node
_MESSAGE_CHARS = 1_000
_CODE_CHARS = 80


class Answer(Struct, frozen=True):
    """What a node answered to a command."""

    payload: Any = None

    @property
    def json(self) -> str:
        return orjson.dumps(self.payload).decode()


@dataclass(slots=True)
class _Invocation:
    invoke_id: str
    node_id: str
    command: str
    key: str
    progress: list[Progress]
    answer: asyncio.Future[Answer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    seq: int = -1
    progress_chars: int = 0

    def fail(self, message: str, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(NodeFailed(message, reason=reason))


class Invocations:
    """The commands that nodes are working on."""

    def __init__(self, store: Store, registry: Nodes) -> None:
        self._store = store
        self._nodes = registry
        self._open: dict[str, _Invocation] = {}
        self._by_key: dict[tuple[str, str], _Invocation] = {}
        registry.on_lost.append(self._node_lost)

    async def invoke(
        self,
        caller: str,
        node: Node,
        command: str,
        params: Any = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        idempotency_key: str | None = None,
        progress: Progress | None = None,
    ) -> Answer:
        """The answer of a node. Raises NodeFailed, NotAllowed, BadInput, Conflict or LimitReached.

        The same key from the same caller gives the same answer, and the node is asked once.
        """
        params_json = orjson.dumps(params)
        if len(params_json) > MAX_PARAMS_BYTES:
            raise BadInput(
                f"The parameters have {len(params_json):,} bytes; the limit is {MAX_PARAMS_BYTES:,}."
            )
        self._check_command(node, command)
        if idempotency_key is None:
            return await self._run(node, command, params_json, timeout_s, new_id(), progress, caller)
        running = self._by_key.get((caller, idempotency_key))
        fingerprint = hashlib.sha256(
            orjson.dumps([node.node_id, command]) + orjson.dumps(params, option=orjson.OPT_SORT_KEYS)
        ).hexdigest()
        scope = f"node:{caller}"
        if await self._store.read_small(idempotency.recall, scope, idempotency_key) is None:
            self._ready(node)  # what was never dispatched may be tried again under the same key
        began, stored = await self._store.write(idempotency.begin, scope, idempotency_key, fingerprint)
        if stored is not None:
            return _restored(stored)
        if began:
            running = running or self._by_key.get((caller, idempotency_key))
            if running is None:
                raise Conflict(
                    f"{command} began under this idempotency key, and its outcome is unknown.",
                    fix="Check whether it had its effect before you invoke it with another key.",
                )
            if progress is not None:
                running.progress.append(progress)
            return await asyncio.shield(running.answer)
        try:
            answer = await self._run(node, command, params_json, timeout_s, idempotency_key, progress, caller)
        except NodeFailed as failure:
            await self._store.write(idempotency.finish, scope, idempotency_key, _failed(failure))
            raise
        await self._store.write(
            idempotency.finish, scope, idempotency_key, orjson.dumps({"payload": answer.payload}).decode()
        )
        return answer

    def cancel(self, caller: str, idempotency_key: str) -> bool:
        """Cancel the invocation of a caller. False when it is not running."""
        running = self._by_key.get((caller, idempotency_key))
        if running is None:
            return False
        self._tell_cancel(running)
        running.fail("The command was cancelled.", "CANCELLED")
        return True

    # -- what nodes say

    def result(
        self, node_id: str, invoke_id: str, *, ok: bool, payload: Any, payload_json: str | None, error: Any
    ) -> bool:
        """Take an answer. False when nothing waits for it: it is late, a repeat, or somebody else's."""
        found = self._open.get(invoke_id)
        if found is None or found.node_id != node_id or found.answer.done():
            return False
        if not ok:
            found.fail(*_error(error))
            return True
        if payload_json is not None:
            if len(payload_json) > MAX_RESULT_BYTES:
                found.fail(_too_large(len(payload_json)), "RESULT_TOO_LARGE")
                return True
            try:
                payload = json_input.loads(payload_json) if payload_json else None
            except ValueError:
                found.fail("The node answered with something that is not JSON.", "BAD_RESULT")
                return True
        elif (size := len(orjson.dumps(payload))) > MAX_RESULT_BYTES:
            found.fail(_too_large(size), "RESULT_TOO_LARGE")
            return True
        found.answer.set_result(Answer(payload))
        return True

    def progress(self, node_id: str, invoke_id: str, seq: int, chunk: str) -> bool:
        """Forward a piece of output. False when nothing waits for it, it is a repeat, or it is too much."""
        found = self._open.get(invoke_id)
        if found is None or found.node_id != node_id or found.answer.done():
            return False
        if seq <= found.seq or len(chunk) > MAX_CHUNK_CHARS:
            return False
        found.seq = seq
        found.progress_chars += len(chunk)
        if found.progress_chars > MAX_PROGRESS_CHARS:
            return False
        news = {"nodeId": node_id, "command": found.command, "idempotencyKey": found.key}
        for hear in found.progress:
            hear(news | {"invokeId": invoke_id, "seq": seq, "chunk": chunk})
        return True

    def _node_lost(self, node_id: str) -> None:
        for each in [found for found in self._open.values() if found.node_id == node_id]:
            each.fail("The node disconnected before it answered; the command may have run.", "DISCONNECTED")

    # -- one invocation

    def _check_command(self, node: Node, command: str) -> None:
        """Raises NotAllowed, NotFound or NodeFailed."""
        if node.state != "approved":
            message = f"The node {node.shown_name} has not been approved."
            raise NodeFailed(message, reason="PAIRING_CHANGED", dispatched=False)
        usable = self._nodes.commands(node)
        if command in usable:
            return
        if command in node.approved_surface.commands and command in node.declared_surface.commands:
            raise NotAllowed(
                f"The settings do not permit the command {command[:100]} of nodes.",
                rule="node.command",
                fix=config_set("gateway.nodes.commands.allow", [command]),
            )
        offered = ", ".join(usable) or "none"
        raise NotFound(
            f"The node {node.shown_name} has no approved command {command[:100]!r} (it has: {offered}).",
            fix="`hobnob node describe` shows what it offers, and what waits for approval.",
        )

    def _ready(self, node: Node) -> NodeConnection:
        """The connection of a node that can take one more command. Raises NodeFailed or LimitReached."""
        connection = self._nodes.connection(node.node_id)
        if connection is None:
            message = f"The node {node.shown_name} is not connected."
            raise NodeFailed(message, reason="NOT_CONNECTED", dispatched=False)
        if sum(each.node_id == node.node_id for each in self._open.values()) >= MAX_IN_FLIGHT:
            message = f"The node {node.shown_name} works on {MAX_IN_FLIGHT} commands already."
            raise LimitReached(message, limit="node", fix="Wait until some of them have ended.")
        return connection

    async def _run(
        self,
        node: Node,
        command: str,
        params_json: bytes,
        timeout_s: float,
        key: str,
        progress: Progress | None,
        caller: str,
    ) -> Answer:
        connection = self._ready(node)
        timeout_s = min(max(timeout_s, 0.001), MAX_TIMEOUT_S)
        invocation = _Invocation(new_id(), node.node_id, command, key, [progress] if progress else [])
        self._open[invocation.invoke_id] = self._by_key[caller, key] = invocation
        request = {
            "id": invocation.invoke_id,
            "nodeId": node.node_id,
            "command": command,
            "paramsJSON": params_json.decode(),
            "timeoutMs": int(timeout_s * 1000),
            "idempotencyKey": key,
        }
        try:
            connection.send_named("node.invoke.request", request)
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(invocation.answer)
        except TimeoutError:
            self._tell_cancel(invocation)
            invocation.fail(f"The node did not answer within {timeout_s:g} seconds.", "TIMEOUT")
            return await invocation.answer
        except asyncio.CancelledError:
            self._tell_cancel(invocation)
            invocation.fail("The command was cancelled.", "CANCELLED")
            raise
        finally:
            if invocation.answer.done():
                invocation.answer.exception()  # nobody else may be waiting for it
            self._open.pop(invocation.invoke_id, None)
            self._by_key.pop((caller, key), None)

    def _tell_cancel(self, invocation: _Invocation) -> None:
        """Tell the node to stop, if it is still there."""
        names = {"invokeId": invocation.invoke_id, "nodeId": invocation.node_id}
        if connection := self._nodes.connection(invocation.node_id):
            connection.send_named("node.invoke.cancel", names)


def _too_large(size: int) -> str:
    return f"The node answered with {size:,} bytes; the limit is {MAX_RESULT_BYTES:,}."


def _error(error: Any) -> tuple[str, str]:
    """Message and code of an error that a node reported. They are its words, so they are cut."""
    found = error if isinstance(error, dict) else {}
    message = str(found.get("message") or "The node reported an error.")[:_MESSAGE_CHARS]
    return message, str(found.get("code") or "NODE_ERROR")[:_CODE_CHARS]


def _failed(failure: NodeFailed) -> str:
    return orjson.dumps({"error": [failure.message, failure.reason, failure.dispatched]}).decode()


def _restored(stored: str) -> Answer:
    """The answer of an earlier request. Raises NodeFailed."""
    found = orjson.loads(stored)
    if "error" in found:
        message, reason, dispatched = found["error"]
        raise NodeFailed(message, reason=reason, dispatched=dispatched)
    return Answer(found["payload"])
