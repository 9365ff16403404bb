"""Requests on sessions: parameters described once for tools, RPC, HTTP, OpenAPI and the command line.

Tools clamp numbers that are out of range; RPC methods and routes refuse them, by subclasses with bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal, get_args

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
LABEL_CHARS = 512
HARNESS_WORD_CHARS = 128
TIMEOUT_MAX_S = 30 * 86_400
IDEMPOTENCY_KEY_CHARS = 256

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

    def content(self) -> str:
        """What a spawn is recognised by when it is repeated. It is stored, so it must not change."""
        names = [n for n in SpawnRequest.model_fields if n != "budget" or self.budget is not None]
        values = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"Task({', '.join(values)})"


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
