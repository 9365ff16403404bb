"""Calls from other systems: each becomes a turn. They have a secret of their own, and no rights but to send.

Nothing a call says is obeyed as an owner's word: it is text from outside, and the agent is told so.
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
from hobnob.api.auth import FailedAttempts, peer
from hobnob.api.routes import hook_templates
from hobnob.api.routing import HttpCall, Payload, Route, bearer, idempotency_key
from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.config.gateway import HookMapping, WakeMode
from hobnob.errors import BadInput, NotAllowed, NotFound, TooLarge, Unauthenticated, UnknownAgent
from hobnob.keys import SessionKey, Shape
from hobnob.policy import Operator
from hobnob.sessions import TurnOptions
from hobnob.types import Turn

MESSAGE_CHARS = 200_000
_NAMES = ("x-hobnob-token", "x-openclaw-token")
Key = Annotated[str, Field(min_length=1, max_length=256)]


class AnyBody(BaseModel):
    """A call in a shape of its own."""

    model_config = ConfigDict(extra="allow", defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRequest:
    """What a call comes down to, whichever way it came in."""

    text: str
    name: str
    session: SessionKey
    note: bool = False
    model: str | None = None
    thinking: str | None = None
    timeout_s: int | None = None
    idempotency_key: str | None = None


def routes(services: Services) -> list[Route]:
    """The routes of the hooks, where they are configured to be. While hooks are off, nothing is there."""
    hooks = services.config.settings.hooks
    return list(routes_at(hooks.path, hooks.max_body_bytes))


def routes_at(path: str, most: int) -> Iterator[Route]:
    auth = HookAuthenticator()
    for name, function in (("agent", agent), ("wake", wake)):
        yield Route("POST", f"{path}/{name}", None, function, most, auth.admit)
    yield Route("POST", f"{path}/{{name:path}}", None, mapped, most, auth.admit, AnyBody)


class HookAuthenticator:
    """Knows the hooks' secret, and counts wrong ones apart from those shown at the gateway."""

    def __init__(self) -> None:
        self._tries = FailedAttempts()

    def admit(self, services: Services, request: Request) -> Operator:
        settings = services.config.settings
        if not settings.hooks.enabled:  # looked at each time: they may be turned off while the gateway runs
            raise NotFound(f"There is nothing at {request.url.path}.")
        if "token" in request.query_params:
            raise BadInput(
                "A secret does not belong into an address, which is logged on its way.",
                fix="Send it as `Authorization: Bearer …` or in the header X-Hobnob-Token.",
            )
        there = peer(settings, request.client.host if request.client else None, request.headers).address
        self._tries.check(there)
        shown = bearer(request) or next(filter(None, map(request.headers.get, _NAMES)), "")
        known = settings.hooks.token.get_secret_value() if settings.hooks.token else ""
        if known and hmac.compare_digest(known.encode(), shown.encode()):
            return Operator("hooks", ("operator.write",))
        if shown:
            self._tries.wrong(there)
        raise Unauthenticated("unauthorized: that is not the hooks' token", reason="HOOK_TOKEN", fix=_HINT)


_HINT = "It is what hooks.token says, and not the gateway's own."


def _reach(settings: Settings) -> tuple[str, ...] | None:
    """The agents hooks may reach: the default one always, others as configured."""
    allowed = settings.hooks.allowed_agent_ids
    return (settings.default_agent.id, *allowed) if allowed and "*" not in allowed else None


