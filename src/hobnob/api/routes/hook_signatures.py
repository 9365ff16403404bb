"""Signatures of webhook senders: GitHub, Slack, Stripe, and plain HMAC. Pure functions.

A signature proves that the sender knows the secret and that the body is unchanged. A time in it limits how
long a recorded call can be repeated; the sender's own id of a delivery keeps a repeated one from a second
turn.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from hobnob.config.gateway import HookSignature

_ID_CHARS = 200


class BadSignature(Exception):
    """The call is not signed as it must be. The message says what is wrong, without the expected value."""


def verify(rules: HookSignature, headers: Mapping[str, str], body: bytes, now_s: float) -> None:
    """Check the signature of a call in constant time. Raises BadSignature."""
    match rules.kind:
        case "github":
            _check(rules, body, [_header(headers, "x-hub-signature-256").removeprefix("sha256=")])
        case "slack":
            at = _header(headers, "x-slack-request-timestamp")
            _check_age(rules, at, now_s)
            given = _header(headers, "x-slack-signature").removeprefix("v0=")
            _check(rules, b"v0:" + at.encode() + b":" + body, [given])
        case "stripe":
            at, given_ones = _stripe_parts(_header(headers, "stripe-signature"))
            _check_age(rules, at, now_s)
            _check(rules, at.encode() + b"." + body, given_ones)
        case "hmac":
            signed = body
            if rules.timestamp_header:
                at = _header(headers, rules.timestamp_header)
                _check_age(rules, at, now_s)
                signed = at.encode() + b"." + body
            _check(rules, signed, [_header(headers, rules.header).removeprefix(rules.prefix)])


def delivery_id(
    rules: HookSignature, headers: Mapping[str, str], payload: Mapping[str, Any], body: bytes
) -> str:
    """What the sender calls this delivery, the same when it repeats it; else a hash of the call."""
    found: Any = None
    match rules.kind:
        case "github":
            found = headers.get("x-github-delivery")
        case "slack":
            found = payload.get("event_id")
        case "stripe":
            found = payload.get("id")
        case "hmac":
            found = headers.get(rules.id_header) if rules.id_header else None
    if isinstance(found, str) and found and len(found) <= _ID_CHARS:
        return f"{rules.kind}:{found}"
    return f"{rules.kind}:sha256:{hashlib.sha256(body).hexdigest()}"


def _check(rules: HookSignature, signed: bytes, given: list[str]) -> None:
    digest = hmac.new(rules.secret.get_secret_value().encode(), signed, hashlib.sha256).digest()
    expected = digest.hex() if rules.encoding == "hex" else base64.b64encode(digest).decode()
    matches = [hmac.compare_digest(expected.encode(), each.strip().encode()) for each in given]
    if not any(matches):
        raise BadSignature("the signature is wrong")


def _check_age(rules: HookSignature, at: str, now_s: float) -> None:
    if not at.isdigit() or len(at) > 12:
        raise BadSignature("the time of the signature is not a number")
    if abs(now_s - int(at)) > rules.tolerance_seconds:
        raise BadSignature(
            f"the signature is older than {rules.tolerance_seconds} seconds, or from the future"
        )


def _stripe_parts(header: str) -> tuple[str, list[str]]:
    parts = [part.strip().partition("=") for part in header.split(",")[:20]]
    at = next((value for name, _, value in parts if name == "t"), "")
    return at, [value for name, _, value in parts if name == "v1"]


def _header(headers: Mapping[str, str], name: str) -> str:
    if not (value := headers.get(name, "").strip()):
        raise BadSignature(f"the header {name} is missing")
    return value
