"""Data types of the store: one immutable `Struct` per table. Field names are column names."""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import Any, Literal

import orjson

from hobnob.keys import ChatType, Kind, SessionKey, Shape
from hobnob.records import Struct, field

Role = Literal["user", "assistant", "toolResult"]
Pool = Literal["main", "subagent", "acp", "cron"]
QueueMode = Literal["followup", "collect", "interrupt", "steer"]
TurnStatus = Literal["queued", "running", "ended"]
Outcome = Literal["ok", "no_output", "timed_out", "failed", "cancelled", "lost"]
ExchangeState = Literal["open", "done", "failed", "expired"]
Phase = Literal["primary", "reply", "announce", "delivery"]
Reports = Literal["announce", "collect", "quiet"]
ApprovalState = Literal["pending", "allowed", "denied", "expired"]
DeliveryState = Literal["pending", "sending", "delivered", "failed", "ambiguous"]
DeliveryKind = Literal["reply", "message", "announcement", "notice", "pairing", "error", "thread"]
DeviceState = Literal["pending", "paired", "revoked"]
JobSource = Literal["operator", "agent", "settings"]
RunStatus = Literal["running", "ok", "error", "skipped"]
RunTrigger = Literal["schedule", "catch-up", "retry", "manual"]

LINEAGE_SEP = "\n"  # a control character, which no key can contain


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_last_id = 0
_id_lock = threading.Lock()


def new_id() -> str:
    """A UUID, version 7. Ids of one process sort in creation order, also within a millisecond."""
    global _last_id
    value = (now_ms() << 80) | int.from_bytes(os.urandom(10), "big")
    value &= ~(0xF << 76) & ~(0x3 << 62)
    value |= 0x7 << 76 | 0x2 << 62
    with _id_lock:
        _last_id = value if value > _last_id else _last_id + 1
        return str(uuid.UUID(int=_last_id))


