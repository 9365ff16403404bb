"""`Jobs`: the verbs on scheduled jobs that every surface uses.

An operator manages the jobs of the agents it may control, an agent those that its own session made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import orjson

from hobnob import fixes, keys, policy, timing
from hobnob.config import Config, Settings
from hobnob.config.cron import JobSpec
from hobnob.effects import Effects
from hobnob.errors import BadInput, Conflict, NotAllowed
from hobnob.jobs import definitions
from hobnob.jobs.presentation import revision
from hobnob.models.catalog import Catalog
from hobnob.policy import Caller
from hobnob.schedule import outcomes, runs
from hobnob.store import Store, Tx, jobs, turns
from hobnob.store import sessions as session_rows
from hobnob.types import Job, JobRun, Session, Turn, new_id, now_ms

Mode = Literal["force", "due", "if-enabled"]
MAX_PER_SESSION = 50
MIN_AGENT_GAP_MS = 60_000
_CAUSES = 64  # links of a chain of turns that are followed


class Jobs:
    def __init__(
        self,
        store: Store,
        config: Config,
        models: Catalog,
        effects: Effects,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._store = store
        self._config = config
        self._models = models
        self._effects = effects
        self.clock = clock

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    # -- read

    async def status(self) -> dict[str, Any]:
        total, enabled = await self._store.read_small(jobs.count)
        next_at = await self._store.read_small(jobs.next_at)
        on = self._settings.cron.enabled
        return {"enabled": on, "jobs": total, "enabledJobs": enabled, "nextWakeAtMs": next_at if on else None}

    async def page(self, caller: Caller, *, include_disabled: bool = False) -> list[Job]:
        """The jobs the caller may see, in the order of their next run; disabled ones last."""

        def read(tx: Tx) -> list[Job]:
            if isinstance(caller, Session):
                found = jobs.of_session(tx, caller.key)
            else:
                found = list(_all(tx))
            return [job for job in found if self._visible(caller, job) and (job.enabled or include_disabled)]

        found = await self._store.read(read)
        return sorted(
            found, key=lambda job: (not job.enabled, job.next_run_at_ms or 2**62, job.created_at_ms)
        )

    async def get(self, caller: Caller, job_id: str) -> Job:
        return await self._store.read_small(self._find, caller, job_id)

    async def history(
        self, caller: Caller, job_id: str | None, *, limit: int = 50, before: tuple[int, str] = jobs.NEWEST
    ) -> list[JobRun]:
        """Runs, newest first. Those of a deleted job are found by its id."""

        def read(tx: Tx) -> list[JobRun]:
            if job_id is not None and jobs.find(tx, job_id) is not None:
                self._find(tx, caller, job_id)
            found = jobs.runs(tx, job_id, before, limit=limit)
            if isinstance(caller, Session):
                own = {job.job_id for job in jobs.of_session(tx, caller.key)}
                return [run for run in found if run.job_id in own]
            return [run for run in found if caller.agents is None or run.agent_id in caller.agents]

        return await self._store.read(read)

    # -- change

    async def add(
        self,
        caller: Caller,
        given: dict[str, Any],
        *,
        session_key: str | None = None,
        turn: Turn | None = None,
        tools: Sequence[str] | None = None,
        sandboxed: bool = False,
        idempotency_key: str | None = None,
    ) -> Job:
        """Add a job. One that an agent's turn makes has at most that turn's tools."""
        spec = definitions.spec_of(given)

        def write(tx: Tx) -> Job:
            job_id = idempotency_key or new_id()
            if (earlier := jobs.find(tx, job_id)) is not None:
                return earlier
            agent = self._agent_of(caller, spec, session_key)
            if isinstance(caller, Session):
                self._check_may_make(tx, caller, turn)
            job = definitions.define(
                self._settings,
                self._models,
                self._effects.channels,
                None,
                spec,
                self.clock(),
                job_id=job_id,
                agent_id=agent,
                target=self._target(tx, caller, agent, spec),
                session_key=caller.key if isinstance(caller, Session) else session_key,
                source="agent" if isinstance(caller, Session) else "operator",
                tools=orjson.dumps(sorted(tools)).decode() if tools is not None else None,
                sandboxed=sandboxed,
            )
            self._require(caller, job)
            if isinstance(caller, Session):
                _check_agent_job(job, self.clock())
            return jobs.create(tx, job)

        return await self._store.write(write)

    async def update(
        self, caller: Caller, job_id: str, patch: dict[str, Any], *, expected: str | None = None
    ) -> Job:
        """Change a job. Disabling it stops its run. `expected`: refuse if it has another revision by now."""

        def write(tx: Tx) -> Job:
            job = self._changeable(tx, caller, job_id)
            if expected not in (None, revision(job)):
                raise Conflict(f"The job {job_id} was changed by somebody else.", fix="Load it again.")
            spec = definitions.patched(job, patch)
            agent = self._agent_of(caller, spec, None)
            target = self._target(tx, caller, agent, spec) if "sessionTarget" in patch else job.target
            changed = definitions.define(
                self._settings,
                self._models,
                self._effects.channels,
                job,
                spec,
                self.clock(),
                agent_id=agent,
                target=target,
            )
            self._require(caller, changed)
            if isinstance(caller, Session):
                _check_agent_job(changed, self.clock())
            changed = jobs.save(tx, changed)
            if job.turn_id is not None and not changed.enabled:
                self._effects.abort_turn(tx, job.turn_id, "the job was disabled")
                changed = jobs.find(tx, job_id) or changed
            return changed

        return await self._store.write(write)

    async def remove(self, caller: Caller, job_id: str) -> None:
        """Delete a job and the session of its runs. Its history stays."""

        def write(tx: Tx) -> None:
            job = self._changeable(tx, caller, job_id, removal=True)
            jobs.delete(tx, job)
            if job.turn_id is not None and (turn := turns.find(tx, job.turn_id)) and turn.status != "ended":
                self._effects.abort_turn(tx, turn.turn_id, "the job was removed")
            key = str(runs.session_key_of(job))
            if session_rows.find(tx, key) is not None and not isinstance(caller, Session):
                self._effects.delete_session(tx, key)

        await self._store.write(write)

    async def run_now(self, caller: Caller, job_id: str, mode: Mode = "force") -> tuple[JobRun | None, str]:
        """Start a run, unless one is open. Returns the run, or why there is none."""

        def write(tx: Tx) -> tuple[JobRun | None, str]:
            job = self._find(tx, caller, job_id)
            self._require(caller, job)
            at = self.clock()
            if job.turn_id is not None:
                return None, "already-running"
            if mode == "if-enabled" and not job.enabled:
                return None, "disabled"
            due = job.enabled and job.next_run_at_ms is not None and job.next_run_at_ms <= at
            if mode == "due" and not due:
                return None, "not-due"
            run = runs.start(tx, self._settings, job, at, "schedule" if mode == "due" else "manual")
            return run, "" if run else "already-running"

        return await self._store.write(write)

    # -- who may

    def _find(self, tx: Tx, caller: Caller, job_id: str) -> Job:
        """A job the caller may see; to others it does not exist."""
        job = jobs.get(tx, job_id)
        if not self._visible(caller, job):
            raise jobs.not_found(job_id)
        return job

    def _visible(self, caller: Caller, job: Job) -> bool:
        if isinstance(caller, Session):
            return job.session_key == caller.key or runs_in(job, caller)
        return policy.may(self._settings, caller, "list", Session.of(runs.session_key_of(job))).allowed

    def _require(self, caller: Caller, job: Job) -> None:
        if isinstance(caller, Session):
            return  # it is its own: `_find` and `add` have seen to that
        verdict = policy.may(self._settings, caller, "control", Session.of(runs.session_key_of(job)))
        if not verdict.allowed:
            raise NotAllowed(verdict.why, rule=verdict.code, fix=fixes.command(verdict.fix) or None)

    def _changeable(self, tx: Tx, caller: Caller, job_id: str, *, removal: bool = False) -> Job:
        job = self._find(tx, caller, job_id)
        self._require(caller, job)
        if job.source == "settings":
            raise NotAllowed(
                f"The job {job_id} is declared in the settings.",
                rule="cron.declared",
                fix=f"Change cron.jobs in the configuration file, then: hobnob reload. Its id is {job_id}.",
            )
        if isinstance(caller, Session) and job.session_key != caller.key and not removal:
            raise jobs.not_found(job_id)
        return job

    def _check_may_make(self, tx: Tx, caller: Session, turn: Turn | None) -> None:
        """A job's turn makes no jobs, nor does a turn that one caused, through however many agents."""
        link = turn
        for _ in range(_CAUSES):
            if link is None:
                break
            if link.step == runs.STEP:
                raise NotAllowed(
                    "A scheduled job may not make or change jobs.",
                    rule="cron.in_job",
                    fix="Say in your answer what should be scheduled; a person can add it.",
                )
            link = turns.find(tx, link.caused_by) if link.caused_by else None
        if len(jobs.of_session(tx, caller.key)) >= MAX_PER_SESSION:
            raise NotAllowed(
                f"This session has made {MAX_PER_SESSION} jobs, which is the limit.",
                rule="cron.too_many",
                fix="Remove one first.",
            )

    async def check_may_change(self, caller: Session, turn: Turn) -> None:
        """Raise NotAllowed for a turn that a job started or caused."""
        await self._store.read_small(self._check_may_change, caller, turn)

    def _check_may_change(self, tx: Tx, caller: Session, turn: Turn) -> None:
        try:
            self._check_may_make(tx, caller, turn)
        except NotAllowed as refusal:
            if refusal.rule == "cron.in_job":
                raise

    def _agent_of(self, caller: Caller, spec: JobSpec, session_key: str | None) -> str:
        if isinstance(caller, Session):
            if spec.agent_id not in (None, caller.agent_id):
                raise NotAllowed(
                    "A job runs as the agent that makes it.", rule="cron.agent", fix="Leave agentId out."
                )
            return caller.agent_id
        if spec.agent_id:
            return spec.agent_id
        return keys.agent_of(session_key) if session_key else self._settings.default_agent.id

    def _target(self, tx: Tx, caller: Caller, agent: str, spec: JobSpec) -> str:
        """`main`, `isolated`, or the key of a session, which is created when it does not exist."""
        own = caller.key if isinstance(caller, Session) else None
        text = (spec.session_target or "").strip()
        if not text:
            text = "main" if spec.payload.kind == "systemEvent" else "current" if own else "isolated"
        if text == "current":
            text = f"session:{own}" if own else "isolated"
        if text in ("main", "isolated"):
            if text == "main" and own not in (None, str(keys.main_of(agent))):
                raise NotAllowed(
                    "This session is not the agent's main session.", rule="cron.target", fix=_OWN
                )
            return text
        if not text.startswith("session:"):
            raise BadInput(f"sessionTarget is main, isolated, current or session:<key>; not {text!r}.")
        key = definitions.target_key(self._settings, agent, text)
        if own is not None and key != own:
            raise NotAllowed("An agent's job runs in its own session.", rule="cron.target", fix=_OWN)
        if keys.parse(key).agent != agent:
            raise BadInput(
                f"The session {key} is not one of agent {agent!r}.", fix="Name that agent: agentId."
            )
        session_rows.ensure(tx, Session.of(keys.parse(key)))
        return key


