"""Webhooks: a call from another system becomes a turn. They have their own secret and may only send.

The text of a call never has owner rights: it is untrusted input, and the agent is told so.
"""

from __future__ import annotations

import functools
import hmac
import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from hobnob import briefings, exchanges, keys
from hobnob.api import Services
from hobnob.api.auth import FailedAttempts, Principal, peer_of
from hobnob.api.routes import hook_signatures, hook_templates
from hobnob.api.routing import HttpCall, Payload, Route, bearer, idempotency_key
from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.config.gateway import HookMapping, WakeMode
from hobnob.errors import BadInput, NotAllowed, NotFound, Unauthenticated, UnknownAgent
from hobnob.fixes import config_set
from hobnob.keys import SessionKey, Shape
from hobnob.policy import Operator
from hobnob.policy.names import LIST_HINT
from hobnob.records import Struct, replace
from hobnob.sessions import InboundMessage, TurnOptions
from hobnob.types import Turn

_TOKEN_HEADERS = ("x-hobnob-token", "x-openclaw-token")
Key = Annotated[str, Field(min_length=1, max_length=256)]


class AnyBody(BaseModel):
    """A JSON object of any shape."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class HookRequest(Struct, frozen=True, kw_only=True):
    """The turn a hook call asks for, whichever route it used."""

    text: str
    name: str
    session: SessionKey
    note: bool = False
    model: str | None = None
    thinking: str | None = None
    timeout_s: int | None = None
    idempotency_key: str | None = None
    deliver: tuple[str | None, ...] | None = None


def routes(services: Services) -> list[Route]:
    """The hook routes at their configured path. While hooks are off, they answer 404."""
    hooks = services.config.settings.hooks
    return list(routes_at(hooks.path, hooks.max_body_bytes))


def routes_at(path: str, max_bytes: int) -> Iterator[Route]:
    auth = HookAuthenticator()
    for name, function in (("agent", agent), ("wake", wake)):
        yield Route("POST", f"{path}/{name}", None, function, max_bytes, auth.authenticate)

    @functools.wraps(mapped)
    async def mapped_here(call: HttpCall, body: AnyBody) -> Payload | Response:
        return await mapped(call, body, auth)

    yield Route("POST", f"{path}/{{name:path}}", None, mapped_here, max_bytes, auth.authenticate, AnyBody)


class HookAuthenticator:
    """Checks the hook secret. Wrong ones are counted apart from those of the gateway."""

    def __init__(self) -> None:
        self._attempts = FailedAttempts()

    def authenticate(self, services: Services, request: Request) -> Principal:
        settings = services.config.settings
        if not settings.hooks.enabled:  # read each time: a reload may turn hooks off
            raise NotFound(f"There is nothing at {request.url.path}.")
        if "token" in request.query_params:
            raise BadInput(
                "A secret does not belong into the URL, which proxies log.",
                fix="Send it as `Authorization: Bearer …` or in the header X-Hobnob-Token.",
            )
        address = peer_of(settings, request).address
        self._attempts.check(address)
        secret = bearer(request) or next(filter(None, map(request.headers.get, _TOKEN_HEADERS)), "")
        known = settings.hooks.token.get_secret_value() if settings.hooks.token else ""
        if known and hmac.compare_digest(known.encode(), secret.encode()):
            return Principal(Operator("hooks", ("operator.write",)), "")
        if not secret and any(m.verify for m in _mappings_at(settings, request)):
            return Principal(Operator(UNSIGNED, ("operator.write",)), "")  # its signature is checked next
        if secret:
            self._attempts.wrong(address)
        raise _unauthorized("the hook token is missing or wrong")

    def verify(self, services: Services, request: Request, mapping: HookMapping) -> None:
        """Check the signature of a call, or that it had the token. Raises Unauthenticated."""
        settings = services.config.settings
        if mapping.verify is None:
            return
        address = peer_of(settings, request).address
        self._attempts.check(address)
        try:
            hook_signatures.verify(mapping.verify, request.headers, _body(request), time.time())
        except hook_signatures.BadSignature as problem:
            self._attempts.wrong(address)
            raise _unauthorized(str(problem)) from None


_HINT = "It is the value of hooks.token, not the gateway's token."
UNSIGNED = "hooks.unsigned"  # a caller without the token, until its signature is checked
MAX_ITEMS = 200  # of `forEach`
WAIT_S = 300.0


def _unauthorized(why: str) -> Unauthenticated:
    return Unauthenticated(f"unauthorized: {why}.", reason="HOOK_TOKEN", fix=_HINT)


def _body(request: Request) -> bytes:
    return bytes(request.scope.get("hobnob.body", b""))


def _mappings_at(settings: Settings, request: Request) -> list[HookMapping]:
    """The mappings for the path of a call."""
    name = str(request.path_params.get("name", "")).strip("/")
    return [m for m in settings.hooks.mappings if m.match.path is None or m.match.path.strip("/") == name]


def _allowed_agents(settings: Settings) -> tuple[str, ...] | None:
    """The agents hooks may use: the default one always, others as configured; None means all."""
    allowed = settings.hooks.allowed_agent_ids
    return (settings.default_agent.id, *allowed) if allowed and "*" not in allowed else None


async def agent(
    call: HttpCall,
    message: str,
    name: str = "Hook",
    agent_id: str | None = None,
    session_key: str | None = None,
    model: str | None = None,
    thinking: Thinking | None = None,
    timeout_seconds: Annotated[int, Field(ge=1, le=30 * 86_400)] | None = None,
    idempotency_key: Key | None = None,
    wake_mode: WakeMode | None = None,
    deliver: bool | None = None,
    channel: str | None = None,
    to: str | None = None,
    account_id: str | None = None,
    thread_id: str | None = None,
    wait_for_completion: bool = False,
) -> Payload:
    """A turn of an agent, in a session `hook:<uuid>` of its own unless another is configured or named.

    The answer is in the session. With `channel` and `to` it is also posted to that chat; with `deliver: true`
    alone, or the channel `last`, to where people last wrote to the agent. `waitForCompletion` answers when
    the turn has ended, without its text. `wakeMode` is accepted and ignored.
    """
    settings = call.services.config.settings
    chosen = _agent(settings, agent_id)
    if session_key is not None:
        session = _named_session(settings, chosen, session_key)
    else:
        session = _default_session(settings, chosen)
    _agent(settings, session.agent)  # hooks.defaultSessionKey may name a session of another agent
    request = HookRequest(
        text=message,
        name=name,
        session=session,
        model=model,
        thinking=thinking,
        timeout_s=timeout_seconds,
        idempotency_key=idempotency_key,
        deliver=_delivery(call, deliver, channel, to, account_id, thread_id),
    )
    turn = await _send(call, request)
    if not wait_for_completion:
        return _accepted(turn)
    call.ticket.pause()
    return _accepted(turn) | {"completion": _completion(await _ended(call, turn), request.deliver)}


async def wake(
    call: HttpCall,
    text: str,
    mode: WakeMode = "now",
    idempotency_key: Key | None = None,
    agent_id: str | None = None,
    session_key: str | None = None,
) -> Payload:
    """A message for a main session, or the one named: `now` starts a turn, else the next turn reads it."""
    settings = call.services.config.settings
    chosen = _agent(settings, agent_id)
    session = _named_session(settings, chosen, session_key) if session_key else keys.main_of(chosen)
    request = HookRequest(
        text=text, name="wake", session=session, note=mode != "now", idempotency_key=idempotency_key
    )
    return _accepted(await _send(call, request)) | {"mode": mode}


async def mapped(call: HttpCall, body: AnyBody, auth: HookAuthenticator) -> Payload | Response:
    """A call in another system's format, translated by `hooks.mappings`.

    Answers 204 when a mapping for this path exists and none matches this call.
    """
    settings, request = call.services.config.settings, call.http
    name = str(request.path_params["name"]).strip("/")
    mappings, payload = _mappings_at(settings, request), body.model_extra or {}
    mapping = next((m for m in mappings if _matches(m, payload)), None)
    if mapping is None and not any(m.match.path for m in mappings):
        raise NotFound(f"There is no hook {name!r}.", fix="Add it to hooks.mappings.")
    if call.operator.name == UNSIGNED and (mapping is None or mapping.verify is None):
        # A signature that fits any mapping of this path is needed to learn that none matches.
        raise _unauthorized("the hook token is missing or wrong")
    if mapping is None:
        return Response(status_code=204)
    auth.verify(call.services, request, mapping)
    if mapping.verify is not None and payload.get("type") == "url_verification" and "challenge" in payload:
        return {"challenge": str(payload["challenge"])[:1000]}  # Slack asks once whether the address is ours
    items = _items(mapping, payload)
    requests = [r for item in items if (r := _mapped_request(call, mapping, item, name)) is not None]
    if not requests:
        return Response(status_code=204)
    key = idempotency_key(request)
    if key is None and mapping.verify is not None:
        key = hook_signatures.delivery_id(mapping.verify, request.headers, payload, _body(request))
    sent = []
    for number, each in enumerate(requests):
        own = f"{key}:{number}" if key and mapping.for_each else key
        sent.append(await _send(call, replace(each, idempotency_key=own)))
    answer = _accepted(sent[0])
    if mapping.for_each is None:
        return answer
    return answer | {"runIds": [turn.turn_id for turn in sent], "dispatched": len(sent)}


def _items(mapping: HookMapping, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The payload once for each item of the list of `forEach`; once as it is without it."""
    if mapping.for_each is None:
        return [payload]
    listed = payload.get(mapping.for_each)
    if not isinstance(listed, list):
        return []
    if len(listed) > MAX_ITEMS:
        raise BadInput(f"{mapping.for_each} has {len(listed)} items; the limit is {MAX_ITEMS}.")
    return [{**payload, mapping.for_each: [item], "item": item} for item in listed]


