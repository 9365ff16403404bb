"""Webhooks of chat channels: calls of platforms that push messages over HTTP.

The channel itself checks who calls. A call is answered with 200 only when its messages are on disk; whatever
else happens, the platform is told to send it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from hobnob import redact
from hobnob.api import Services
from hobnob.api.auth import Principal
from hobnob.api.routes.hooks import AnyBody
from hobnob.api.routing import NOBODY, HttpCall, Route
from hobnob.channels import Channel
from hobnob.channels.webhooks import WebhookCall
from hobnob.errors import NotFound

PATH = "/channels/{channel}/{account_id}/webhook"
BODY_BYTES = 4 * 1024 * 1024
_log = logging.getLogger(__name__)


def routes() -> Iterator[Route]:
    """The webhook of every account, for both methods that platforms use."""
    verbs: tuple[Literal["GET", "POST"], ...] = ("GET", "POST")
    for verb in verbs:
        yield Route(verb, PATH, None, webhook, BODY_BYTES, _has_webhook, AnyBody)


async def webhook(call: HttpCall, body: AnyBody) -> Response:
    """A call of a platform to one of its accounts, passed on to the channel."""
    request = call.http
    place = request.path_params["channel"], request.path_params["account_id"]
    received = WebhookCall(
        request.method,
        dict(request.headers),
        dict(request.query_params),
        bytes(request.scope.get("hobnob.body", b"")),
    )
    try:
        answer = await _channel(call.services, request).on_webhook(received)
    except NotFound:
        raise
    except Exception as fault:  # whatever it is, the platform has to send the call again
        _log.error("call to the webhook of %s, account %s failed: %s", *place, redact.text(str(fault))[0])
        return PlainTextResponse("not now", 503)
    return PlainTextResponse(answer.text, answer.status, {"X-Content-Type-Options": "nosniff"})


def _has_webhook(services: Services, request: Request) -> Principal:
    """Refuse calls to accounts that have no webhook, before their body is read."""
    _channel(services, request)
    return NOBODY


def _channel(services: Services, request: Request) -> Channel:
    name, account_id = request.path_params["channel"], request.path_params["account_id"]
    found = services.chats.accounts.find(name, account_id)
    if found is None or not found.webhook:
        raise NotFound(f"There is nothing at {request.url.path}.")
    return found
