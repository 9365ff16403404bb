"""`hobnob cron`: add, list, change and run scheduled jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from hobnob import timing
from hobnob.cli import connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.job_output import SHORT_ID, last_run, show_runs
from hobnob.cli.job_output import show as show_job
from hobnob.cli.options import AsJson
from hobnob.errors import BadInput, RpcFailed

app = typer.Typer(help="Scheduled jobs: work that starts by itself.", no_args_is_help=True)

Payload = dict[str, Any]


class WakeMode(StrEnum):
    NOW = "now"
    NEXT = "next-heartbeat"


JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id or name; the beginning is enough.")]
Name = Annotated[str | None, typer.Option(help="A name for people.")]
At = Annotated[str | None, typer.Option(help="Once: a time such as 2026-11-20T08:00, or 20m from now.")]
Every = Annotated[str | None, typer.Option(help="In intervals such as 30m, 2h or 1d.")]
CronExpr = Annotated[str | None, typer.Option("--cron", help='A cron expression, such as "0 8 * * 1-5".')]
Zone = Annotated[str | None, typer.Option("--tz", help="Time zone, such as Europe/Vienna.")]
Stagger = Annotated[str | None, typer.Option(help="Start later, by the same time below this, such as 5m.")]
Exact = Annotated[bool, typer.Option("--exact", help="Start exactly on time.")]
SessionTarget = Annotated[
    str | None,
    typer.Option("--session", help="Where it runs: isolated (its own session), main, or session:<key>."),
]
SessionKey = Annotated[str | None, typer.Option(help="The session whose chat gets the answers.")]
Message = Annotated[str | None, typer.Option("--message", "-m", help="The task for the agent.")]
SystemEvent = Annotated[str | None, typer.Option(help="A message for the agent's main session instead.")]
AgentName = Annotated[str | None, typer.Option("--agent", help="The agent that runs it.")]
Model = Annotated[str | None, typer.Option(help="The model of its runs.")]
Thinking = Annotated[str | None, typer.Option(help="The thinking level of its runs.")]
Timeout = Annotated[int | None, typer.Option("--timeout-seconds", min=0, help="Time limit of a run.")]
Tools = Annotated[str | None, typer.Option(help="The tools it may use at most, separated by commas.")]
Announce = Annotated[bool, typer.Option("--announce", help="Post the answer to a chat. This is the default.")]
NoDeliver = Annotated[bool, typer.Option("--no-deliver", help="Send the answer to nobody.")]
Webhook = Annotated[str | None, typer.Option(help="Send finished runs to this address.")]
Channel = Annotated[str | None, typer.Option(help="The channel of the chat; by default the last one used.")]
To = Annotated[str | None, typer.Option(help="The recipient on the channel.")]
ThreadId = Annotated[str | None, typer.Option(help="The thread in the chat.")]
Account = Annotated[str | None, typer.Option(help="The account on the channel.")]
BestEffort = Annotated[
    bool, typer.Option("--best-effort-deliver", help="A failed delivery is not a failed run.")
]
Wake = Annotated[WakeMode | None, typer.Option(help="Whether a system event starts a turn.")]
Description = Annotated[str | None, typer.Option(help="What it is for.")]
Delete = Annotated[
    bool | None,
    typer.Option("--delete-after-run/--keep-after-run", help="Delete it after a successful run."),
]


@app.command()
@uses_gateway
def add(
    endpoint: Endpoint,
    schedule: Annotated[str | None, typer.Argument(help="A cron expression, an interval or a time.")] = None,
    prompt: Annotated[str | None, typer.Argument(help="The task for the agent.")] = None,
    name: Name = None,
    at: At = None,
    every: Every = None,
    cron: CronExpr = None,
    tz: Zone = None,
    stagger: Stagger = None,
    exact: Exact = False,
    session: SessionTarget = None,
    session_key: SessionKey = None,
    message: Message = None,
    system_event: SystemEvent = None,
    agent: AgentName = None,
    model: Model = None,
    thinking: Thinking = None,
    timeout_seconds: Timeout = None,
    tools: Tools = None,
    announce: Announce = False,
    no_deliver: NoDeliver = False,
    webhook: Webhook = None,
    channel: Channel = None,
    to: To = None,
    thread_id: ThreadId = None,
    account: Account = None,
    best_effort: BestEffort = False,
    wake: Wake = None,
    description: Description = None,
    delete_after_run: Delete = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Add it switched off.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a job: `hobnob cron add "0 8 * * 1-5" "Summarise what came in overnight" --tz Europe/Vienna`."""
    if schedule is not None:
        at, every, cron = _positional(schedule, at, every, cron)
    job = {
        "name": name,
        "description": description,
        "agentId": agent,
        "sessionKey": session_key,
        "schedule": _schedule(at, every, cron, tz, stagger, exact),
        "sessionTarget": session,
        "payload": _payload(message or prompt, system_event, model, thinking, timeout_seconds, tools),
        "delivery": _delivery(announce, no_deliver, webhook, channel, to, thread_id, account, best_effort),
        "wakeMode": wake.value if wake else None,
        "deleteAfterRun": delete_after_run,
        "enabled": False if disabled else None,
    }
    if job["schedule"] is None:
        raise BadInput("A job needs a time.", fix="Give --at, --every or --cron; see `hobnob cron add -h`.")
    if job["payload"] is None:
        raise BadInput("A job needs a task.", fix="Give --message, or --system-event.")
    _show_changed(endpoint, connection.call(endpoint, "cron.add", **_given(job)), "added", as_json)