def _delivery(
    call: HttpCall,
    deliver: bool | None,
    channel: str | None,
    to: str | None,
    account_id: str | None = None,
    thread_id: str | None = None,
) -> tuple[str | None, ...] | None:
    """Where the answer goes, checked; None for nowhere."""
    if channel in (None, "last"):
        if to:
            raise BadInput("Give channel and to together.", fix="Leave to out for the last chat.")
        return ("last",) if deliver else None
    if not to:
        raise BadInput("Give channel and to together.", fix="Or the channel last, with deliver: true.")
    known = call.services.channels()
    if channel not in known:
        raise BadInput(f"The channel {channel!r} is not connected (connected: {', '.join(known)}).")
    return None if deliver is False else (channel, to, account_id, thread_id)


async def _ended(call: HttpCall, turn: Turn) -> Turn:
    return await call.services.sessions.wait(turn.turn_id, WAIT_S)


def _completion(turn: Turn, deliver: tuple[str | None, ...] | None) -> Payload:
    """How the turn ended, without its text: the caller may be anybody who knows the hook."""
    if turn.status != "ended":
        return {"status": "timeout", "deliveryAttempted": False}
    text = turn.reply or ""
    disposition = "empty" if not text.strip() else "silent" if exchanges.is_silent(text) else "visible"
    status = "ok" if turn.outcome in ("ok", "no_output") else "error"
    attempted = deliver is not None and (disposition == "visible" or status == "error")
    return {"status": status, "replyDisposition": disposition, "deliveryAttempted": attempted}


