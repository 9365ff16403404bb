"""A message from one session into another: what is checked, and what is written, in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

import orjson

from hobnob import briefings, keys, policy
from hobnob.config import Settings
from hobnob.delivery_routes import delivery_route
from hobnob.errors import BadInput, NotAllowed, UnknownAgent
from hobnob.sessions import resolve
from hobnob.store import Tx, deliveries, idempotency, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Delivery, Exchange, Session, Turn, new_id, now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """How one turn differs from what is configured."""

    model: str | None = None
    thinking: str | None = None
    extra_system: str | None = None

    def json(self) -> str:
        return orjson.dumps({k: getattr(self, k) for k in self.__slots__ if getattr(self, k)}).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTarget:
    """Whom a message is for: a session by key or id, by label, or the main session of an agent."""

    session_key: str | None = None
    label: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """What a send or spawn comes from: a tool call in a turn, or somebody who acts for a session.

    The same cause never has its effect twice.
    """

    session: Session
    turn: Turn | None
    call_id: str

    @property
    def scope(self) -> str:
        return f"tool:{self.turn.turn_id}" if self.turn else f"spawn:{self.session.key}"

    def key(self, what: object) -> str:
        """By which the same call is known again. Some models use a call id twice, for different calls."""
        return f"{self.call_id}:{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"

    @property
    def turn_id(self) -> str | None:
        return self.turn.turn_id if self.turn else None


def post(tx: Tx, settings: Settings, channels: Collection[str], cause: Cause, text: str) -> Delivery:
    """Put a message to the people of a session on its way to where they last wrote, or nothing."""
    known_as = cause.key(("message", text))
    earlier = idempotency.recall(tx, cause.scope, known_as)
    if earlier and (sent := deliveries.find(tx, earlier)):
        return sent
    session = session_rows.get(tx, cause.session.key)
    resolve.require(policy.send_policy(settings, session))
    route = delivery_route(session)
    if route is None or route.channel not in channels:
        raise NotAllowed(
            "Nobody can be reached: no one has written to this session from a chat that is served.",
            rule="message.no_route",
            fix="Just answer: whoever started this session reads that.",
        )
    delivery = route.message(session.key, text, turn_id=cause.turn_id)
    idempotency.remember(tx, cause.scope, known_as, delivery.delivery_id)
    return deliveries.create(tx, delivery)


def send(
    tx: Tx, settings: Settings, cause: Cause, to: SendTarget, text: str, *, wait_s: float
) -> tuple[Turn, Exchange]:
    """Accept a message of one agent for another: input, turn and exchange, or nothing."""
    requester = cause.session
    until = now_ms() + int(wait_s * 1000) if wait_s > 0 else 0
    known_as = cause.key((to, text))
    earlier = idempotency.recall(tx, cause.scope, known_as)
    if earlier and (turn := turns.find(tx, earlier)) and turn.exchange_id:
        exchange = exchange_rows.get(tx, turn.exchange_id)
        if exchange.state == "open" and exchange.phase == "primary":
            if until:
                _refuse_circle(tx, requester.key, exchange.target_key)
            exchange = exchange_rows.save(tx, replace(exchange, wait_until_ms=until))
        return turn, exchange
    known, target = _target(tx, settings, requester, to)
    resolve.require(policy.send_policy(settings, target))
    check_agent(settings, target)
    hop = next_hop(settings, cause)
    if until:
        _refuse_circle(tx, requester.key, target.key)
    if not known:
        session_rows.create(tx, target)
    limits = settings.session.agent_to_agent
    exchange = Exchange(
        requester_key=requester.key,
        target_key=target.key,
        turn_id=new_id(),
        caller_turn_id=cause.turn_id,
        wait_until_ms=until,
        max_turns=limits.max_ping_pong_turns,
        hop=hop,
        request=text,
    )
    assert exchange.turn_id is not None
    turn = turns.accept(
        tx,
        Turn.of(
            target,
            text,
            turn_id=exchange.turn_id,
            step="primary",
            provenance=briefings.provenance(requester, "sessions_send", exchange),
            told=briefings.primary(requester, target),
            exchange_id=exchange.exchange_id,
            caused_by=cause.turn_id,
            hop=hop,
        ),
    )
    exchange_rows.begin(tx, exchange)
    idempotency.remember(tx, cause.scope, known_as, turn.turn_id)
    return turn, exchange


def next_hop(settings: Settings, cause: Cause) -> int:
    """The hop count of what a turn causes. Raises NotAllowed beyond the limit."""
    most, hop = settings.session.agent_to_agent.max_hops, cause.turn.hop + 1 if cause.turn else 1
    if hop > most:
        raise NotAllowed(
            f"This would be hop {hop} of agents that cause each other to act; {most} is the most.",
            rule="hop_limit",
            fix=f"Answer instead of asking on, or set session.agentToAgent.maxHops = {hop}.",
        )
    return hop


def check_agent(settings: Settings, session: Session) -> None:
    """Refuse a message that nobody could answer: there must be the agent, or the harness."""
    agent_id = session.agent_id
    if session.is_external:
        if not settings.acp.enabled or agent_id not in settings.acp.harnesses:
            known = ", ".join(sorted(settings.acp.harnesses)) or "none"
            raise UnknownAgent(
                f"There is no harness {agent_id!r} any more (there are: {known}).",
                fix=f"Set acp.enabled = true and acp.harnesses.{agent_id}.",
            )
    elif settings.agent(agent_id) is None:
        known = ", ".join(a.id for a in settings.agent_list())
        raise UnknownAgent(
            f"There is no agent {agent_id!r} (there are: {known}).", fix="Add it to agents.list."
        )


def _target(tx: Tx, settings: Settings, requester: Session, to: SendTarget) -> tuple[bool, Session]:
    """The session a message is for, and whether it is there already."""
    if to.session_key and to.label:
        raise BadInput("Give sessionKey or label, not both.")
    if to.label:
        found = resolve.by_label(tx, settings, requester, "send", to.label, to.agent_id)
        return True, resolve.not_archived(found)
    if not to.session_key and not to.agent_id:
        raise BadInput("Say whom to send to: sessionKey, label or agentId.")
    own = keys.agent_id(to.agent_id) if to.agent_id else None
    reference = to.session_key or "main"
    if own and reference.strip().lower() == "main":
        reference = f"agent:{own}:main"
    known, key = resolve.lookup(tx, settings, requester, reference)
    if own and key.agent != own:
        raise BadInput(f"The session {reference} is not one of agent {own!r}.", fix="Leave agentId out.")
    if known is None and key.is_main:
        # An agent can be written to before anybody ever has: its main session begins with that.
        target = Session.of(key)
        resolve.require(policy.may(settings, requester, "send", target))
        return False, target
    return True, resolve.not_archived(resolve.find(tx, settings, requester, "send", reference))


def _refuse_circle(tx: Tx, requester: str, target: str) -> None:
    """Refuse a wait that would close a circle of waiting sessions."""
    circle = _path(tx, target, requester)
    if circle is None:
        return
    shown = " waits for ".join([requester, *circle])
    raise NotAllowed(
        f"Waiting here would never end: {shown}.",
        rule="deadlock",
        fix="Send with timeoutSeconds 0 and go on, or answer first.",
    )


def _path(tx: Tx, start: str, goal: str) -> list[str] | None:
    """The sessions from `start` to `goal` of which each waits for the next."""
    came_from: dict[str, str | None] = {start: None}
    to_visit = [start]
    while to_visit:
        key = to_visit.pop()
        if key == goal:
            path: list[str] = []
            at: str | None = key
            while at is not None:
                path.append(at)
                at = came_from[at]
            return path[::-1]
        for awaited in exchange_rows.awaited_by(tx, key):
            if awaited not in came_from:
                came_from[awaited] = key
                to_visit.append(awaited)
    return None
