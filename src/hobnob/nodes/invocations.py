"""Invoke commands on nodes: one request, progress, one answer; bounded in time, size and number.

A node may answer twice, late, never, or with too much. Only the first answer in time counts, and only if it
comes from the node that was asked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

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
Failure = tuple[str, str]  # message and code
DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 30.0, 24 * 3600.0
MAX_RESULT_BYTES = 1024 * 1024
MAX_PARAMS_BYTES = 256 * 1024
MAX_CHUNK_CHARS = 16_384
MAX_PROGRESS_CHARS = 1024 * 1024
MAX_IN_FLIGHT = 64  # of one node
_MESSAGE_CHARS = 1_000
_CODE_CHARS = 80


class OtherGateways(Protocol):
    """How answers reach the gateway that asked for them."""

    def has_asked(self, node_id: str, invoke_id: str) -> bool:
        """Whether another gateway waits for the answer of a node that is connected here."""
        ...

    def answer(self, node_id: str, invoke_id: str, payload: Any, failure: Failure | None) -> None:
        """Send it the answer, or the failure."""
        ...

    def tell(self, *message: Any) -> None: ...


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
    progress: list[Progress] = field(default_factory=list)
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
        # Held while it is being found out whether a call is the first with its key.
        self._beginning: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self.others: OtherGateways | None = None
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
            once = _Invocation(new_id(), node.node_id, command, new_id(), [progress] if progress else [])
            return await self._run(node, once, params_json, timeout_s)
        fingerprint = hashlib.sha256(
            orjson.dumps([node.node_id, command]) + orjson.dumps(params, option=orjson.OPT_SORT_KEYS)
        ).hexdigest()
        scope, of_caller = _scope(caller), (caller, idempotency_key)
        async with self._beginning.setdefault(of_caller, asyncio.Lock()):
            running = self._by_key.get(of_caller)
            if await self._store.read_small(idempotency.recall, scope, idempotency_key) is None:
                self._ready(node)  # what was never dispatched may be tried again under the same key
            began, stored = await self._store.write(idempotency.begin, scope, idempotency_key, fingerprint)
            if stored is not None:
                return _restored(stored)
            if not began:
                running = self._by_key[of_caller] = _Invocation(
                    new_id(), node.node_id, command, idempotency_key
                )
        if running is None:
            raise Conflict(
                f"{command} began under this idempotency key, and its outcome is unknown.",
                fix="Check whether it had its effect before you invoke it with another key.",
            )
        if progress is not None:
            running.progress.append(progress)
        if began:
            return await asyncio.shield(running.answer)
        try:
            answer = await self._run(node, running, params_json, timeout_s)
        except NodeFailed as failure:
            await self._store.write(idempotency.finish, scope, idempotency_key, _failed(failure))
            raise
        else:
            outcome = orjson.dumps({"payload": answer.payload}).decode()
            await self._store.write(idempotency.finish, scope, idempotency_key, outcome)
            return answer
        finally:
            del self._by_key[of_caller]

    async def cancel(self, caller: str, idempotency_key: str) -> bool:
        """Cancel the invocation of a caller, wherever it was made. False when it is not running."""
        if self.cancel_here(caller, idempotency_key):
            return True
        if self.others is None:
            return False
        self.others.tell("cancel", caller, idempotency_key)
        return await self._store.read_small(idempotency.is_open, _scope(caller), idempotency_key)

    def cancel_here(self, caller: str, idempotency_key: str) -> bool:
        """Cancel an invocation that was made on this gateway."""
        running = self._by_key.get((caller, idempotency_key))
        if running is None or running.answer.done():
            return False
        self._tell_cancel(running)
        running.fail("The command was cancelled.", "CANCELLED")
        return True

    # -- what nodes say

    def result(
        self, node_id: str, invoke_id: str, *, ok: bool, payload: Any, payload_json: str | None, error: Any
    ) -> bool:
        """Take an answer. False when nothing waits for it: it is late, a repeat, or somebody else's."""
        asked_elsewhere = self.others is not None and self.others.has_asked(node_id, invoke_id)
        if not asked_elsewhere and self._waiting(node_id, invoke_id) is None:
            return False
        payload, failure = _checked(payload, payload_json) if ok else (None, _error(error))
        if self.others is not None and asked_elsewhere:
            self.others.answer(node_id, invoke_id, payload, failure)
            return True
        return self.settle(node_id, invoke_id, payload, failure)

    def settle(self, node_id: str, invoke_id: str, payload: Any, failure: Failure | None) -> bool:
        """End an invocation with the answer of its node, or with its failure."""
        found = self._waiting(node_id, invoke_id)
        if found is None:
            return False
        if failure is not None:
            found.fail(*failure)
        else:
            found.answer.set_result(Answer(payload))
        return True

    def _waiting(self, node_id: str, invoke_id: str) -> _Invocation | None:
        """The invocation of this gateway that waits for an answer of this node."""
        found = self._open.get(invoke_id)
        return found if found is not None and found.node_id == node_id and not found.answer.done() else None

    def progress(self, node_id: str, invoke_id: str, seq: int, chunk: str) -> bool:
        """Forward a piece of output. False when nothing waits for it, it is a repeat, or it is too much."""
        if len(chunk) > MAX_CHUNK_CHARS:
            return False
        if self.others is not None and self.others.has_asked(node_id, invoke_id):
            self.others.tell("progress", node_id, invoke_id, seq, chunk)
            return True
        found = self._waiting(node_id, invoke_id)
        if found is None or seq <= found.seq:
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

    async def _run(self, node: Node, invocation: _Invocation, params_json: bytes, timeout_s: float) -> Answer:
        timeout_s = min(max(timeout_s, 0.001), MAX_TIMEOUT_S)
        request = {
            "id": invocation.invoke_id,
            "nodeId": node.node_id,
            "command": invocation.command,
            "paramsJSON": params_json.decode(),
            "timeoutMs": int(timeout_s * 1000),
            "idempotencyKey": invocation.key,
        }
        try:
            connection = self._ready(node)
            self._open[invocation.invoke_id] = invocation
            connection.send_named("node.invoke.request", request)
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(invocation.answer)
        except TimeoutError:
            self._tell_cancel(invocation)
            invocation.fail(f"The node did not answer within {timeout_s:g} seconds.", "TIMEOUT")
            return await invocation.answer
        except asyncio.CancelledError:
            self._tell_cancel(invocation)
            raise
        finally:
            self._open.pop(invocation.invoke_id, None)
            invocation.fail("The command was cancelled.", "CANCELLED")  # unless it has ended
            invocation.answer.exception()  # nobody else may be waiting for it

    def _tell_cancel(self, invocation: _Invocation) -> None:
        """Tell the node to stop, if it is still there."""
        names = {"invokeId": invocation.invoke_id, "nodeId": invocation.node_id}
        if connection := self._nodes.connection(invocation.node_id):
            connection.send_named("node.invoke.cancel", names)


def _scope(caller: str) -> str:
    return f"node:{caller}"


def _checked(payload: Any, payload_json: str | None) -> tuple[Any, Failure | None]:
    """The payload of an answer, or what is wrong with it."""
    size = len(orjson.dumps(payload) if payload_json is None else payload_json)
    if size > MAX_RESULT_BYTES:
        message = f"The node answered with {size:,} bytes; the limit is {MAX_RESULT_BYTES:,}."
        return None, (message, "RESULT_TOO_LARGE")
    if payload_json is None:
        return payload, None
    try:
        return json_input.loads(payload_json) if payload_json else None, None
    except ValueError:
        return None, ("The node answered with something that is not JSON.", "BAD_RESULT")


def _error(error: Any) -> Failure:
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