_OWN = "Use sessionTarget current or isolated."


def _check_agent_job(job: Job, now_ms: int) -> None:
    """An agent reaches the people of its own session only, and does not start itself all the time."""
    delivery = outcomes.delivery_of(job)
    if delivery.mode == "webhook" or delivery.channel not in (None, "last"):
        raise NotAllowed(
            "The answers of an agent's job go to the chat of its session or nowhere.",
            rule="cron.delivery",
            fix='Use delivery {"mode": "announce"} or {"mode": "none"}; a person can add other jobs.',
        )
    schedule = outcomes.schedule_of(job)
    first = timing.next_after(schedule, now_ms)
    second = timing.next_after(schedule, first) if first is not None else None
    if first is not None and second is not None and second - first < MIN_AGENT_GAP_MS:
        raise NotAllowed(
            "An agent's job runs at most once a minute.", rule="cron.too_often", fix="Use a longer interval."
        )


def runs_in(job: Job, session: Session) -> bool:
    """Whether the session is the one of an isolated job's runs: a run may see and remove its own job."""
    return session.key == str(runs.session_key_of(job))


def _all(tx: Tx) -> Sequence[Job]:
    found: list[Job] = []
    while page := jobs.page(tx, (found[-1].created_at_ms, found[-1].job_id) if found else (-1, "")):
        found += page
    return found
