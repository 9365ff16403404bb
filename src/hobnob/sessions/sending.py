"""Accept messages: from people into a session, from one agent to another, and out to a chat.

Each function checks everything, then writes, in one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import orjson

from hobnob import briefings, keys, metering, policy, timing
from hobnob.config import Settings
from hobnob.delivery_routes import WEBCHAT, ReplyAddress, delivery_route
from hobnob.effects import Effects
from hobnob.errors import BadInput, Conflict, Gone, NotAllowed
from hobnob.models.catalog import Catalog
from hobnob.policy import Caller, Operator, authority, resets
from hobnob.records import Struct, replace
from hobnob.sessions import resolve, slash_commands
from hobnob.sessions.capabilities import Capabilities, refuse_unlimited_harness, untyped_harness
from hobnob.sessions.resolve import Target
from hobnob.sessions.waiters import next_hop, refuse_deadlock
from hobnob.spending import Limits
from hobnob.store import Tx, deliveries, entries, idempotency, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Delivery, Exchange, Pool, QueueMode, Session, Turn, new_id, now_ms, text_of

T = TypeVar("T")
_ROUTE = ("last_channel", "last_to", "last_account_id", "last_thread_id", "display_name")
_UNNAMED_HOOK = "Hook"  # the default name of a hook


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """How one turn differs from what is configured, and the name of the credential that sent its message."""

    model: str | None = None
    thinking: str | None = None
    extra_system: str | None = None
    output_schema: dict[str, Any] | None = None
    sender: str | None = None
    reply: dict[str, Any] | None = None
    deliver: tuple[str | None, ...] | None = None
    """Where the answer of a hook goes: `("last",)`, or channel, recipient, account and thread."""
    tools: tuple[str, ...] | None = None
    """At most these tools, as names, groups or patterns; an empty list means none."""

    def json(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return orjson.dumps({name: value for name, value in values.items() if value or value == ()}).decode()


class ChatOrigin(Struct, frozen=True, kw_only=True):
    """The chat a message came from.

    `reply` is where its answer goes. `moves_route`: later messages of the session go there too.
    """

    reply: ReplyAddress
    moves_route: bool = True
    display_name: str | None = None
    images: tuple[dict[str, Any], ...] = ()
    """Images of the message, as parts of its content."""


class InboundMessage(Struct, frozen=True):
    """A message for a session from outside: a person, a program, a hook.

    `idempotency_key`: the same key gives the same turn, also after a restart. `turn_id`: the id the client
    chose for the run. `plain`: never read as a slash command. `provenance` is set by the server only. A
    `note` starts no turn by itself: the agent reads it at its next one. `chat`: it came from a chat channel,
    where its answer goes. `transcript`: refuse the message when the session has another transcript by now.
    `must_exist`: do not create the session.
    """

    text: str
    idempotency_key: str | None = None
    turn_id: str | None = None
    mode: QueueMode | None = None
    timeout_s: int | None = None
    pool: Pool | None = None
    options: TurnOptions = TurnOptions()
    plain: bool = False
    provenance: dict[str, Any] | None = None
    step: Literal["message", "note"] = "message"
    transcript: str | None = None
    must_exist: bool = False
    chat: ChatOrigin | None = None


class SendTarget(Struct, frozen=True, kw_only=True):
    """Whom an agent sends to: a session by key or id, by label, or the main session of an agent.

    `output_schema`: the form that the answer must have.
    """

    session_key: str | None = None
    label: str | None = None
    agent_id: str | None = None
    output_schema: dict[str, Any] | None = None

    def content(self, text: str) -> str:
        """What a send is recognised by, see `Cause.key`."""
        names = f"session_key={self.session_key!r}, label={self.label!r}, agent_id={self.agent_id!r}"
        return f"(To({names}), {text!r})" + (repr(self.output_schema) if self.output_schema else "")


class Cause(Struct, frozen=True):
    """What a send or spawn comes from: a tool call in a turn, or a client acting for a session.

    The same cause never has its effect twice. `client`: the caller that acts for the session, with its own
    rights.
    """

    session: Session
    turn: Turn | None
    call_id: str
    client: Caller | None = None
    is_keyed: bool = False  # the call id is an idempotency key of the caller: it counts in later turns too

    @property
    def scope(self) -> str:
        return f"tool:{self.turn.turn_id}" if self.turn and not self.is_keyed else f"spawn:{self.session.key}"

    def key(self, content: str) -> str:
        """The idempotency key of a call. Some models use a call id twice, for different calls.

        Keys are stored: the text a call is recognised by must not change between versions.
        """
        return f"{self.call_id}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    @property
    def turn_id(self) -> str | None:
        return self.turn.turn_id if self.turn else None


def sent_again(tx: Tx, session: Session, seq: int, idempotency_key: str) -> InboundMessage:
    """A message of the transcript that a person or a hook sent, to be sent again. Raises BadInput."""
    found = entries.history(tx, session.session_id, before=seq + 1, limit=1)
    message = found[0].message if found and found[0].seq == seq else {}
    source = message.get("provenance") or {}
    if message.get("role") != "user":
        raise BadInput(f"Message {seq} is not an input of this session.")
    # The turn of a node had fewer tools than one of a person.
    if sender := {"inter_session": "another session", "node": "a node"}.get(source.get("kind", "")):
        raise BadInput(f"Message {seq} came from {sender}.", fix="Ask for it again where it was sent.")
    return InboundMessage(
        text_of(message),
        idempotency_key=idempotency_key,
        turn_id=idempotency_key,
        plain=True,
        provenance=source or None,
        transcript=session.session_id,
    )


def accept_message(
    tx: Tx,
    settings: Settings,
    models: Catalog,
    effects: Effects,
    caller: Caller,
    reference: str,
    message: InboundMessage,
) -> Turn:
    """Accept a message as a turn of a session, or run it as a slash command."""
    scope = f"send:{caller.name if isinstance(caller, Operator) else caller.key}"
    target = resolve.lookup(tx, settings, caller, reference)
    session = resolve.authorise(settings, caller, "send", target, create=not message.must_exist)
    if target.exists:
        session = session_rows.lock(tx, session)
    if (turn := _accepted_before(tx, settings, caller, scope, message)) is not None:
        return turn
    resolve.check_agent(settings, session)
    resolve.not_archived(session)
    if message.transcript not in (None, session.session_id):
        raise Conflict(
            f"The session {session.key} has a new transcript by now.", fix="Load it, then send again."
        )
    command = None
    if isinstance(caller, Operator):
        if not message.plain:
            context = slash_commands.CommandContext(tx, settings, models, effects, session, caller)
            message, session = _after_trigger(context, message, exists=target.exists)
            command = slash_commands.parse(message.text) if not message.plain else None
        if command is None and target.exists:
            session = _reset_if_stale(tx, settings, session, message)
        target = replace(target, session=session if target.exists else None)
    if command is not None and isinstance(caller, Operator):
        if not target.exists:
            session = session_rows.create(tx, _reached_from(session, message.chat))
        context = slash_commands.CommandContext(tx, settings, models, effects, session, caller)
        reply = message.chat.reply if message.chat else None
        turn_id = _free_id(tx, message.turn_id)
        turn = slash_commands.execute(context, command, message.text, turn_id=turn_id, reply=reply)
    else:
        turn = _queue_turn(tx, settings, effects, caller, target, session, message)
    if message.idempotency_key:
        idempotency.remember(tx, scope, message.idempotency_key, turn.turn_id)
    return turn


def _reset_if_stale(tx: Tx, settings: Settings, session: Session, message: InboundMessage) -> Session:
    """The session with a new transcript if its rule says so and a person writes. Open work goes on first."""
    rule = resets.rule_for(settings, session)
    source = (message.provenance or {}).get("kind", "channel")
    if rule is None or rule.mode == "none" or source != "channel" or message.step != "message":
        return session
    if not policy.send_policy(settings, session).allowed:
        return session  # the message will be refused
    started, last = session_rows.freshness(tx, session)
    stale = resets.is_stale(rule, started, last, now_ms(), timing.host_zone())
    if not stale or message.transcript is not None or turns.open_of(tx, session.key):
        return session
    return session_rows.reset(tx, session.key)


def _after_trigger(
    context: slash_commands.CommandContext, message: InboundMessage, *, exists: bool
) -> tuple[InboundMessage, Session]:
    """The message without the word that begins a new conversation; alone, that word is the command /new."""
    found = resets.split_trigger(context.settings.session.reset_triggers, message.text)
    if found is None:
        return message, context.session
    _, rest = found
    if not rest:
        known = slash_commands.parse(message.text) is not None
        return message if known else replace(message, text="/new"), context.session
    resolve.require(policy.may(context.settings, context.caller, "control", context.session))
    resolve.require(policy.send_policy(context.settings, context.session))
    if exists:
        slash_commands.reset(context)
    chosen = [info.name for info in context.models.known() if rest in (info.name, info.id)]
    if chosen and exists:
        session_rows.patch(context.tx, context.session.key, model_override=chosen[0])
        return replace(message, text="/model"), session_rows.get(context.tx, context.session.key)
    session = session_rows.get(context.tx, context.session.key) if exists else context.session
    return replace(message, text=rest, plain=True), session


def _accepted_before(
    tx: Tx, settings: Settings, caller: Caller, scope: str, message: InboundMessage
) -> Turn | None:
    earlier = idempotency.recall(tx, scope, message.idempotency_key) if message.idempotency_key else None
    if earlier is None:
        return None
    turn = _kept(turns.find(tx, earlier))
    resolve.find(tx, settings, caller, "send", turn.session_key)  # its access may have been withdrawn
    return turn


def _sender(caller: Caller) -> str | None:
    return caller.name if isinstance(caller, Operator) else None


def _kept(found: T | None) -> T:
    """What an idempotency key stands for. Raises Gone when it was removed: it must not happen twice."""
    if found is None:
        raise Gone(fix="Use a new idempotency key to send the message again.")
    return found


def _queue_turn(
    tx: Tx,
    settings: Settings,
    effects: Effects,
    caller: Caller,
    target: Target,
    session: Session,
    message: InboundMessage,
) -> Turn:
    at = replace(session, last_channel=message.chat.reply.route.channel) if message.chat else session
    resolve.require(policy.send_policy(settings, at))
    reached = session
    if message.chat is not None:
        reached = _reached_from(session, message.chat)
    elif isinstance(caller, Operator) and not (session.last_channel or session.channel):
        # A session written to at the gateway itself is answered there.
        reached = replace(session, last_channel=WEBCHAT, last_to=session.key)
    if not target.exists:
        session = session_rows.create(tx, _named_after_hook(reached, message))
    elif reached != session:
        session = session_rows.patch(tx, session.key, **{name: getattr(reached, name) for name in _ROUTE})
    queue = settings.messages.queue
    channel = session.channel or session.last_channel or ""
    mode = message.mode or queue.by_channel.get(channel, queue.mode)
    interrupted = turns.running(tx, session.key) if mode == "interrupt" else None
    if interrupted is not None and turns.reply_route(interrupted) != (_reply(message) or {}).get("route"):
        interrupted = None  # people in another chat wait for its answer
    turn = turns.accept(
        tx,
        Turn.of(
            session,
            message.text,
            turn_id=_free_id(tx, message.turn_id),
            options=replace(message.options, sender=_sender(caller), reply=_reply(message)).json(),
            images=message.chat.images if message.chat else (),
            queue_mode=mode,
            timeout_s=message.timeout_s,
            provenance=message.provenance,
            step=message.step,
            **({"pool": message.pool} if message.pool else {}),
        ),
    )
    if interrupted is not None:
        effects.abort_turn(tx, interrupted.turn_id, "newer input came in")
    return turn


def _reply(message: InboundMessage) -> dict[str, Any] | None:
    return message.chat.reply.json() if message.chat else None


def _reached_from(session: Session, chat: ChatOrigin | None) -> Session:
    """The session as it is after a message from a chat: later messages to its people go there."""
    if chat is None or not (chat.moves_route or session.last_channel is None):
        return session
    route = chat.reply.route
    return replace(
        session,
        last_channel=route.channel,
        last_to=route.to,
        last_account_id=route.account_id,
        last_thread_id=route.thread_id,
        display_name=chat.display_name or session.display_name,
    )


def _free_id(tx: Tx, turn_id: str | None) -> str:
    """The id a client chose for a run, unless another run has it."""
    return turn_id if turn_id and turns.find(tx, turn_id) is None else new_id()


def _named_after_hook(session: Session, message: InboundMessage) -> Session:
    """A new session of a hook is shown by the hook's name, because its key is often a UUID."""
    name = (message.provenance or {}).get("hook")
    if session.kind != "hook" or session.display_name or name in (None, _UNNAMED_HOOK):
        return session
    return replace(session, display_name=name)


