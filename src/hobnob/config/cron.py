"""Settings of scheduled jobs. The sections of a job are also parameters of `cron.add` and `cron.update`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hobnob import timing
from hobnob.config.fields import (
    KEEP,
    NEEDS_RESTART,
    AgentId,
    Retention,
    Secret,
    Section,
    Thinking,
    section,
)

MAX_TIMEOUT_S = 30 * 86_400
# Fields of jobs in other systems that have no meaning here.
_IGNORED = frozenset({"fallbacks", "lightContext", "allowUnsafeExternalContent", "completionDestination"})


def _forever(value: object) -> object:
    return KEEP if value is False or value in ("0", "0h", "0d") else value


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class JobSchedule(Section):
    kind: Literal["at", "every", "cron"]
    """`at`: once; `every`: in fixed intervals; `cron`: by an expression."""
    at: str | None = None
    """A time in ISO 8601, or a duration from now such as `20m`. Without an offset it is in `tz`, else UTC."""
    every_ms: int | None = None
    """The interval in milliseconds."""
    anchor_ms: int | None = None
    """The time the intervals are counted from; unset means that the first run is one interval from now."""
    expr: str | None = None
    """A cron expression of 5 fields, or 6 with seconds first; or `@daily` and the like."""
    tz: str | None = None
    """The time zone of the expression, such as `Europe/Vienna`; unset means `cron.timezone`."""
    stagger_ms: int | None = Field(None, ge=0, le=3_600_000)
    """Delay runs by a time below this, the same for each run of a job, so that many do not start at once."""

    def parsed(self, now_ms: int, zone: str | None = None, seed: str = "") -> timing.Schedule:
        """The schedule. Raises BadSchedule with a sentence that names the wrong part."""
        zone = self.tz or zone
        match self.kind:
            case "at":
                return timing.parse_at(self._given("at", self.at), self.tz, now_ms)
            case "every":
                return timing.parse_every(self._given("everyMs", self.every_ms), self.anchor_ms, zone, now_ms)
            case "cron":
                return timing.parse_cron(self._given("expr", self.expr), zone, self.stagger_ms or 0, seed)

    def _given(self, name: str, value: Any) -> Any:
        if value is None:
            raise timing.BadSchedule(f"A schedule of the kind {self.kind} needs {name}.")
        return value


class JobPayload(Section):
    kind: Literal["agentTurn", "systemEvent"]
    """`agentTurn`: a task for the agent; `systemEvent`: a message for its main session."""
    message: str | None = None
    """The task of an `agentTurn`."""
    text: str | None = None
    """The text of a `systemEvent`."""
    model: str | None = None
    """The model of the run."""
    thinking: Thinking | None = None
    """The thinking level of the run."""
    timeout_seconds: int | None = Field(None, ge=0, le=MAX_TIMEOUT_S)
    """Time limit of the run; unset means one hour, 0 means `agents.defaults.timeoutSeconds`."""
    tools_allow: list[str] | None = None
    """The tools the run may use at most: names, patterns or groups."""

    @model_validator(mode="before")
    @classmethod
    def _drop_ignored(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in _IGNORED}

    @model_validator(mode="after")
    def _check(self) -> JobPayload:
        name = "message" if self.kind == "agentTurn" else "text"
        if not self.words.strip():
            raise ValueError(f"a payload of the kind {self.kind} needs {name}")
        return self

    @property
    def words(self) -> str:
        """What the agent is told."""
        return (self.message if self.kind == "agentTurn" else self.text) or ""


class JobDelivery(Section):
    mode: Literal["none", "announce", "webhook"] = "announce"
    """`announce` posts the answer to a chat, `webhook` posts the finished run to an address."""
    channel: str | None = None
    """The channel; unset or `last` means the chat where people last wrote to the agent."""
    to: str | None = None
    """The recipient on the channel; for a webhook, its address."""
    account_id: str | None = None
    """The account on the channel."""
    thread_id: Annotated[str | None, BeforeValidator(_text)] = None
    """The thread in the chat."""
    best_effort: bool = False
    """Whether a failed delivery leaves the run a success."""

    @model_validator(mode="after")
    def _check(self) -> JobDelivery:
        if self.mode == "webhook" and not (self.to or "").startswith(("http://", "https://")):
            raise ValueError("a webhook needs `to`, an address that begins with http:// or https://")
        if self.mode == "announce" and bool(self.to) != (self.channel not in (None, "last")):
            raise ValueError("give channel and to together, or neither for the last chat")
        return self


class FailureAlert(Section):
    enabled: bool = True
    """Whether a job that keeps failing is reported to its chat."""
    after: int = Field(2, ge=1)
    """After how many failures in a row."""
    cooldown_ms: int = Field(3_600_000, ge=0)
    """Shortest time between two reports of one job."""

    @model_validator(mode="before")
    @classmethod
    def _false_is_off(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return {"enabled": given}
        ignored = ("includeSkipped", "mode", "channel", "to", "accountId")
        return {k: v for k, v in given.items() if k not in ignored} if isinstance(given, dict) else given


class JobSpec(Section):
    name: str | None = Field(None, max_length=200)
    """A name for people; unset means the beginning of its text."""
    description: str | None = Field(None, max_length=2000)
    """What it is for."""
    agent_id: AgentId | None = None
    """The agent that runs it; unset means the default agent."""
    enabled: bool = True
    """Whether it runs."""
    delete_after_run: bool | None = None
    """Whether it ends for good after a successful run; unset means yes for `at`."""
    schedule: JobSchedule
    """When it runs."""
    session_target: str | None = None
    """The session it runs in: `isolated` (its own, new at each run), `main`, or `session:<key>`."""
    wake_mode: Literal["now", "next-heartbeat"] = "now"
    """Whether a `systemEvent` starts a turn, or waits for the next one."""
    payload: JobPayload
    """What it does."""
    delivery: JobDelivery = section(JobDelivery)
    """Where its answer goes. By default it is posted to the chat where people last wrote to the agent."""
    failure_alert: FailureAlert | None = None
    """Reports about its failures, instead of `cron.failureAlert`."""


class DeclaredJob(JobSpec):
    id: AgentId
    """The job's id. Its session is `cron:<id>`."""

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: JobSchedule) -> JobSchedule:
        if schedule.kind == "at" and timing.duration_ms(schedule.at or "") is not None:
            raise ValueError("a time in the settings must be a date, not a duration from now")
        schedule.parsed(0)
        return schedule