def _matches(mapping: HookMapping, payload: dict[str, Any]) -> bool:
    if mapping.match.source not in (None, payload.get("source")):
        return False
    found = (
        (hook_templates.value_at(payload, place), value) for place, value in mapping.match.payload.items()
    )
    return all(
        actual == value and isinstance(actual, bool) == isinstance(value, bool) for actual, value in found
    )


def _mapped_request(
    call: HttpCall, mapping: HookMapping, item: dict[str, Any], path: str
) -> HookRequest | None:
    """The request a mapping makes of a call; None when its template renders to nothing."""
    settings, http = call.services.config.settings, call.http
    payload = hook_templates.CallValues(item, http.headers, http.query_params, path)
    text = hook_templates.render(mapping.template or "", payload)
    if not text.strip():
        return None
    chosen = mapping.agent_id or settings.default_agent.id
    if mapping.session_key is not None:
        session = _from_template(settings, chosen, mapping.session_key, payload)
    elif mapping.action == "wake":
        session = keys.main_of(chosen)
    else:
        session = _default_session(settings, chosen)
    return HookRequest(
        text=text,
        name=mapping.name,
        session=session,
        note=mapping.action == "wake" and mapping.wake_mode != "now",
        model=mapping.model,
        thinking=mapping.thinking,
        timeout_s=mapping.timeout_seconds,
        deliver=_delivery(
            call, mapping.deliver, mapping.channel, hook_templates.render(mapping.to or "", payload) or None
        ),
    )


