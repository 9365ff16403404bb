"""Maps errors of providers to `CallFailed` with a `FailureKind`.

Providers report the same failure in different ways: as a status, in a JSON body, or within a stream.
"""

from __future__ import annotations

import email.utils
import http
import logging
import re
import time
from collections.abc import Mapping
from typing import Any

import orjson

from hobnob import json_input, redact
from hobnob.error_texts import summary
from hobnob.models import Failed, FailureKind

_LOGGED_CHARS = 8_000  # of a body in the debug log
_CODE_CHARS = 100
_MAX_WAIT_S = 86_400.0
_SHORTEST_KEY = 8

_TOO_LONG = re.compile(
    r"maximum (context|prompt) length|context[_ ](length|window|size|limit)|too many (input )?tokens"
    r"|\b(prompt|input|conversation)\b.{0,60}\b(too long|too large|exceeds?)\b"
    r"|\breduce the length of the messages",
    re.IGNORECASE | re.DOTALL,
)
_TRANSIENT = re.compile(
    r"overloaded|rate_?limit|too_many_requests|unavailable|resource_exhausted|server_error|api_error|internal",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r"invalid|authentication|permission|not_?found|billing|insufficient_quota|unsupported|failed_precondition",
    re.IGNORECASE,
)
_log = logging.getLogger(__name__)


class CallFailed(Exception):
    """A call to a provider failed. `received` is what it sent instead of an answer, for the debug log."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        retry_after_s: float | None = None,
        *,
        received: bytes = b"",
    ) -> None:
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s
        self.received = received
        super().__init__(message)

    def event(self, provider: str, key: str) -> Failed:
        """The last event of the stream. The key is masked: providers repeat it in error messages."""
        # Keys of local servers are often plain words that may occur in any message.
        secret = key if len(key) >= _SHORTEST_KEY else ""
        message = self.message.replace(secret, "***") if secret else self.message
        if self.received and _log.isEnabledFor(logging.DEBUG):
            received = self.received.decode("utf-8", "replace")
            received = received.replace(secret, "***") if secret else received
            _log.debug("%s sent: %s", provider, redact.excerpt(received, _LOGGED_CHARS))
        return Failed(self.kind, f"{provider}: {message}", self.retry_after_s)


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> CallFailed:
    """The failure for an HTTP response with a status other than 200."""
    error = _error_in(body)
    message, codes = _message_in(error), _codes_in(error)
    kind = _kind_of_status(status)
    if kind == "refused" and status != 401 and _TOO_LONG.search(f"{codes} {message}"):
        kind = "too_long"
    if kind == "overloaded" and "insufficient_quota" in codes:
        kind = "refused"  # a retry does not refill the account
    reason = message or _page_instead(status, body)
    wait = _retry_after(headers, error) if kind in ("overloaded", "unreachable") else None
    return CallFailed(kind, f"answered {status}: {reason}", wait, received=body)


def from_stream(error: Any) -> CallFailed:
    """The failure for an error object within a stream."""
    message, codes = _message_in(error), _codes_in(error)
    status = error.get("code") if isinstance(error, dict) else None
    kind: FailureKind = "overloaded"  # the request was accepted, so it is a server error
    if _TOO_LONG.search(f"{codes} {message}"):
        kind = "too_long"
    elif isinstance(status, int) and 400 <= status < 600:
        kind = _kind_of_status(status)
    elif _PERMANENT.search(codes) and not _TRANSIENT.search(codes):
        kind = "refused"
    return CallFailed(kind, f"failed in mid-stream: {message or 'no reason given'}", _retry_after({}, error))


def from_ok_body(body: bytes) -> CallFailed:
    """The failure for a response with status 200 that is not a stream."""
    error = _error_in(body)
    if isinstance(error, dict) and _message_in(error):
        failure = from_stream(error)
        return CallFailed(failure.kind, failure.message, failure.retry_after_s, received=body)
    return not_a_stream(body)


def not_a_stream(received: bytes) -> CallFailed:
    message = "did not answer with an event stream; check baseUrl. The debug log shows what it sent"
    return CallFailed("garbled", message, received=received)


def _page_instead(status: int, body: bytes) -> str:
    """A summary of an error without a message. Its text is for the log: it may be a stack trace."""
    phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else "no reason given"
    if not body.strip():
        return phrase
    return f"{phrase}, with {len(body):,} bytes that are no JSON error; the debug log shows them"


def _kind_of_status(status: int) -> FailureKind:
    if status in (409, 425, 429, 500, 503, 529):
        return "overloaded"
    if status == 408 or status > 500:
        return "unreachable"  # a proxy in between got no answer in time
    return "refused"


def _error_in(body: bytes) -> Any:
    try:
        data = json_input.loads(body)
    except ValueError:
        return None
    if isinstance(data, list) and data:
        data = data[0]
    return data.get("error") or data if isinstance(data, dict) else None


def _message_in(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error")
        if isinstance(error, dict | list):
            error = orjson.dumps(error).decode()
    if not isinstance(error, str):
        return ""
    return summary(error) or ("a stack trace; the debug log shows it" if error.strip() else "")


def _codes_in(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    codes = (error.get(name) for name in ("type", "code", "status"))
    return " ".join(str(code)[:_CODE_CHARS] for code in codes if isinstance(code, str | int) and code)


def _retry_after(headers: Mapping[str, str], error: Any) -> float | None:
    text = headers.get("Retry-After", "").strip()
    if millis := headers.get("Retry-After-Ms"):
        wait = _number(millis, 0.001)
    elif text and not text[0].isdigit():
        wait = _seconds_until(text)
    else:
        wait = _number(text or _retry_delay(error))
    return None if wait is None else min(max(wait, 0.0), _MAX_WAIT_S)


def _seconds_until(date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (OverflowError, TypeError, ValueError):
        return None


def _number(text: str, unit: float = 1.0) -> float | None:
    found = re.match(r"\s*(\d{1,9}(?:\.\d{1,9})?)", text)
    return float(found[1]) * unit if found else None


def _retry_delay(error: Any) -> str:
    """Google sends the retry delay in the body."""
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, dict) and isinstance(delay := detail.get("retryDelay"), str):
            return delay
    return ""
