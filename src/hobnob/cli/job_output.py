"""Scheduled jobs and their runs on the terminal."""

from __future__ import annotations

from typing import Any

from hobnob.cli import output
from hobnob.cli.output import escape

Payload = dict[str, Any]
SHORT_ID = 13  # the timestamp part of an id
_COLOURS = {"ok": "green", "error": "red", "skipped": "yellow", "running": "yellow"}


def show(job: Payload) -> None:
    out = output.console()
    out.print(f"[bold]{escape(output.clean(job['name']))}[/]  {escape(job['id'])}")
    state = job["state"]
    next_at = job.get("nextRunAt") or ("running now" if "runningAtMs" in state else "none")
    payload = job["payload"]
    rows = [
        ("schedule", job["scheduleText"]),
        ("next run", next_at),
        ("agent", job["agentId"]),
        ("session", job["sessionTarget"]),
        ("task", payload.get("message") or payload.get("text", "")),
        ("delivery", f"{job['deliveryPreview']['label']}: {job['deliveryPreview']['detail']}"),
    ]
    if seen := job.get("readsPreview"):
        rows.append(("reads", seen))
    if disabled := state.get("autoDisabled"):
        rows.append(("disabled", disabled["reason"]))
    if job.get("lastRunAt"):
        rows.append(("last run", f"{job['lastRunAt']}: {last_run(job)}"))
    if job.get("lastRunError"):
        rows.append(("error", job["lastRunError"]))
    for name, value in rows:
        out.print(f"  [dim]{name:<9}[/] {escape(output.cut(str(value), 150))}")


def last_run(job: Payload) -> str:
    status = job.get("lastRunStatus")
    if "runningAtMs" in job["state"]:
        return "running"
    return f"{status}, {output.ago(job['lastRunAtMs'])}" if status and "lastRunAtMs" in job else "never"


def show_runs(entries: list[Payload]) -> None:
    out = output.console()
    for entry in entries:
        took = f" in {entry['durationMs'] / 1000:.1f} s" if "durationMs" in entry else ""
        delivery = entry.get("deliveryStatus", "not-requested")
        posted = "" if delivery == "not-requested" else f", {delivery}"
        colour = _COLOURS.get(entry["status"], "dim")
        out.print(
            f"[bold]{escape(entry['runId'][:SHORT_ID])}[/]  {output.ago(entry['runAtMs']):<10}"
            f"  [{colour}]{entry['status']}[/]{took}{posted}, {entry['trigger']}"
            f"  [dim]{escape(output.cut(entry['jobName'], 40))}[/]"
        )
        if text := entry.get("error") or entry.get("deliveryError") or entry.get("summary"):
            out.print(f"  {escape(output.cut(text, 160))}")