def _agent(settings: Settings, agent_id: str | None) -> str:
    if agent_id is None:
        return settings.default_agent.id
    chosen, allowed = keys.agent_id(agent_id), _allowed_agents(settings)
    if allowed is not None and chosen not in allowed:
        raise NotAllowed(
            f"Hooks may not use the agent {chosen!r}.",
            rule="hooks.agent",
            fix=config_set("hooks.allowedAgentIds", [*settings.hooks.allowed_agent_ids, chosen]),
        )
    if settings.agent(chosen) is None:
        raise UnknownAgent(f"There is no agent {chosen!r}.", fix=LIST_HINT)  # hooks may not list them
    return chosen


def _default_session(settings: Settings, agent: str) -> SessionKey:
    reference = settings.hooks.default_session_key or f"hook:{uuid.uuid4()}"
    return keys.parse(reference, settings.viewer(agent))


def _named_session(settings: Settings, agent: str, reference: str) -> SessionKey:
    """The session a call names, if calls may name one."""
    if not settings.hooks.allow_request_session_key:
        raise NotAllowed(
            "Hook calls may not name their session.",
            rule="hooks.session_key",
            fix=f"Leave sessionKey out, or: {config_set('hooks.allowRequestSessionKey', True)}",
        )
    if not hook_templates.PLAIN.fullmatch(reference):
        raise BadInput(
            "A session key in a hook call may have letters, digits and . _ @ + / : - only.",
            fix="Replace the other characters, or use a hash of the name.",
        )
    key = keys.parse(reference, settings.viewer(agent))
    _agent(settings, key.agent)
    _check_prefix(settings, key)
    return key


def _from_template(settings: Settings, agent: str, template: str, payload: dict[str, Any]) -> SessionKey:
    """The session of a mapping. If the payload contributed to the key, the result is checked."""
    hooks, key = (
        settings.hooks,
        keys.parse(hook_templates.render_key(template, payload), settings.viewer(agent)),
    )
    if not hook_templates.has_placeholders(template):
        return key
    _agent(settings, key.agent)
    if hooks.allowed_session_key_prefixes:
        _check_prefix(settings, key)
    elif key.shape is not Shape.HOOK and not hooks.allow_request_session_key:
        raise _outside_prefixes(key, ["hook:"])
    return key


def _check_prefix(settings: Settings, key: SessionKey) -> None:
    prefixes = settings.hooks.allowed_session_key_prefixes
    if prefixes and not any(_has_prefix(settings, key, prefix) for prefix in prefixes):
        raise _outside_prefixes(key, prefixes)


def _has_prefix(settings: Settings, key: SessionKey, prefix: str) -> bool:
    prefix = keys.canonical_prefix(prefix, settings.session.main_key)
    return key.rest.startswith(prefix) or str(key).startswith(prefix)


def _outside_prefixes(key: SessionKey, prefixes: list[str]) -> NotAllowed:
    return NotAllowed(
        f"Hook calls may not use the session {key}: it does not start with {' or '.join(prefixes)}.",
        rule="hooks.session_key_prefix",
        fix=config_set("hooks.allowedSessionKeyPrefixes", [*prefixes, key.rest]),
    )


async def _send(call: HttpCall, request: HookRequest) -> Turn:
    if request.model is not None:
        call.services.models.info(request.model)
    # Checked by now; no other agent is needed. A signed call is the same caller as one with the token.
    caller = replace(call.operator, name="hooks", agents=(request.session.agent,))
    message = InboundMessage(
        request.text,
        idempotency_key=request.idempotency_key or idempotency_key(call.http),
        timeout_s=request.timeout_s,
        options=TurnOptions(model=request.model, thinking=request.thinking, deliver=request.deliver),
        plain=True,
        provenance=briefings.from_hook(request.name),
        step="note" if request.note else "message",
    )
    return await call.services.sessions.send(caller, str(request.session), message)


def _accepted(turn: Turn) -> Payload:
    return {"ok": True, "runId": turn.turn_id, "sessionKey": turn.session_key}
