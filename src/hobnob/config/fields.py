"""Field types of the settings: literals, validators, the section base class, and facts about fields."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.alias_generators import to_camel

from hobnob import keys
from hobnob.errors import BadKey
from hobnob.records import Struct
from hobnob.types import QueueMode

Visibility = Literal["self", "tree", "agent", "all"]
Action = Literal["allow", "deny"]
GrantVerb = Literal["list", "history", "send", "spawn", "control"]
SandboxMode = Literal["off", "non-main", "all"]
Access = Literal["none", "ro", "rw"]
Scope = Literal["operator.read", "operator.write", "operator.admin", "operator.approvals", "operator.pairing"]
Api = Literal[
    "openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai", "pydantic-ai"
]
Thinking = Literal["off", "minimal", "low", "medium", "high", "xhigh"]


KEEP = "keep"
_DURATION = re.compile(r"[0-9]{1,6}[hdw]")
_UNIT_MS = {"h": 3_600_000, "d": 24 * 3_600_000, "w": 7 * 24 * 3_600_000}
_MIN_RETENTION_MS = 24 * 3_600_000
_FOREVER_MS = 2**61
_MIN_PASSPHRASE_CHARS = 16


def _checked_agent_id(text: str) -> str:
    try:
        return keys.agent_id(text)
    except BadKey:
        raise ValueError("an agent id has 1 to 64 letters, digits, - or _") from None


def _checked_pattern(text: str) -> str:
    return text if text.strip() == "*" else _checked_agent_id(text)


def _checked_main_key(text: str) -> str:
    try:
        folded = keys.fold(text)
    except BadKey as problem:
        raise ValueError(problem.message) from None
    if not folded or ":" in folded or folded in ("agent", *keys.RESERVED):
        raise ValueError("must be one word without a colon, and not a reserved word")
    return folded


def _not_empty(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("must not be empty: anyone could sign in; leave the setting out instead")
    return secret


def _checked_passphrase(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value().strip()  # a file with a key often ends with a line break
    if len(text) < _MIN_PASSPHRASE_CHARS:
        raise ValueError(f"must have at least {_MIN_PASSPHRASE_CHARS} characters: openssl rand -base64 32")
    return SecretStr(text)


def _checked_network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text.strip()))
    except ValueError:
        raise ValueError("must be a network such as 10.1.0.0/16, or one address") from None


def _checked_duration(text: str) -> str:
    text = text.strip().lower()
    if text == KEEP:
        return text
    if not _DURATION.fullmatch(text) or duration_ms(text) < _MIN_RETENTION_MS:
        raise ValueError('must be a time of at least one day, such as "30d" or "48h", or "keep"')
    return text


def duration_ms(text: str) -> int:
    """A duration such as `30d` in milliseconds; for `keep`, longer than anything is old."""
    return _FOREVER_MS if text == KEEP else int(text[:-1]) * _UNIT_MS[text[-1]]


def _checked_key_pattern(text: str) -> str:
    try:
        folded = keys.fold(text.strip())
    except BadKey as problem:
        raise ValueError(problem.message) from None
    if not folded or "*" in folded[:-1]:
        raise ValueError("must be a session key, or the beginning of one with * at its end")
    return folded


def _queue_mode(value: object) -> object:
    """Accept the names that other systems use."""
    return "steer" if value in ("queue", "steer-backlog", "steer+backlog") else value


class FieldFact(Struct, frozen=True):
    """A fact about a setting, stated in its annotation and shown in the reference."""

    note: str


NEEDS_RESTART = FieldFact("needs a restart")
NO_EFFECT_YET = FieldFact("has no effect yet")

AnyQueueMode = Annotated[QueueMode, BeforeValidator(_queue_mode)]
AgentId = Annotated[str, AfterValidator(_checked_agent_id)]
AgentIdOrAny = Annotated[str, AfterValidator(_checked_pattern)]
KeyPattern = Annotated[str, AfterValidator(_checked_key_pattern)]
Secret = Annotated[SecretStr, AfterValidator(_not_empty)]
Passphrase = Annotated[SecretStr, AfterValidator(_checked_passphrase)]
Network = Annotated[str, AfterValidator(_checked_network)]
Retention = Annotated[str, AfterValidator(_checked_duration)]
MainKey = Annotated[str, AfterValidator(_checked_main_key)]


class Section(BaseModel):
    """A closed group of settings: camelCase in the file, snake_case in code."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", defer_build=True, frozen=True)


def section(kind: type[Section]) -> Any:
    return Field(default_factory=kind)