async def agent(
    visit: HttpCall,
    message: Annotated[str, Field(max_length=MESSAGE_CHARS)],
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

    `wakeMode`, `deliver` and `channel` are taken for the sake of callers that send them; the answer stands in
    the session.
    """
    settings = visit.services.config.settings
    chosen = _agent(settings, agent_id)
    if session_key is not None:
        session = _asked_for(settings, chosen, session_key)
    else:
        session = _default_session(settings, chosen)
    wish = HookRequest(
        text=message,
        name=name,
        session=session,
        model=model,
        thinking=thinking,
        timeout_s=timeout_seconds,
        idempotency_key=idempotency_key,
    )
    return _told(await _send(visit, wish))


async def wake(
    visit: HttpCall,
    text: Annotated[str, Field(max_length=MESSAGE_CHARS)],
    mode: WakeMode = "now",
    idempotency_key: Key | None = None,
) -> Payload:
    """A message for the default agent's main session: acted on `now`, or read at its next turn."""
    settings = visit.services.config.settings
    main = keys.main_of(settings.default_agent.id)
    wish = HookRequest(
        text=text, name="wake", session=main, note=mode != "now", idempotency_key=idempotency_key
    )
    return _told(await _send(visit, wish)) | {"mode": mode}


async def mapped(visit: HttpCall, body: AnyBody) -> Payload | Response:
    """A call in another system's shape, read as `hooks.mappings` says.

    204 when there is a mapping for this address and it has no use for this call.
    """
    settings = visit.services.config.settings
    name = str(visit.web.path_params["name"]).strip("/")
    here = [m for m in settings.hooks.mappings if m.match.path is None or m.match.path.strip("/") == name]
    payload = body.model_extra or {}
    fitting = next((m for m in here if _fits(m, payload)), None)
    if fitting is None and not any(m.match.path for m in here):
        raise NotFound(f"There is no hook {name!r}.", fix="Add it to hooks.mappings.")
    wish = _wish(settings, fitting, payload) if fitting else None
    if wish is None:
        return Response(status_code=204)
    return _told(await _send(visit, wish))


def _fits(mapping: HookMapping, payload: dict[str, Any]) -> bool:
    found = ((hook_templates.at(payload, place), value) for place, value in mapping.match.payload.items())
    return all(
        there == value and isinstance(there, bool) == isinstance(value, bool) for there, value in found
    )


def _wish(settings: Settings, mapping: HookMapping, payload: dict[str, Any]) -> HookRequest | None:
    """What a mapping makes of a call; nothing when that leaves no words."""
    text = hook_templates.rendered(mapping.template or "", payload)
    if not text.strip():
        return None
    if len(text) > MESSAGE_CHARS:
        raise TooLarge(f"The message would have {len(text):,} characters; {MESSAGE_CHARS:,} is the most.")
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
    chosen, reach = keys.agent_id(agent_id), _reach(settings)
    if reach is not None and chosen not in reach:
        raise NotAllowed(
            f"Hooks may not reach the agent {chosen!r}.",
            rule="hooks.agent",
            fix=f"Add {chosen!r} to hooks.allowedAgentIds.",
        )
    if settings.agent(chosen) is None:
        raise UnknownAgent(f"There is no agent {chosen!r}.", fix="Add it to agents.list.")
    return chosen


def _default_session(settings: Settings, agent: str) -> SessionKey:
    reference = settings.hooks.default_session_key or f"hook:{uuid.uuid4()}"
    return keys.parse(reference, settings.viewer(agent))


def _asked_for(settings: Settings, agent: str, reference: str) -> SessionKey:
    """The session a call names, where calls may."""
    if not settings.hooks.allow_request_session_key:
        raise NotAllowed(
            "A call may not name its session here.",
            rule="hooks.session_key",
            fix="Set hooks.allowRequestSessionKey = true, or leave sessionKey out.",
        )
    key = keys.parse(reference, settings.viewer(agent))
    _agent(settings, key.agent)
    _check_prefix(settings, key)
    return key


def _from_template(settings: Settings, agent: str, template: str, payload: dict[str, Any]) -> SessionKey:
    """The session of a mapping. Where the payload had a say, what came out is checked, not what was meant."""
    hooks, key = (
        settings.hooks,
        keys.parse(hook_templates.rendered(template, payload), settings.viewer(agent)),
    )
    if not hook_templates.has_places(template):
        return key
    _agent(settings, key.agent)
    if hooks.allowed_session_key_prefixes:
        _check_prefix(settings, key)
    elif key.shape is not Shape.HOOK and not hooks.allow_request_session_key:
        raise _outside_prefixes(key, ["hook:"])
    return key


def _check_prefix(settings: Settings, key: SessionKey) -> None:
    prefixes = settings.hooks.allowed_session_key_prefixes
    if prefixes and not any(_begins(settings, key, prefix) for prefix in prefixes):
        raise _outside_prefixes(key, prefixes)


def _begins(settings: Settings, key: SessionKey, prefix: str) -> bool:
    wanted = keys.canonical_prefix(prefix, settings.session.main_key)
    return key.rest.startswith(wanted) or str(key).startswith(wanted)


def _outside_prefixes(key: SessionKey, prefixes: list[str]) -> NotAllowed:
    return NotAllowed(
        f"Calls may not reach the session {key}: it does not begin with {' or '.join(prefixes)}.",
        rule="hooks.session_key_prefix",
        fix="Add how it begins to hooks.allowedSessionKeyPrefixes.",
    )


async def _send(visit: HttpCall, wish: HookRequest) -> Turn:
    wish = replace(wish, idempotency_key=wish.idempotency_key or idempotency_key(visit.web))
    if wish.model is not None:
        visit.services.models.info(wish.model)
    caller = replace(visit.operator, agents=(wish.session.agent,))  # checked by now, and no other is needed
    return await visit.services.sessions.send(
        caller,
        str(wish.session),
        wish.text,
        idempotency_key=wish.idempotency_key,
        timeout_s=wish.timeout_s,
        options=TurnOptions(model=wish.model, thinking=wish.thinking),
        plain=True,
        provenance=briefings.from_hook(wish.name),
        step="note" if wish.note else "message",
    )


def _told(turn: Turn) -> Payload:
    return {"ok": True, "runId": turn.turn_id, "sessionKey": turn.session_key}