def text_of(message: dict[str, Any]) -> str:
    """The text of a message: its text parts, joined by newlines."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def failure_message(why: str, text: str = "") -> dict[str, Any]:
    """The last message of a failed turn: the text of its answer so far, if any, and the reason."""
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": text}] if text else [],
        "stopReason": "error",
        "errorMessage": why,
        "timestamp": now_ms(),
    }


class Session(Struct, frozen=True):
    """A conversation with one agent. `key` is its permanent name, `session_id` its current transcript.

    `version` is raised by every change that is stored. `spawn_tools` is a JSON list of the tools that its
    spawn asked for. `home` is the name of the gateway that has its files, if gateways do not share them.
    """

    key: str
    agent_id: str
    kind: Kind
    shape: str
    root_key: str
    channel: str | None = None
    chat_type: ChatType | None = None
    account_id: str | None = None
    peer: str | None = None
    thread_id: str | None = None
    parent_key: str | None = None
    session_id: str = field(default_factory=new_id)
    label: str | None = None
    display_name: str | None = None
    status: str = "idle"
    model: str | None = None
    model_override: str | None = None
    thinking_level: str | None = None
    verbose_level: str | None = None
    send_policy: Literal["allow", "deny"] | None = None
    last_channel: str | None = None
    last_to: str | None = None
    last_account_id: str | None = None
    last_thread_id: str | None = None
    spawned_by: str | None = None
    lineage: str = ""
    spawn_depth: int = 0
    sandboxed: bool = False
    spawn_tools: str | None = None
    home: str | None = None
    system_sent: bool = False
    aborted_last_run: bool = False
    context_tokens: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    created_at_ms: int = field(default_factory=now_ms)
    updated_at_ms: int = field(default_factory=now_ms)
    archived_at_ms: int | None = None
    version: int = 0

    @classmethod
    def of(cls, key: SessionKey, *, spawned_by: Session | None = None, **more: Any) -> Session:
        """A new session for `key`, in the tree of the session that spawned it."""
        text = str(key)
        return cls(
            key=text,
            agent_id=key.agent,
            kind=key.kind,
            shape=key.shape.value,
            channel=key.channel,
            chat_type=key.chat_type,
            account_id=key.account,
            peer=key.id or None,
            thread_id=key.thread,
            parent_key=str(key.parent) if key.parent else None,
            spawned_by=spawned_by.key if spawned_by else None,
            root_key=spawned_by.root_key if spawned_by else text,
            lineage=spawned_by.tree if spawned_by else "",
            spawn_depth=spawned_by.spawn_depth + 1 if spawned_by else 0,
            home=spawned_by.home if spawned_by else None,
            **more,
        )

    def __hash__(self) -> int:
        return hash((self.key, self.updated_at_ms))  # of two of many fields: sessions are keys of caches

    @property
    def tree(self) -> str:
        """The lineage prefix of all sessions that descend from this one."""
        return f"{self.lineage}{self.key}{LINEAGE_SEP}"

    def spawned(self, other: Session) -> bool:
        """Whether `other` descends from this session."""
        return other.lineage.startswith(self.tree)

    @property
    def is_external(self) -> bool:
        """Whether a harness runs it; `agent_id` is then the id of the harness."""
        return self.shape == Shape.ACP

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


class Entry(Struct, frozen=True):
    """One line of a transcript: a message as JSON text, with its number, counted from 1."""

    session_id: str
    seq: int
    role: Role
    turn_id: str | None
    body: str
    created_at_ms: int

    @property
    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = orjson.loads(self.body)
        return message


class Turn(Struct, frozen=True):
    """One unit of work in a session. `position` orders a session's turns; `claim` is the fencing number.

    `input` is a user message as JSON. It is added to the transcript when the turn is first claimed, as entry
    `input_seq`. A turn that was `merged_into` another has that turn's outcome. `crashes` counts the kills of
    the gateway since the last committed step, the first of them noticed at `crashed_at_ms`; `boot_id` and
    `stopping` tell which kills do not count. `structured` is the typed result as JSON, or `schema_error` says
    why there is none.
    """

    session_key: str
    session_id: str
    agent_id: str
    input: str
    turn_id: str = field(default_factory=new_id)
    position: int = 0
    pool: Pool = "main"
    step: str = "message"
    input_seq: int | None = None
    options: str = "{}"
    queue_mode: QueueMode = "followup"
    merged_into: str | None = None
    status: TurnStatus = "queued"
    outcome: Outcome | None = None
    reply: str | None = None
    structured: str | None = None
    schema_error: str | None = None
    error: str | None = None
    abort_reason: str | None = None
    claim: int = 0
    claimed_by: str | None = None
    boot_id: str | None = None
    stopping: bool = False
    crashes: int = 0
    crashed_at_ms: int | None = None
    exchange_id: str | None = None
    caused_by: str | None = None
    hop: int = 0
    timeout_s: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    accepted_at_ms: int = field(default_factory=now_ms)
    started_at_ms: int | None = None
    ended_at_ms: int | None = None

    @classmethod
    def of(cls, session: Session, text: str, **more: Any) -> Turn:
        """A turn of a session with a text as its input, in the pool of its session.

        `provenance` is the origin of the text, if it is not a person at the gateway; `images` are parts of
        the message besides the text; `extra_system` is added to the system prompt.
        """
        source, extra_system = more.pop("provenance", None), more.pop("extra_system", None)
        content: Any = text
        if images := more.pop("images", ()):
            content = [{"type": "text", "text": text}, *images]
        message = {"role": "user", "content": content, "timestamp": now_ms()}
        fields: dict[str, Any] = {
            "session_key": session.key,
            "session_id": session.session_id,
            "agent_id": session.agent_id,
            "pool": "acp" if session.is_external else "subagent" if session.spawned_by else "main",
            "input": orjson.dumps(message | ({"provenance": source} if source else {})).decode(),
        }
        if extra_system:
            fields["options"] = orjson.dumps({"extra_system": extra_system}).decode()
        return cls(**(fields | more))


class Exchange(Struct, frozen=True):
    """Everything that one send or spawn starts, from its first turn to its announcement.

    `turn_id` is the turn it waits for; `caller_turn_id` the turn that sent, which waits for the first reply
    until `wait_until_ms`. `outcome` and `error` are those of the first turn. `route` is the delivery route of
    a spawn's announcement, fixed when the spawn was accepted; `files` is the folder of the attachments.
    A spawn `reports` by an announcement, keeps its result to be collected (in the group `group_id`), or is
    quiet.
    """

    target_key: str
    request: str
    exchange_id: str = field(default_factory=new_id)
    kind: Literal["send", "spawn"] = "send"
    requester_key: str | None = None
    state: ExchangeState = "open"
    phase: Phase = "primary"
    end_reason: str | None = None
    loop_end: str | None = None
    turn_id: str | None = None
    caller_turn_id: str | None = None
    wait_until_ms: int = 0
    turns_done: int = 0
    max_turns: int = 0
    hop: int = 0
    first_reply: str | None = None
    last_reply: str | None = None
    outcome: Outcome | None = None
    error: str | None = None
    label: str | None = None
    cleanup: Literal["keep", "delete"] = "keep"
    on_complete: Literal["post", "wake"] = "post"
    reports: Reports = "announce"
    group_id: str | None = None
    route: str | None = None
    files: str | None = None
    swept: bool = False
    created_at_ms: int = field(default_factory=now_ms)
    updated_at_ms: int = field(default_factory=now_ms)


class Delivery(Struct, frozen=True):
    """A message to be sent to a channel, with its state and attempts.

    `reply_to` is the id of the message it answers, `files` a JSON list of files to send. Before the first
    attempt the text is divided into `parts`, a JSON list; `part_ids` has the channel's id of each part that
    was sent, null where the receipt was lost. `part_started_at_ms` is the first attempt of the current part.
    `claim` is the fencing number of attempts, `claimed_by` the gateway that made the last one; while the
    delivery is pending, only if that one may have gone out.
    A delivery of the kind `thread` opens a thread with the text as its title.
    """

    session_key: str
    channel: str
    recipient: str
    text: str
    delivery_id: str = field(default_factory=new_id)
    exchange_id: str | None = None
    turn_id: str | None = None
    account_id: str | None = None
    thread_id: str | None = None
    kind: DeliveryKind = "message"
    reply_to: str | None = None
    files: str | None = None
    parts: str | None = None
    part_ids: str = "[]"
    part_started_at_ms: int | None = None
    state: DeliveryState = "pending"
    attempts: int = 0
    claim: int = 0
    claimed_by: str | None = None
    next_attempt_at_ms: int = field(default_factory=now_ms)
    external_id: str | None = None
    error: str | None = None
    created_at_ms: int = field(default_factory=now_ms)
    updated_at_ms: int = field(default_factory=now_ms)


class Approval(Struct, frozen=True):
    """A command that needs a person's approval. `details` is JSON: where it would run, and for whom."""

    session_key: str
    agent_id: str
    turn_id: str
    call_id: str
    command: str
    expires_at_ms: int
    approval_id: str = field(default_factory=new_id)
    details: str = "{}"
    state: ApprovalState = "pending"
    decided_by: str | None = None
    created_at_ms: int = field(default_factory=now_ms)
    decided_at_ms: int | None = None