def accept_agent_message(
    tx: Tx,
    settings: Settings,
    rights: Capabilities,
    cause: Cause,
    to: SendTarget,
    text: str,
    *,
    wait_s: float,
    budget: Limits | None = None,
) -> tuple[Turn, Exchange]:
    """Accept a message of one agent for another: input, turn and exchange."""
    wait_until = now_ms() + int(wait_s * 1000) if wait_s > 0 else 0
    key = cause.key(to.content(text))
    if (earlier := _sent_before(tx, cause, key, wait_until)) is not None:
        return earlier
    requester = cause.session
    target, session = _authorised_target(tx, settings, requester, to)
    resolve.require(policy.send_policy(settings, session))
    resolve.check_agent(settings, session)
    if to.output_schema is not None and session.is_external:
        raise untyped_harness()
    hop = next_hop(settings, cause.turn)
    if wait_until:
        refuse_deadlock(tx, requester.key, session.key)
    limit = rights.authority_of(tx, requester, cause.turn, session)
    refuse_unlimited_harness(session, limit)
    if not target.exists:
        session_rows.create(tx, session)
    exchange = Exchange(
        requester_key=requester.key,
        target_key=session.key,
        turn_id=new_id(),
        caller_turn_id=cause.turn_id,
        wait_until_ms=wait_until,
        max_turns=settings.session.agent_to_agent.max_ping_pong_turns,
        hop=hop,
        request=text,
    )
    turn = turns.accept(tx, _primary_turn(cause, session, exchange, text, to, limit))
    exchange_rows.begin(tx, exchange)
    if budget:
        metering.set_limits(tx, "exchange", exchange.exchange_id, budget)
    idempotency.remember(tx, cause.scope, key, turn.turn_id)
    return turn, exchange


