"""Live events between gateways: streamed text, tool calls and posts of sessions that are followed elsewhere.

Each gateway tells which sessions are followed there. A gateway passes on what happens in those only. One that
has just started, and goes on with a turn, is told a moment later: until then it keeps what happens.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from hobnob.cluster.postgres import PostgresCluster
from hobnob.events import AnswerDelta, LiveEvent, ToolStarted, WebchatMessage
from hobnob.hub import Hub, merge_deltas
from hobnob.records import asdict
from hobnob.types import Delivery

BATCH_S = 0.05
_EARLY_S = 5.0  # after the start: by then the others have told what is followed there
_MAX_EARLY = 1_000  # events of a session that are kept until then
_MAX_TOPICS = 20_000  # followed sessions that are told again to a gateway that is new
_KINDS: dict[str, type[AnswerDelta] | type[ToolStarted]] = {"delta": AnswerDelta, "tool": ToolStarted}


class LiveEvents:
    """Connects the hub of this gateway with those of the others."""

    def __init__(self, hub: Hub, cluster: PostgresCluster) -> None:
        self._hub = hub
        self._cluster = cluster
        self._followed: dict[str, set[str]] = {}  # gateway: the sessions followed there
        self._batch: dict[str, list[LiveEvent]] = {}  # by session
        self._timer: asyncio.TimerHandle | None = None
        self._early: dict[str, list[LiveEvent]] | None = {}  # by session; None when it is late enough
        asyncio.get_running_loop().call_later(_EARLY_S, self._end_early)
        hub.on_topic = self._on_topic
        hub.on_live = self._on_live
        cluster.on("follow", self._on_follow)
        cluster.on("live", self._on_others)
        cluster.announcements.append(self.tell_topics)
        cluster.polls.append(self._tell_again)
        cluster.interests.append(self._wants)

    def _wants(self, session_key: str, _turn_id: str | None) -> bool:
        topics = self._hub.by_topic
        return session_key in topics or None in topics or bool(self._hub.all_topics)

    @property
    def topics(self) -> list[str]:
        """The sessions that are followed here."""
        return [topic for topic in islice(self._hub.by_topic, _MAX_TOPICS) if topic is not None]

    def tell_topics(self) -> None:
        self._cluster.tell("follow", [self._cluster.gateway_id, self.topics, None])

    async def _tell_again(self) -> None:
        known = self._cluster.gateway_ids
        self._followed = {key: topics for key, topics in self._followed.items() if key in known}
        self.tell_topics()

    def _on_topic(self, topic: str | None, followed: bool) -> None:
        if topic is not None:
            self._cluster.tell("follow", [self._cluster.gateway_id, [topic], followed])

    def _on_follow(self, payload: Any) -> None:
        gateway_id, topics, followed = payload
        known = self._followed.setdefault(gateway_id, set())
        if self._early and followed is not False:
            for topic in topics:
                self.flush(topic)
        if followed is None:
            self._followed[gateway_id] = set(topics)
        elif followed:
            known.update(topics)
        else:
            known.difference_update(topics)

    def _on_live(self, event: LiveEvent) -> None:
        if not self._cluster.others:
            return
        if not any(event.session_key in each for each in self._followed.values()):
            if self._early is not None and len(self._early.get(event.session_key, ())) < _MAX_EARLY:
                _add(self._early.setdefault(event.session_key, []), event)
            return
        _add(self._batch.setdefault(event.session_key, []), event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self._flush_all)

    def _end_early(self) -> None:
        self._early = None

    def flush(self, session_key: str) -> None:
        """Send what was collected of a session: its changes, told after that, must not overtake it."""
        early = self._early.pop(session_key, ()) if self._early else ()
        for event in (*early, *self._batch.pop(session_key, ())):
            self._cluster.tell("live", _encoded(event))

    def _flush_all(self) -> None:
        self._timer = None
        for session_key in [*self._batch]:
            self.flush(session_key)

    def _on_others(self, payload: Any) -> None:
        self._hub.publish(_decoded(payload))


def _add(events: list[LiveEvent], event: LiveEvent) -> None:
    """Add an event, merged with the last one if both are text of one answer."""
    if events and (merged := merge_deltas(events[-1], event)) is not None:
        events[-1] = merged
    else:
        events.append(event)


def _encoded(event: LiveEvent) -> Any:
    match event:
        case WebchatMessage(session_key, delivery):
            return ["post", {"session_key": session_key, "delivery": asdict(delivery)}]
        case AnswerDelta():
            return ["delta", asdict(event)]
        case ToolStarted():
            return ["tool", asdict(event)]


def _decoded(payload: Any) -> LiveEvent:
    kind, fields = payload
    if kind == "post":
        return WebchatMessage(fields["session_key"], Delivery(**fields["delivery"]))
    return _KINDS[kind](**fields)
