"""Signatures of senders, with examples computed here and one from GitHub's documentation."""

import hashlib
import hmac
from typing import Any

import pytest

from hobnob.api.routes.hook_signatures import BadSignature, delivery_id, verify
from hobnob.config.gateway import HookSignature

NOW = 1_800_000_000
RIGHT = "s3cret"
BODY = b'{"a": 1}'


def rules(kind: str, **more: Any) -> HookSignature:
    return HookSignature.model_validate({"kind": kind, "secret": RIGHT} | more)


def signed(data: bytes, secret: str = RIGHT) -> str:
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def slack(at: int, secret: str = RIGHT) -> dict[str, str]:
    return {
        "x-slack-request-timestamp": str(at),
        "x-slack-signature": "v0=" + signed(b"v0:%d:" % at + BODY, secret),
    }


def stripe(at: int, secret: str = RIGHT) -> dict[str, str]:
    return {"stripe-signature": f"t={at},v0=old,v1=nonsense,v1={signed(b'%d.' % at + BODY, secret)}"}


def github(secret: str = RIGHT) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + signed(BODY, secret)}


@pytest.mark.promise("hooks.signatures")
def test_the_example_of_github_is_right() -> None:
    header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    example = HookSignature.model_validate({"kind": "github", "secret": "It's a Secret to Everybody"})
    verify(example, {"x-hub-signature-256": header}, b"Hello, World!", NOW)


@pytest.mark.promise("hooks.signatures")
@pytest.mark.parametrize(
    ("kind", "headers"), [("github", github()), ("slack", slack(NOW - 200)), ("stripe", stripe(NOW + 200))]
)
def test_a_right_signature_is_accepted(kind: str, headers: dict[str, str]) -> None:
    verify(rules(kind), headers, BODY, NOW)
    with pytest.raises(BadSignature, match="wrong"):
        verify(rules(kind), headers, BODY + b" ", NOW)


@pytest.mark.promise("hooks.signatures")
@pytest.mark.parametrize(
    ("kind", "headers", "why"),
    [
        ("github", {}, "missing"),
        ("github", github("other"), "wrong"),
        ("github", {"x-hub-signature-256": "sha256=é"}, "wrong"),
        ("slack", slack(NOW, "other"), "wrong"),
        ("slack", slack(NOW - 301), "older"),
        ("slack", slack(NOW + 301), "future"),
        ("slack", slack(NOW) | {"x-slack-request-timestamp": "soon"}, "not a number"),
        ("stripe", stripe(NOW - 301), "older"),
        ("stripe", stripe(NOW, "other"), "wrong"),
        ("stripe", {"stripe-signature": "v1=x"}, "not a number"),
    ],
)
def test_a_wrong_missing_or_old_signature_is_refused(kind: str, headers: dict[str, str], why: str) -> None:
    with pytest.raises(BadSignature, match=why):
        verify(rules(kind), headers, BODY, NOW)


def test_plain_hmac_has_a_header_prefix_and_time_of_choice() -> None:
    plain = rules("hmac", header="x-mine", prefix="v=")
    verify(plain, {"x-mine": "v=" + signed(BODY)}, BODY, NOW)
    timed = rules("hmac", header="x-mine", timestampHeader="x-at")
    verify(timed, {"x-mine": signed(b"%d." % NOW + BODY), "x-at": str(NOW)}, BODY, NOW)
    with pytest.raises(BadSignature):
        verify(timed, {"x-mine": signed(BODY), "x-at": str(NOW)}, BODY, NOW)


@pytest.mark.promise("hooks.repeats")
def test_a_delivery_has_the_id_of_its_sender_or_a_hash() -> None:
    assert delivery_id(rules("github"), {"x-github-delivery": "7"}, {}, BODY) == "github:7"
    assert delivery_id(rules("slack"), {}, {"event_id": "Ev1"}, BODY) == "slack:Ev1"
    assert delivery_id(rules("stripe"), {}, {"id": "evt_1"}, BODY) == "stripe:evt_1"
    assert delivery_id(rules("hmac", idHeader="x-id"), {"x-id": "9"}, {}, BODY) == "hmac:9"
    unnamed = delivery_id(rules("github"), {}, {}, BODY)
    assert unnamed == delivery_id(rules("github"), {}, {}, BODY) != delivery_id(rules("github"), {}, {}, b"x")