@app.command("list")
@uses_gateway
def list_(
    endpoint: Endpoint,
    all_: Annotated[bool, typer.Option("--all", help="Also jobs that are switched off.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of rows.")] = 200,
    as_json: AsJson = False,
) -> None:
    """List the jobs in the order of their next run."""
    page = connection.call(endpoint, "cron.list", includeDisabled=all_, limit=limit)
    if as_json:
        output.json(page)
        return
    if not page["jobs"]:
        output.note('No jobs. To add one: hobnob cron add "0 8 * * 1-5" "Summarise what came in overnight"')
        return
    rows = [
        (
            job["id"],
            job.get("nextRunAt") or ("running" if "runningAtMs" in job["state"] else "off"),
            last_run(job),
            job["name"],
        )
        for job in page["jobs"]
    ]
    output.listing(("id", "next run", "last run", "name"), rows)
    _note_state(endpoint)


@app.command()
@uses_gateway
def show(endpoint: Endpoint, job: JobId, as_json: AsJson = False) -> None:
    """Show a job: when it runs, what it does, where its answer goes, and how its last run ended."""
    found = _find(endpoint, job)
    if as_json:
        output.json(found)
        return
    show_job(found)
    runs = connection.call(endpoint, "cron.runs", id=found["id"], limit=5)["entries"]
    if runs:
        output.console().print("\n[bold]Latest runs[/]")
        show_runs(runs)


@app.command()
@uses_gateway
def edit(
    endpoint: Endpoint,
    job: JobId,
    name: Name = None,
    at: At = None,
    every: Every = None,
    cron: CronExpr = None,
    tz: Zone = None,
    stagger: Stagger = None,
    exact: Exact = False,
    session: SessionTarget = None,
    message: Message = None,
    system_event: SystemEvent = None,
    agent: AgentName = None,
    model: Model = None,
    thinking: Thinking = None,
    timeout_seconds: Timeout = None,
    tools: Tools = None,
    announce: Announce = False,
    no_deliver: NoDeliver = False,
    webhook: Webhook = None,
    channel: Channel = None,
    to: To = None,
    thread_id: ThreadId = None,
    account: Account = None,
    best_effort: BestEffort = False,
    wake: Wake = None,
    description: Description = None,
    delete_after_run: Delete = None,
    as_json: AsJson = False,
) -> None:
    """Change a job. What is not named stays as it is."""
    found = _find(endpoint, job)
    schedule = _schedule(at, every, cron, tz, stagger, exact)
    if schedule is None and (tz or stagger or exact):
        schedule = {k: v for k, v in found["schedule"].items() if k not in ("tz", "staggerMs")}
        schedule |= _zone(tz or found["schedule"].get("tz"), stagger, exact)
    payload = _payload(message, system_event, model, thinking, timeout_seconds, tools)
    if payload is None:
        payload = _given({"model": model, "thinking": thinking, "timeoutSeconds": timeout_seconds}) or None
        if tools is not None:
            payload = (payload or {}) | {"toolsAllow": _names(tools)}
    patch = {
        "name": name,
        "description": description,
        "agentId": agent,
        "schedule": schedule,
        "sessionTarget": session,
        "payload": payload,
        "delivery": _delivery(announce, no_deliver, webhook, channel, to, thread_id, account, best_effort),
        "wakeMode": wake.value if wake else None,
        "deleteAfterRun": delete_after_run,
    }
    if not (changes := _given(patch)):
        raise BadInput("Nothing to change.", fix="`hobnob cron edit -h` lists what can be changed.")
    answer = connection.call(endpoint, "cron.update", id=found["id"], patch=changes)
    _show_changed(endpoint, answer, "changed", as_json)