class Device(Struct, frozen=True):
    """A client that signs in with its own key pair. `generation` counts the tokens it was issued.

    It has the current rights of `credential`, the credential it was paired with.
    """

    device_id: str
    public_key: str
    credential: str
    name: str = ""
    platform: str = ""
    address: str = ""
    state: DeviceState = "pending"
    request_id: str = field(default_factory=new_id)
    generation: int = 1
    created_at_ms: int = field(default_factory=now_ms)
    paired_at_ms: int | None = None
    seen_at_ms: int | None = None


class McpGrant(Struct, frozen=True):
    """A token with which an MCP client acts as one session. Only the hash of the token is kept.

    `credential` is who made it, and `proof` binds it to the secret of that credential. `scopes` are those it
    was made with, separated by spaces. One with a `turn_id` was made by the gateway for a harness, and is
    valid while that turn runs.
    """

    token_hash: str
    session_key: str
    expires_at_ms: int
    grant_id: str = field(default_factory=new_id)
    name: str = ""
    credential: str = ""
    proof: str = ""
    scopes: str = ""
    turn_id: str | None = None
    created_at_ms: int = field(default_factory=now_ms)
    revoked_at_ms: int | None = None
    used_at_ms: int | None = None


class Job(Struct, frozen=True):
    """A scheduled job. `schedule`, `payload`, `delivery` and `failure_alert` are JSON.

    `target` is `main`, `isolated` or a session key. `session_key` is the session that made the job; `tools`
    are the names of the tools it had then, `sandboxed` says where they ran. `turn_id` is the open run, if
    any: while it is set, the job is not due. `missed_at_ms` is the time a late run should have started.
    `attempts` counts the retries of the last time.
    """

    agent_id: str
    name: str
    schedule: str
    target: str
    payload: str
    delivery: str
    job_id: str = field(default_factory=new_id)
    description: str | None = None
    source: JobSource = "operator"
    enabled: bool = True
    delete_after_run: bool = False
    wake_mode: Literal["now", "next-heartbeat"] = "now"
    failure_alert: str | None = None
    session_key: str | None = None
    tools: str | None = None
    sandboxed: bool = False
    next_run_at_ms: int | None = None
    missed_at_ms: int | None = None
    attempts: int = 0
    turn_id: str | None = None
    last_run_at_ms: int | None = None
    last_status: RunStatus | None = None
    last_error: str | None = None
    last_duration_ms: int | None = None
    last_delivery_status: str | None = None
    last_delivery_error: str | None = None
    consecutive_errors: int = 0
    disabled_reason: str | None = None
    disabled_at_ms: int | None = None
    alerted_at_ms: int | None = None
    created_at_ms: int = field(default_factory=now_ms)
    updated_at_ms: int = field(default_factory=now_ms)


class JobRun(Struct, frozen=True):
    """One run of a job, kept when the job is deleted. `run_id` is the id of its turn."""

    job_id: str
    job_name: str
    agent_id: str
    due_at_ms: int
    run_id: str = field(default_factory=new_id)
    trigger: RunTrigger = "schedule"
    started_at_ms: int = field(default_factory=now_ms)
    ended_at_ms: int | None = None
    status: RunStatus = "running"
    error: str | None = None
    summary: str | None = None
    session_key: str | None = None
    session_id: str | None = None
    delivery_id: str | None = None
    delivery_status: str = "not-requested"
    delivery_error: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class Usage(Struct, frozen=True):
    """Tokens and cost of the model calls of one day, session and model. Kept when the session is deleted."""

    day: str
    agent_id: str
    session_key: str
    model: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