def _primary_turn(
    cause: Cause,
    session: Session,
    exchange: Exchange,
    text: str,
    to: SendTarget,
    limit: authority.Stored | None,
) -> Turn:
    assert exchange.turn_id is not None
    options: dict[str, Any] = {"extra_system": briefings.primary(cause.session, session)}
    if to.output_schema is not None:
        options["output_schema"] = to.output_schema
    if limit is not None:
        options[authority.OPTION] = limit
    return Turn.of(
        session,
        text,
        turn_id=exchange.turn_id,
        step="primary",
        provenance=briefings.provenance(cause.session, "sessions_send", exchange),
        options=orjson.dumps(options).decode(),
        exchange_id=exchange.exchange_id,
        caused_by=cause.turn_id,
        hop=exchange.hop,
    )


def _sent_before(tx: Tx, cause: Cause, key: str, wait_until: int) -> tuple[Turn, Exchange] | None:
    """What the same call started before a restart. While it is open, the new wait replaces the old one."""
    earlier = idempotency.recall(tx, cause.scope, key)
    if earlier is None:
        return None
    turn = _kept(turns.find(tx, earlier))
    exchange = _kept(exchange_rows.find(tx, turn.exchange_id or ""))
    if exchange.state == "open" and exchange.phase == "primary":
        if wait_until:
            refuse_deadlock(tx, cause.session.key, exchange.target_key)
        exchange = exchange_rows.save(tx, replace(exchange, wait_until_ms=wait_until))
    return turn, exchange


