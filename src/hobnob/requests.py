"""Requests on sessions: parameters described once for tools, RPC, HTTP, OpenAPI and the command line.

Tools clamp numbers that are out of range; RPC methods and routes refuse them, by subclasses with bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from hobnob.config import Settings
from hobnob.config.fields import Thinking
from hobnob.errors import BadInput, TooLarge
from hobnob.keys import Kind
from hobnob.parameters import Parameters
from hobnob.spending import Limits
from hobnob.types import Session

LIST_DEFAULT, LIST_MAX, PREVIEW_MAX = 100, 200, 20
HISTORY_DEFAULT, HISTORY_MAX = 200, 1000
SEARCH_DEFAULT, SEARCH_MAX = 10, 25
QUERY_CHARS = 4096
WAIT_IDS, WAIT_DEFAULT_S = 1000, 30
GROUP_CHARS = 128
LABEL_CHARS = 512
HARNESS_WORD_CHARS = 128
TIMEOUT_MAX_S = 30 * 86_400
IDEMPOTENCY_KEY_CHARS = 256
PATCHABLE = ("label", "display_name", "send_policy", "model_override", "thinking_level", "verbose_level")

IdempotencyKey = Annotated[str, Field(max_length=IDEMPOTENCY_KEY_CHARS)]
ArchivedFilter = Annotated[
    bool | Literal["all"], Field(description="Archived sessions instead, or `all` for both.")
]


class SessionFilter(Parameters):
    """Which sessions to list."""

    kinds: Annotated[
        Sequence[Kind] | None, Field(description='Only these kinds, for example ["main", "group"].')
    ] = None
    limit: Annotated[int, Field(description=f"Maximum number of rows, 1 to {LIST_MAX}.")] = LIST_DEFAULT
    active_minutes: Annotated[
        int | None, Field(description="Only sessions used within the last minutes.")
    ] = None
    message_limit: Annotated[
        int,
        Field(
            description=f"Also show the last messages of each session, 0 to {PREVIEW_MAX}; no tool results."
        ),
    ] = 0
    cursor: Annotated[str | None, Field(description="nextCursor of the previous page.")] = None
    label: Annotated[str | None, Field(description="Only sessions with this label.")] = None
    agent_id: Annotated[str | None, Field(description="Only sessions of this agent.")] = None
    search: Annotated[
        str | None, Field(description="Only sessions with this text in key, label or name.")
    ] = None
    archived: Annotated[bool, Field(description="Archived sessions instead.")] = False


class SessionQuery(SessionFilter):
    """A filter with what only clients of the gateway ask for."""

    archived: ArchivedFilter = False  # type: ignore[assignment]  # wider than for agents
    spawned_by: Annotated[str | None, Field(description="Only sessions this session spawned.")] = None
    keys_only: Annotated[
        Sequence[str] | None, Field(description="Only these sessions, by full key.", max_length=LIST_MAX)
    ] = None
    include_standing: Annotated[
        bool, Field(description="Add open turns, awaited sessions, tokens and cost to each row.")
    ] = False


class HistoryQuery(Parameters):
    """Which page of a transcript to read."""

    limit: Annotated[int, Field(description=f"Maximum number of messages, 1 to {HISTORY_MAX}.")] = (
        HISTORY_DEFAULT
    )
    include_tools: Annotated[bool, Field(description="Include tool results.")] = False
    cursor: Annotated[str | None, Field(description="nextCursor of the previous page: older messages.")] = (
        None
    )


class SearchQuery(Parameters):
    """What to search for, and where."""

    query: Annotated[str, Field(description="Words that must all occur.", max_length=QUERY_CHARS)]
    session_key: Annotated[str | None, Field(description="Only in this session.")] = None
    limit: Annotated[int, Field(description=f"Maximum number of results, 1 to {SEARCH_MAX}.")] = (
        SEARCH_DEFAULT
    )


class BudgetLimits(Parameters):
    """What may be spent. Whatever is left out has no limit here; the budgets above it hold too."""

    usd: Annotated[float | None, Field(description="US dollars.", ge=0, le=1e9)] = None
    tokens: Annotated[int | None, Field(description="Tokens, read and written.", ge=0, le=10**15)] = None
    turns: Annotated[int | None, Field(description="Turns that call a model.", ge=0, le=10**9)] = None
    seconds: Annotated[float | None, Field(description="Seconds in model calls.", ge=0, le=1e9)] = None

    @property
    def limits(self) -> Limits:
        return Limits(usd=self.usd, tokens=self.tokens, turns=self.turns, seconds=self.seconds)


class WaitQuery(Parameters):
    """Which runs to wait for, and for how many of them."""

    ids: Annotated[
        Sequence[str] | None,
        Field(
            description=f"runIds that sends and spawns returned, 1 to {WAIT_IDS}.",
            min_length=1,
            max_length=WAIT_IDS,
        ),
    ] = None
    group_id: Annotated[
        str | None,
        Field(description="Instead of ids: every sub-agent of this group.", max_length=GROUP_CHARS),
    ] = None
    mode: Annotated[
        Literal["all", "any"] | int, Field(description="Wait for all of them, any, or this many.")
    ] = "all"
    timeout_seconds: Annotated[
        float, Field(description="How long to wait; 0 returns at once what is there.")
    ] = WAIT_DEFAULT_S

    def content(self) -> str:
        """What a wait is recognised by when its call is run again."""
        return f"Wait({self.ids!r}, {self.group_id!r}, {self.mode!r}, {self.timeout_seconds!r})"


class SpawnRequest(Parameters):
    """What a sub-agent is to do, and how."""

    task: Annotated[str, Field(description="The complete task: the sub-agent knows nothing else.")]
    runtime: Annotated[
        Literal["subagent", "acp"], Field(description="subagent, or acp for an external harness.")
    ] = "subagent"
    label: Annotated[
        str | None,
        Field(description="A short name for the new session, which no other sub-agent of this session has."),
    ] = None
    agent_id: Annotated[
        str | None, Field(description="The agent or, with acp, the harness to run it; see agents_list.")
    ] = None
    model: Annotated[
        str | None, Field(description="Another model, as provider/model; with acp, the harness's own name.")
    ] = None
    thinking: Annotated[
        str | None,
        Field(description="off, minimal, low, medium, high or xhigh; with acp, the harness's own."),
    ] = None
    run_timeout_seconds: Annotated[
        int | None, Field(description="Stop it after this many seconds; 0 means no limit.")
    ] = None
    thread: Annotated[bool, Field(description="Bind it to a thread of this chat.")] = False
    mode: Annotated[Literal["run", "session"] | None, Field(description="run, unless in a thread.")] = None
    cleanup: Annotated[
        Literal["keep", "delete"], Field(description="Delete the session after its result was reported?")
    ] = "keep"
    sandbox: Annotated[
        Literal["inherit", "require"], Field(description="require refuses to run outside a sandbox.")
    ] = "inherit"
    budget: Annotated[
        BudgetLimits | None, Field(description="What it and its own sub-agents may spend in all.")
    ] = None
    collect: Annotated[bool, Field(description="Report to nobody: the result is kept for agents_wait.")] = (
        False
    )
    group_id: Annotated[
        str | None,
        Field(
            description="With collect: the group it belongs to, by a name of yours.", max_length=GROUP_CHARS
        ),
    ] = None
    tools: Annotated[
        Sequence[str] | None,
        Field(
            description="Only these tools of those it may have: names, patterns or groups.", max_length=100
        ),
    ] = None
    context: Annotated[
        Literal["isolated", "fork"],
        Field(description="fork: it knows this conversation up to now (same agent only)."),
    ] = "isolated"
    expects_completion_message: Annotated[
        bool, Field(description="false: nothing is announced or reported when it is done.")
    ] = True
    output_schema: Annotated[
        dict[str, Any] | None,
        Field(description="The result must be an object that fits this JSON schema; see `structured`."),
    ] = None

    def content(self) -> str:
        """What a spawn is recognised by when it is repeated. It is stored, so it must not change.

        Parameters that came later count only when they are used.
        """
        fields = SpawnRequest.model_fields
        values = [f"{name}={getattr(self, name)!r}" for name in _FIRST_FIELDS]
        later = (name for name in fields if name not in _FIRST_FIELDS)
        values += [f"{n}={getattr(self, n)!r}" for n in later if getattr(self, n) != fields[n].default]
        return f"Task({', '.join(values)})"


_FIRST_FIELDS = (
    "task",
    "runtime",
    "label",
    "agent_id",
    "model",
    "thinking",
    "run_timeout_seconds",
    "thread",
    "mode",
    "cleanup",
    "sandbox",
)


def check_label(text: str) -> str | None:
    """A label or display name: one line of printable text; None when it is empty."""
    label = " ".join(text.split())
    if len(label) > LABEL_CHARS or not label.isprintable():
        raise BadInput(f"A label is one line of printable text, at most {LABEL_CHARS} characters.")
    return label or None


def check_thinking(level: str) -> str:
    """A thinking level of a model."""
    levels = get_args(Thinking)
    if level.strip().lower() not in levels:
        raise BadInput(f"There is no thinking level {level!r}. Levels: {', '.join(levels)}.")
    return level.strip().lower()


def check_harness_word(text: str) -> str:
    """A model or thinking level in a harness's own words: one line of printable text."""
    word = text.strip()
    if not word or len(word) > HARNESS_WORD_CHARS or not word.isprintable():
        raise BadInput(f"A model or thinking level is one line of 1 to {HARNESS_WORD_CHARS} characters.")
    return word


