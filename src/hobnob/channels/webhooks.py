"""Calls of platforms to the gateway's HTTP server, as channels see them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from hobnob import json_input
from hobnob.records import Struct


class WebhookCall(Struct, frozen=True):
    """A request to the webhook of an account, from anybody. Names of headers are in lower case."""

    method: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON. Raises ValueError."""
        return json_input.loads(self.body)

    def is_signed(self, header: str, secret: str, prefix: str = "sha256=") -> bool:
        """Whether a header has the HMAC-SHA256 of the body under this secret, in hexadecimal."""
        expected = prefix + hmac.new(secret.encode(), self.body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected.encode(), self.headers.get(header, "").encode())


class WebhookAnswer(Struct, frozen=True):
    """The answer to a call: a status and a plain text."""

    status: int = 200
    text: str = ""