def _authorised_target(
    tx: Tx, settings: Settings, requester: Session, to: SendTarget
) -> tuple[Target, Session]:
    """The session a message is for. An agent's main session may be one that does not exist yet."""
    if to.session_key and to.label:
        raise BadInput("Give sessionKey or label, not both.")
    if to.label:
        found = resolve.by_label(tx, settings, requester, "send", to.label, to.agent_id)
        return Target(keys.parse(found.key), found), resolve.not_archived(found)
    if not to.session_key and not to.agent_id:
        raise BadInput("Name the recipient: sessionKey, label or agentId.", fix=keys.GRAMMAR)
    agent_id = keys.agent_id(to.agent_id) if to.agent_id else None
    reference = to.session_key or "main"
    if agent_id and reference.strip().lower() == "main":
        reference = f"agent:{agent_id}:main"
    target = resolve.lookup(tx, settings, requester, reference)
    if agent_id and target.key.agent != agent_id:
        raise BadInput(f"The session {reference} is not one of agent {agent_id!r}.", fix="Leave agentId out.")
    session = resolve.authorise(settings, requester, "send", target, create=target.key.is_main)
    return target, resolve.not_archived(session)


def post(
    tx: Tx,
    settings: Settings,
    channels: Collection[str],
    cause: Cause,
    text: str,
    files: Sequence[dict[str, str]] = (),
) -> Delivery:
    """Queue a message to the people of a session, to where they last wrote."""
    key = cause.key(repr(("message", text, *(file["path"] for file in files))))
    earlier = idempotency.recall(tx, cause.scope, key)
    if earlier:
        return _kept(deliveries.find(tx, earlier))
    session = session_rows.get(tx, cause.session.key)
    resolve.require(policy.send_policy(settings, session))
    raw = orjson.loads(cause.turn.options).get("reply") if cause.turn else None
    route = ReplyAddress.from_json(raw).route if raw else delivery_route(session)
    if route is None or route.channel not in channels:
        raise NotAllowed(
            "Nobody can be reached: no one has written to this session from a connected chat.",
            rule="message.no_route",
            fix="Just answer: whoever started this session reads that.",
        )
    if files and route.channel == WEBCHAT:
        raise BadInput("The page of the gateway shows no files.", fix="Name the path of the file instead.")
    encoded = orjson.dumps(list(files)).decode() if files else None
    delivery = route.delivery(session.key, text, turn_id=cause.turn_id, files=encoded)
    idempotency.remember(tx, cause.scope, key, delivery.delivery_id)
    return deliveries.create(tx, delivery)


def _encoded(files: Sequence[dict[str, str]]) -> str | None:
    return orjson.dumps(list(files)).decode() if files else None
