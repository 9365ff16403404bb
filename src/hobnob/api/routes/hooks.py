"""Webhooks: a call from another system becomes a turn. They have their own secret and may only send.

The text of a call never has owner rights: it is untrusted input, and the agent is told so.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from hobnob import briefings, keys
from hobnob.api import Services
from hobnob.api.auth import FailedAttempts, Principal, peer_of
from hobnob.api.routes import hook_templates
from hobnob.api.routing import HttpCall, Payload, Route, bearer, idempotency_key
from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.config.gateway import HookMapping, WakeMode
from hobnob.errors import BadInput, NotAllowed, NotFound, Unauthenticated, UnknownAgent
from hobnob.fixes import config_set
from hobnob.keys import SessionKey, Shape
from hobnob.policy import Operator
from hobnob.policy.names import LIST_HINT
from hobnob.sessions import InboundMessage, TurnOptions
from hobnob.types import Turn

_TOKEN_HEADERS = ("x-hobnob-token", "x-openclaw-token")
Key = Annotated[str, Field(min_length=1, max_length=256)]


class AnyBody(BaseModel):
    """A JSON object of any shape."""

    model_config = ConfigDict(extra="allow", defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRequest:
    """The turn a hook call asks for, whichever route it used."""

    text: str
    name: str
    session: SessionKey
    note: bool = False
    model: str | None = None
    thinking: str | None = None
    timeout_s: int | None = None
    idempotency_key: str | None = None


def routes(services: Services) -> list[Route]:
    """The hook routes at their configured path. While hooks are off, they answer 404."""
    hooks = services.config.settings.hooks
    return list(routes_at(hooks.path, hooks.max_body_bytes))


def routes_at(path: str, max_bytes: int) -> Iterator[Route]:
    auth = HookAuthenticator()
    for name, function in (("agent", agent), ("wake", wake)):
        yield Route("POST", f"{path}/{name}", None, function, max_bytes, auth.authenticate)
    yield Route("POST", f"{path}/{{name:path}}", None, mapped, max_bytes, auth.authenticate, AnyBody)


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
        if secret:
            self._attempts.wrong(address)
        raise Unauthenticated(
            "unauthorized: the hook token is missing or wrong.", reason="HOOK_TOKEN", fix=_HINT
        )


_HINT = "It is the value of hooks.token, not the gateway's token."


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
    channel: Literal["last"] | None = None,
) -> Payload:
    """A turn of an agent, in a session `hook:<uuid>` of its own unless another is configured or named.

    `wakeMode`, `deliver` and `channel` are accepted and ignored; the answer is in the session.
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
    )
    return _accepted(await _send(call, request))


async def wake(
    call: HttpCall,
    text: str,
    mode: WakeMode = "now",
    idempotency_key: Key | None = None,
) -> Payload:
    """A message for the default agent's main session: `now` starts a turn, else the next turn reads it."""
    settings = call.services.config.settings
    main = keys.main_of(settings.default_agent.id)
    request = HookRequest(
        text=text, name="wake", session=main, note=mode != "now", idempotency_key=idempotency_key
    )
    return _accepted(await _send(call, request)) | {"mode": mode}


async def mapped(call: HttpCall, body: AnyBody) -> Payload | Response:
    """A call in another system's format, translated by `hooks.mappings`.

    Answers 204 when a mapping for this path exists and none matches this call.
    """
    settings = call.services.config.settings
    name = str(call.http.path_params["name"]).strip("/")
    mappings = [m for m in settings.hooks.mappings if m.match.path is None or m.match.path.strip("/") == name]
    payload = body.model_extra or {}
    mapping = next((m for m in mappings if _matches(m, payload)), None)
    if mapping is None and not any(m.match.path for m in mappings):
        raise NotFound(f"There is no hook {name!r}.", fix="Add it to hooks.mappings.")
    request = _mapped_request(settings, mapping, payload) if mapping else None
    if request is None:
        return Response(status_code=204)
    return _accepted(await _send(call, request))


def _matches(mapping: HookMapping, payload: dict[str, Any]) -> bool:
    found = (
        (hook_templates.value_at(payload, place), value) for place, value in mapping.match.payload.items()
    )
    return all(
        actual == value and isinstance(actual, bool) == isinstance(value, bool) for actual, value in found
    )


def _mapped_request(settings: Settings, mapping: HookMapping, payload: dict[str, Any]) -> HookRequest | None:
    """The request a mapping makes of a call; None when its template renders to nothing."""
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
    caller = replace(call.operator, agents=(request.session.agent,))  # checked by now; no other is needed
    message = InboundMessage(
        request.text,
        idempotency_key=request.idempotency_key or idempotency_key(call.http),
        timeout_s=request.timeout_s,
        options=TurnOptions(model=request.model, thinking=request.thinking),
        plain=True,
        provenance=briefings.from_hook(request.name),
        step="note" if request.note else "message",
    )
    return await call.services.sessions.send(caller, str(request.session), message)


def _accepted(turn: Turn) -> Payload:
    return {"ok": True, "runId": turn.turn_id, "sessionKey": turn.session_key}
