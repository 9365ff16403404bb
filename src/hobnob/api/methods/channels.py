"""Methods on channels: their state, messages from chats with the verdict on each, and pairing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from hobnob import routing
from hobnob.api.rpc import Call, Payload, method
from hobnob.chat_types import InboxEvent, Pairing
from hobnob.chats.accounts import Status
from hobnob.delivery_routes import DeliveryRoute
from hobnob.errors import BadInput
from hobnob.records import asdict


@method("channels.status", scope="operator.read")
async def channels_status(call: Call, probe: bool = False, timeout_ms: int | None = None) -> Payload:
    """How each account of each channel is doing. With `probe`, each platform is asked once.

    `timeoutMs` is accepted for other clients; a probe takes at most 30 seconds.
    """
    call.require_all_agents()
    chats = call.services.chats
    queued = await chats.queued()
    accounts: dict[str, list[Payload]] = {}
    for status in chats.statuses():
        row = _status(status) | (
            {"canLogin": True} if chats.can_login(status.channel, status.account_id) else {}
        )
        if probe:
            identity, problem = await chats.probe(status.channel, status.account_id)
            row["probe"] = {"ok": problem is None} | ({"error": problem} if problem else {})
            if identity is not None:
                row["probe"]["identity"] = asdict(identity)
        accounts.setdefault(status.channel, []).append(row)
    return {
        "channelOrder": list(accounts),
        "channels": {
            name: {
                "configured": True,
                "running": any(r["running"] for r in rows),
                "queued": queued.get(name, 0),
            }
            for name, rows in accounts.items()
        },
        "channelAccounts": accounts,
    }


@method("channels.capabilities", scope="operator.read")
async def channels_capabilities(call: Call, channel: str, account_id: str | None = None) -> Payload:
    """What a channel can do."""
    call.require_all_agents()
    found = call.services.chats.capabilities(channel, account_id)
    return {to_camel(name): None if value == float("inf") else value for name, value in found.items()}


@method("channels.start", scope="operator.admin")
async def channels_start(call: Call, channel: str, account_id: str | None = None) -> Payload:
    """Start an account that was stopped, or all accounts of a channel."""
    call.require_all_agents()
    call.services.chats.start_account(channel, account_id)
    return {"ok": True}


@method("channels.stop", scope="operator.admin")
async def channels_stop(call: Call, channel: str, account_id: str | None = None) -> Payload:
    """Stop an account, or all accounts of a channel, until they are started or the gateway restarts."""
    call.require_all_agents()
    call.services.chats.stop_account(channel, account_id)
    return {"ok": True}


@method("channels.logout", scope="operator.admin")
async def channels_logout(call: Call, channel: str, account_id: str | None = None) -> Payload:
    """Stop an account and forget the credentials that a login obtained; tokens in the settings stay."""
    call.require_all_agents()
    await call.services.chats.logout(channel, account_id)
    return {"ok": True}


@method("channels.messages", scope="operator.read")
async def channels_messages(
    call: Call, event_id: str | None = None, limit: Annotated[int, Field(ge=1, le=200)] = 50
) -> Payload:
    """The newest messages from chats with the verdict on each, newest first; or those with an event id.

    The text of a refused message is not kept.
    """
    call.require_all_agents()
    found = await call.services.chats.messages(event_id, limit=limit)
    return {"messages": [_message(event) for event in found]}


@method("pairing.list", scope="operator.pairing")
async def pairing_list(call: Call) -> Payload:
    """Senders who asked to be let in, with their codes, and senders who were let in."""
    call.require_all_agents()
    found = await call.services.chats.pairings()
    return {
        "pending": [_pairing(p) for p in found if p.state == "pending"],
        "approved": [_pairing(p) for p in found if p.state == "approved"],
    }


@method("pairing.approve", scope="operator.pairing")
async def pairing_approve(
    call: Call,
    code: str,
    channel: str | None = None,
    account_id: str | None = None,
    owner: bool = False,
    notify: bool = True,
) -> Payload:
    """Let in the sender who was given this code, into direct chat with one account.

    `owner`: the sender becomes an owner if the channel has none; needs `operator.admin`.
    """
    call.require_all_agents()
    owner = owner and call.operator.is_owner
    pairing = await call.services.chats.approve(
        code, channel=channel, account_id=account_id, owner=owner, notify=notify
    )
    return {"sender": _pairing(pairing)}


@method("pairing.revoke", scope="operator.pairing")
async def pairing_revoke(call: Call, channel: str, sender_id: str, account_id: str = "default") -> Payload:
    """Remove a sender who was let in, or a request."""
    call.require_all_agents()
    await call.services.chats.revoke(channel, account_id, sender_id)
    return {"ok": True}


@method("send", scope="operator.write")
async def send(
    call: Call,
    to: str,
    message: str,
    channel: str | None = None,
    account_id: str | None = None,
    thread_id: str | None = None,
    idempotency_key: str | None = None,
) -> Payload:
    """Send a message to a chat, outside of any session. The answer says that it is queued.

    `to` may begin with the name of the channel, as in `telegram:123`.
    """
    call.require_all_agents()
    if channel is None:
        channel = routing.channel_prefix(to)
        if channel is None or channel not in call.services.chats.accounts.names():
            raise BadInput("Name the channel.", fix='For example: {"channel": "telegram", "to": "123"}.')
    call.services.sessions.check_message(message)
    route = DeliveryRoute(channel, routing.bare(channel, to), account_id, thread_id)
    delivery = await call.services.chats.send(route, message, idempotency_key=idempotency_key)
    return {"deliveryId": delivery.delivery_id, "channel": channel, "to": route.to, "state": delivery.state}


def _status(status: Status) -> Payload:
    row: dict[str, Any] = {
        "accountId": status.account_id,
        "state": status.state,
        "running": status.state != "stopped",
        "connected": status.state == "connected",
        "lastError": status.last_error,
        "connectedAt": status.connected_at_ms,
        "lastInboundAt": status.last_inbound_at_ms,
        "lastOutboundAt": status.last_outbound_at_ms,
        "reconnects": status.reconnects,
    }
    if status.identity is not None:
        row["identity"] = {"id": status.identity.id, "name": status.identity.name}
    return {name: value for name, value in row.items() if value is not None}


def _message(event: InboxEvent) -> Payload:
    row: dict[str, Any] = {
        "eventId": event.event_id,
        "channel": event.channel,
        "accountId": event.account_id,
        "chatId": event.chat_id,
        "threadId": event.thread_id,
        "senderId": event.sender_id,
        "senderName": event.sender_name or None,
        "state": event.state,
        "code": event.code,
        "why": event.why,
        "fix": event.fix or None,
        "sessionKey": event.session_key,
        "runId": event.turn_id,
        "at": event.created_at_ms,
    }
    return {name: value for name, value in row.items() if value is not None}


def _pairing(pairing: Pairing) -> Payload:
    row: dict[str, Any] = {
        "channel": pairing.channel,
        "accountId": pairing.account_id,
        "senderId": pairing.sender_id,
        "senderName": pairing.sender_name or None,
        "owner": pairing.is_owner,
        "createdAt": pairing.created_at_ms,
    }
    if pairing.state == "pending":
        row |= {"code": pairing.code, "expiresAt": pairing.expires_at_ms}
    else:
        row["approvedAt"] = pairing.approved_at_ms
    return {name: value for name, value in row.items() if value is not None}
