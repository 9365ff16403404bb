"""What nodes report: messages that become turns, and which chats they follow.

A message of a node is a turn in the node's own session, or in one that the policy lets it write to. It is
never an owner's, and its turn has only the tools of `gateway.nodes.tools`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hobnob import briefings, json_input, keys, policy
from hobnob.config import Config
from hobnob.config.fields import Thinking
from hobnob.errors import BadInput
from hobnob.keys import SessionKey, Shape
from hobnob.node_types import Node
from hobnob.nodes.registry import Nodes
from hobnob.policy import Operator
from hobnob.requests import IdempotencyKey
from hobnob.sessions import InboundMessage, Sessions, TurnOptions
from hobnob.types import Session, Turn

Row = dict[str, Any]
MAX_PAYLOAD_CHARS = 8 * 1024 * 1024
_REPEAT_S = 1.5  # speech recognition reports the same words twice
_BOOKKEEPING = ("node.host.stats", "node.presence", "node.desktop.availability", "push.apns.register")


class Follower(Protocol):
    """A connection that can follow the runs of sessions."""

    def follow_runs(self, session_key: str) -> None: ...

    def unsubscribe_messages(self, session_key: str) -> None: ...


class _Payload(BaseModel):
    """Fields that newer devices add are ignored."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True)


T = TypeVar("T", bound=_Payload)


class AgentRequest(_Payload):
    message: str
    session_key: str | None = None
    thinking: Thinking | None = None
    timeout_seconds: int | None = Field(None, ge=1, le=30 * 86_400)
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    attachments: list[Any] = []
    idempotency_key: IdempotencyKey | None = None


class VoiceTranscript(_Payload):
    text: str
    session_key: str | None = None
    event_id: IdempotencyKey | None = None


class ChatSubscription(_Payload):
    session_key: str


def operator_of(node_id: str) -> Operator:
    """The caller that a node is: it has no scopes, and the policy knows it by its id."""
    return Operator(f"node:{node_id}", (), (), node=node_id)


def own_session(config: Config, node_id: str) -> SessionKey:
    return SessionKey(config.settings.default_agent.id, Shape.NODE, node_id)


class NodeEvents:
    """Events of nodes. `channels` are the chats that answers can be posted to."""

    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        registry: Nodes,
        channels: Callable[[], Collection[str]],
    ) -> None:
        self._config = config
        self._channels = channels
        self._sessions = sessions
        self._nodes = registry
        self._heard: dict[str, tuple[str, float]] = {}  # node id: the last words, and when

    async def handle(self, node_id: str, event: str, payload: Any, follower: Follower) -> Row:
        """Handle an event of a node. Raises NodeFailed, BadInput, NotAllowed."""
        if event in _BOOKKEEPING or event.startswith("node.presence."):
            return {"ok": True}
        match event:
            case "agent.request":
                return await self._request(
                    await self._nodes.approved(node_id), _parsed(AgentRequest, payload)
                )
            case "voice.transcript":
                return await self._voice(
                    await self._nodes.approved(node_id), _parsed(VoiceTranscript, payload)
                )
            case "chat.subscribe" | "chat.unsubscribe":
                await self._nodes.approved(node_id)
                wanted = _parsed(ChatSubscription, payload).session_key
                session = await self._sessions.resolve_or_new(operator_of(node_id), wanted)
                if event == "chat.subscribe":
                    follower.follow_runs(session.key)
                else:
                    follower.unsubscribe_messages(session.key)
                return {"ok": True, "sessionKey": session.key}
        return {"ok": True, "event": event[:100], "handled": False, "reason": "unsupported_event"}

    async def _request(self, node: Node, request: AgentRequest) -> Row:
        if request.attachments:
            raise BadInput("Attachments of nodes are not supported.", fix="Send the text without them.")
        reference = request.session_key or str(own_session(self._config, node.node_id))
        turn = await self._send(
            node,
            reference,
            request.message,
            key=request.idempotency_key,
            timeout_s=request.timeout_seconds,
            options=TurnOptions(thinking=request.thinking, deliver=self._route(request), tools=self._tools),
        )
        return _accepted(turn)

    async def _voice(self, node: Node, words: VoiceTranscript) -> Row:
        said, at = self._heard.get(node.node_id, ("", 0.0))
        self._heard[node.node_id] = words.text, time.monotonic()
        if words.event_id is None and said == words.text and time.monotonic() - at < _REPEAT_S:
            return {"ok": True, "handled": False, "reason": "repeated"}
        reference = words.session_key or self._session_for_voice(node.node_id)
        key = f"voice:{words.event_id}" if words.event_id else None
        options = TurnOptions(tools=self._tools)
        return _accepted(await self._send(node, reference, words.text, key=key, options=options, voice=True))

    def _session_for_voice(self, node_id: str) -> str:
        """The main session if the node may write there, else its own."""
        main = keys.main_of(self._config.settings.default_agent.id)
        session = Session.of(main)
        verdict = policy.may(self._config.settings, operator_of(node_id), "send", session)
        return str(main if verdict.allowed else own_session(self._config, node_id))

    def _route(self, request: AgentRequest) -> tuple[str | None, ...] | None:
        """Where the answer is posted, besides the session."""
        if not request.deliver:
            return None
        if request.channel in (None, "last"):
            return ("last",)
        if not request.to:
            raise BadInput("Give channel and to together.", fix="Or the channel last, with deliver: true.")
        if request.channel not in self._channels():
            known = ", ".join(sorted(self._channels()))
            raise BadInput(f"The channel {request.channel[:80]!r} is not connected (connected: {known}).")
        return (request.channel, request.to, None, None)

    @property
    def _tools(self) -> tuple[str, ...]:
        return tuple(self._config.settings.gateway.nodes.tools)

    async def _send(
        self,
        node: Node,
        reference: str,
        text: str,
        *,
        key: str | None,
        options: TurnOptions,
        timeout_s: int | None = None,
        voice: bool = False,
    ) -> Turn:
        message = InboundMessage(
            text,
            idempotency_key=key,
            timeout_s=timeout_s,
            mode="followup",  # never a part of a turn that a person started, which may have more tools
            options=options,
            plain=True,
            provenance=briefings.from_node(node.node_id, node.shown_name, voice=voice),
        )
        return await self._sessions.send(operator_of(node.node_id), reference, message)


def decoded(payload: Any, payload_json: str | None) -> Any:
    """The payload of an event; the one given as text wins. Raises BadInput."""
    if payload_json is None:
        return payload
    if len(payload_json) > MAX_PAYLOAD_CHARS:
        raise BadInput("payloadJSON is too long.")
    try:
        return json_input.loads(payload_json)
    except (ValueError, json_input.TooComplex):
        raise BadInput("payloadJSON is not JSON.") from None


def _parsed(kind: type[T], payload: Any) -> T:
    try:
        return kind.model_validate(payload if payload is not None else {})
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:5]
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg'].lower()}" for each in found)
        raise BadInput(f"The payload is invalid: {problems[:500]}.") from None


def _accepted(turn: Turn) -> Row:
    return {"ok": True, "runId": turn.turn_id, "sessionKey": turn.session_key, "handled": True}