@app.command()
@uses_gateway
def enable(endpoint: Endpoint, job: JobId, as_json: AsJson = False) -> None:
    """Switch a job on."""
    _set_enabled(endpoint, job, True, as_json)


@app.command()
@uses_gateway
def disable(endpoint: Endpoint, job: JobId, as_json: AsJson = False) -> None:
    """Switch a job off. A run of it is stopped."""
    _set_enabled(endpoint, job, False, as_json)


@app.command()
@uses_gateway
def run(
    endpoint: Endpoint,
    job: JobId,
    due: Annotated[bool, typer.Option("--due", help="Only if it is due.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the answer.")] = False,
    wait_timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait at most.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Run a job now."""
    found = _find(endpoint, job)
    started = connection.call(endpoint, "cron.run", id=found["id"], mode="due" if due else "force")
    is_running = connection.locate(endpoint) is not None
    if wait and "runId" in started and is_running:
        connection.call(endpoint, "agent.wait", runId=started["runId"], timeoutMs=wait_timeout * 1000)
        entries = connection.call(endpoint, "cron.runs", id=found["id"], runId=started["runId"])["entries"]
        started |= {"run": entries[0]} if entries else {}
    if as_json:
        output.json(started)
        return
    if "run" in started:
        show_runs([started["run"]])
    elif "runId" in started and started.get("enqueued"):
        state = "Started" if is_running else "Queued; it runs when the gateway does: hobnob serve. The run is"
        output.note(
            f"{state}: {started['runId']}. `hobnob cron runs {found['id'][:SHORT_ID]}` shows how it ends."
        )
    else:
        raise BadInput(f"The job was not started: {started.get('reason')}.")


@app.command()
@uses_gateway
def runs(
    endpoint: Endpoint,
    job: Annotated[str | None, typer.Argument(metavar="ID", help="The job; without it, all jobs.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of rows.")] = 20,
    status: Annotated[str | None, typer.Option(help="Only ok, error, skipped or running.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the latest runs of a job or of all jobs, newest first."""
    params: Payload = {"limit": limit, "status": status, "runId": run_id}
    params |= {"id": _find(endpoint, job, missing=job)["id"]} if job else {"scope": "all"}
    page = connection.call(endpoint, "cron.runs", **_given(params))
    if as_json:
        output.json(page)
    elif page["entries"]:
        show_runs(page["entries"])
    else:
        output.note("No runs yet.")


@app.command("rm")
@uses_gateway
def remove(endpoint: Endpoint, job: JobId, as_json: AsJson = False) -> None:
    """Delete a job and the session of its runs. The history of its runs stays."""
    found = _find(endpoint, job)
    answer = connection.call(endpoint, "cron.remove", id=found["id"])
    if as_json:
        output.json(answer | {"id": found["id"]})
    else:
        output.note(f"Removed: {found['name']} ({found['id']}).")


@app.command()
@uses_gateway
def status(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """Show whether jobs run, how many there are, and when the next one is due."""
    found = connection.call(endpoint, "cron.status")
    if as_json:
        output.json(found)
        return
    zone = timing.host_zone()
    next_at = found.get("nextWakeAtMs")
    state = "on" if found["enabled"] else "off (cron.enabled)"
    output.console().print(f"Scheduler: {state}. Jobs: {found['enabledJobs']} on, {found['jobs']} in all.")
    output.console().print(f"Next run: {timing.shown(next_at, zone) if next_at else 'none'}")
    _note_state(endpoint)


@app.callback()
def _cron() -> None:
    pass


def _positional(text: str, *named: str | None) -> tuple[str | None, str | None, str | None]:
    """The positional schedule: five fields or @daily are an expression, 30m an interval, else a time."""
    if any(named):
        raise BadInput("The schedule is given twice.", fix="Leave out the first argument, or the option.")
    text = text.strip()
    if text.startswith("@") or len(text.split()) > 2:
        return None, None, text
    return (None, text, None) if timing.duration_ms(text) else (text, None, None)


def _schedule(
    at: str | None, every: str | None, cron: str | None, tz: str | None, stagger: str | None, exact: bool
) -> Payload | None:
    if sum(value is not None for value in (at, every, cron)) > 1:
        raise BadInput("Give one of --at, --every and --cron.")
    if at is not None:
        return {"kind": "at", "at": at} | ({"tz": tz} if tz else {})
    if every is not None:
        every_ms = timing.duration_ms(every)
        if every_ms is None:
            raise BadInput(f"{every!r} is not an interval such as 30m, 2h or 1d.")
        return {"kind": "every", "everyMs": every_ms} | ({"tz": tz} if tz else {})
    if cron is not None:
        return {"kind": "cron", "expr": cron} | _zone(tz, stagger, exact)
    return None


def _zone(tz: str | None, stagger: str | None, exact: bool) -> Payload:
    delay = 0 if exact else timing.duration_ms(stagger) if stagger else None
    if stagger and delay is None:
        raise BadInput(f"{stagger!r} is not a time such as 5m.")
    return _given({"tz": tz, "staggerMs": delay})


def _payload(
    message: str | None,
    event: str | None,
    model: str | None,
    thinking: str | None,
    timeout_s: int | None,
    tools: str | None,
) -> Payload | None:
    if message and event:
        raise BadInput("Give --message or --system-event, not both.")
    if not message and not event:
        return None
    what: Payload = (
        {"kind": "systemEvent", "text": event} if event else {"kind": "agentTurn", "message": message}
    )
    more = {"model": model, "thinking": thinking, "timeoutSeconds": timeout_s}
    return what | _given(more | {"toolsAllow": _names(tools) if tools is not None else None})


def _delivery(
    announce: bool,
    no_deliver: bool,
    webhook: str | None,
    channel: str | None,
    to: str | None,
    thread_id: str | None,
    account: str | None,
    best_effort: bool,
) -> Payload | None:
    if announce + no_deliver + (webhook is not None) > 1:
        raise BadInput("Give one of --announce, --no-deliver and --webhook.")
    more = _given({"channel": channel, "to": to, "threadId": thread_id, "accountId": account})
    more |= {"bestEffort": True} if best_effort else {}
    if no_deliver:
        return {"mode": "none"}
    if webhook is not None:
        return more | {"mode": "webhook", "to": webhook}
    return more | {"mode": "announce"} if announce or more else None


def _names(tools: str) -> list[str]:
    return [name.strip() for name in tools.split(",") if name.strip()]


def _given(values: Payload) -> Payload:
    return {name: value for name, value in values.items() if value is not None}


def _find(endpoint: Endpoint, text: str, missing: str | None = None) -> Payload:
    """The job of an id, of the beginning of one, or of a name."""
    try:
        return connection.call(endpoint, "cron.get", id=text)
    except RpcFailed as problem:
        if problem.reason != "not_found":
            raise
    found = connection.call(endpoint, "cron.list", includeDisabled=True, query=text, limit=500)["jobs"]
    wanted = text.lower()
    exact = [job for job in found if job["name"].lower() == wanted]
    matches = exact or [
        job for job in found if job["id"].startswith(wanted) or job["name"].lower().startswith(wanted)
    ]
    if len(matches) == 1:
        return dict(matches[0])
    if missing is not None and not matches:
        return {"id": missing}  # the history of a deleted job is found by its id
    problem_text = "There is no job" if not matches else "More than one job is called"
    raise BadInput(f"{problem_text} {text!r}.", fix="`hobnob cron list --all` shows the ids.")


def _set_enabled(endpoint: Endpoint, job: str, enabled: bool, as_json: bool) -> None:
    found = _find(endpoint, job)
    answer = connection.call(endpoint, "cron.update", id=found["id"], patch={"enabled": enabled})
    _show_changed(endpoint, answer, "on" if enabled else "off", as_json)


def _show_changed(endpoint: Endpoint, job: Payload, what: str, as_json: bool) -> None:
    if as_json:
        output.json(job)
        return
    show_job(job)
    output.note(f"The job is {what}.")
    _note_state(endpoint)


def _note_state(endpoint: Endpoint) -> None:
    """Warn when nothing would run."""
    if not connection.call(endpoint, "cron.status")["enabled"]:
        output.note("Jobs do not run: cron.enabled is false.")
    elif connection.locate(endpoint) is None:
        output.note("Jobs run while the gateway does: hobnob serve")