def check_changes(session: Session, fields: Collection[str]) -> None:
    """Refuse changes to fields that are fixed for this session."""
    if session.is_external and "model_override" in fields:
        raise BadInput("The model of a harness is chosen when it is spawned.", fix="Spawn another.")


def check_message(settings: Settings, text: str) -> str:
    """The text with lone surrogates replaced. Raises BadInput when it is empty, TooLarge beyond the limit."""
    check_size(settings, text)
    text = text.encode("utf-8", "replace").decode()
    if not text.strip():
        raise BadInput("The message is empty.")
    return text


def check_size(settings: Settings, text: str, name: str = "message") -> None:
    """Raises TooLarge."""
    limit = settings.messages.max_bytes
    # A character has at most four bytes: most texts need not be encoded to know.
    if 4 * len(text) <= limit or (size := len(text.encode("utf-8", "replace"))) <= limit:
        return
    raise TooLarge(
        f"The {name} has {size:,} bytes; the limit is {limit:,}.",
        fix="Send less, or put it into a file that the agent reads; or raise messages.maxBytes.",
    )


def checked_fields(fields: dict[str, Any], model_name: Callable[[str], str]) -> dict[str, Any]:
    """The fields of a session that a caller wants to set, validated. `model_name` is the full name of one."""
    if wrong := [name for name in fields if name not in PATCHABLE]:
        raise BadInput(f"{wrong[0]} of a session cannot be set. Allowed: {', '.join(PATCHABLE)}.")
    if (send_policy := fields.get("send_policy")) not in (None, "allow", "deny"):
        raise BadInput(f"sendPolicy is allow, deny or null; not {send_policy!r}.")
    if model := fields.get("model_override"):
        fields["model_override"] = model_name(model)
    if level := fields.get("thinking_level"):
        check_thinking(level)
    for name in ("label", "display_name"):
        if (text := fields.get(name)) is not None:
            fields[name] = check_label(text)
    return fields