class WebhookAddresses(Section):
    allowed_hostnames: list[str] = []
    """Hosts that webhooks may be sent to although their addresses are private."""


class Cron(Section):
    enabled: Annotated[bool, NEEDS_RESTART] = True
    """Whether scheduled jobs run. While it is off, they can be made and changed."""
    max_concurrent_runs: Annotated[int, NEEDS_RESTART] = Field(8, ge=1)
    """Maximum number of runs of isolated jobs at the same time."""
    timezone: str | None = None
    """The time zone of jobs that name none; unset means that of the machine."""
    jobs: list[DeclaredJob] = []
    """Jobs declared here. A reload adds, changes and removes them; other jobs stay as they are."""
    skip_missed_jobs: bool = False
    """Whether recurring jobs that were due while Hobnob was not running wait for their next time."""
    failure_alert: FailureAlert = section(FailureAlert)
    """Reports about jobs that keep failing."""
    webhook_token: Secret | None = None
    """Sent to webhooks as `Authorization: Bearer …`."""
    webhook_ssrf_policy: WebhookAddresses = section(WebhookAddresses)
    """Which private addresses webhooks may use."""
    session_retention: Annotated[Retention, BeforeValidator(_forever)] = "7d"
    """How long the transcripts of earlier runs are kept."""
    run_retention: Retention = "30d"
    """How long the history of runs is kept."""

    @field_validator("timezone")
    @classmethod
    def _check_zone(cls, name: str | None) -> str | None:
        return timing.zone_info(name).key if name else None

    @field_validator("jobs")
    @classmethod
    def _check_ids(cls, jobs: list[DeclaredJob]) -> list[DeclaredJob]:
        ids = [job.id for job in jobs]
        if duplicates := sorted({i for i in ids if ids.count(i) > 1}):
            raise ValueError(f"duplicate job ids: {', '.join(duplicates)}")
        return jobs
