"""`hobnob sessions`: find, read and change sessions."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import Annotated, Any, get_args

import typer

from hobnob import keys
from hobnob.cli import connection, output, transcript
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.cli.output import escape
from hobnob.errors import BadInput, SessionNotFound
from hobnob.parameters import description
from hobnob.requests import LIST_MAX, SEARCH_DEFAULT, SEARCH_MAX, SearchQuery, SessionFilter
from hobnob.store import Tx, entries, mirror, open_reader
from hobnob.store import sessions as session_rows

app = typer.Typer(help="Sessions: conversations with agents.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="A session key, or a sessionId.")]
_JSONL_PAGE = 500
_SHOWN_MESSAGES = 50


class Kind(StrEnum):
    MAIN = "main"
    GROUP = "group"
    CRON = "cron"
    HOOK = "hook"
    NODE = "node"
    OTHER = "other"


class SendPolicy(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    INHERIT = "inherit"


assert {k.value for k in Kind} == set(get_args(keys.Kind))


@app.command("list")
@uses_gateway
def list_(
    endpoint: Endpoint,
    kind: Annotated[
        list[Kind] | None, typer.Option("--kind", help="Only this kind; may be repeated.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help=description(SessionFilter, "agent_id"))] = None,
    search: Annotated[str | None, typer.Option(help=description(SessionFilter, "search"))] = None,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="Maximum number of rows.")] = 50,
    cursor: Annotated[str | None, typer.Option(help=description(SessionFilter, "cursor"))] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Archived sessions instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first."""
    params: dict[str, Any] = {"limit": limit, "archived": archived}
    params |= {"kinds": [k.value for k in kind]} if kind else {}
    params |= {"agentId": agent} if agent else {}
    params |= {"search": search} if search else {}
    params |= {"cursor": cursor} if cursor else {}
    page = connection.call(endpoint, "sessions.list", **params)
    if as_json:
        output.json(page)
        return
    if not page["sessions"]:
        filtered = kind or agent or search or cursor or archived
        output.note("No session matches." if filtered else 'No sessions yet. Try: hobnob agent -m "say hi"')
        return
    have_homes = any("home" in each for each in page["sessions"])
    columns = ("key", "used", "state", "tokens", "label", *(("home",) if have_homes else ()))
    output.listing(columns, [_row(each)[: len(columns)] for each in page["sessions"]])
    if "nextCursor" in page:
        output.note(f"There are more: --cursor {page['nextCursor']}")


@app.command()
@uses_gateway
def show(
    endpoint: Endpoint,
    key: Key,
    tools: Annotated[bool, typer.Option("--tools", help="With tool results.")] = False,
    limit: Annotated[
        int,
        typer.Option(min=0, help="How many of the newest messages.", show_default="50; all with --jsonl"),
    ] = 0,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="The lines of the transcript file, complete and unredacted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the messages of a session. Secrets are redacted and long texts cut, except with --jsonl."""
    if jsonl and as_json:
        raise BadInput("--json prints one document and --jsonl one per line.", fix="Choose one of them.")
    if jsonl:
        asyncio.run(_print_jsonl(endpoint, key, limit or sys.maxsize))
        return
    limit = limit or _SHOWN_MESSAGES

    async def read(gateway: Connection) -> tuple[dict[str, Any], dict[str, Any]]:
        page = await read_messages(gateway, key, limit, tools=tools)
        return page, await gateway.call("sessions.status", key=page["sessionKey"])

    page, state = connection.run(endpoint, read)
    page |= {name: state[name] for name in ("home", "homeState") if name in state}
    if as_json:
        output.json(page)
        return
    out = output.console()
    messages = page["messages"]
    out.print(f"[bold]{escape(page['sessionKey'])}[/]  [dim]{output.number(len(messages), 'message')}[/]")
    out.print(f"[dim]home: {escape(_home(page))}[/]\n" if "home" in page else "")
    transcript.show(out, messages, keys.parse(page["sessionKey"]).agent)
    if "nextCursor" in page:
        output.note(f"There are earlier messages: --limit {2 * limit}")


@app.command()
@uses_gateway
def status(endpoint: Endpoint, key: Key, as_json: AsJson = False) -> None:
    """Show the state of a session: open turns, which sessions it waits for, tokens and cost."""
    row = connection.call(endpoint, "sessions.status", key=key)
    if as_json:
        output.json(row)
        return
    used = f"{row['inputTokens']:,} in, {row['outputTokens']:,} out"
    lines = {
        "status": row["status"] + (" (archived)" if "archivedAt" in row else ""),
        "last error": row.get("lastError"),
        "open turns": str(row["openTurns"]),
        "waits for": ", ".join(row["waitsFor"]),
        "label": row.get("label"),
        "name": row.get("displayName"),
        "model": row.get("model", "as configured"),
        "thinking": row.get("thinkingLevel"),
        "send policy": row.get("sendPolicy"),
        "tokens": used + (f", ${row['costUsd']:.4f}" if row["costUsd"] else ""),
        "last used": output.ago(row["updatedAt"]),
        "chat": row.get("lastChannel"),
        "home": _home(row),
        "spawned by": row.get("spawnedBy"),
        "spawned": "\n".join(row.get("childSessions", [])),
        "session id": row["sessionId"],
        "transcript": row.get("transcriptPath"),
    }
    out = output.console()
    out.print(f"[bold]{escape(row['key'])}[/]")
    for name, value in lines.items():
        for number, line in enumerate((value or "").splitlines()):
            out.print(f"  [dim]{'' if number else name:<12}[/]{escape(output.clean(line))}")


@app.command()
@uses_gateway
def search(
    endpoint: Endpoint,
    query: Annotated[str, typer.Argument(metavar="WORDS", help=description(SearchQuery, "query"))],
    session: Annotated[str | None, typer.Option(help=description(SearchQuery, "session_key"))] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=SEARCH_MAX, help="Maximum number of results.")
    ] = SEARCH_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Search the messages of all sessions. Best matches first."""
    within = {"sessionKey": session} if session else {}
    found = connection.call(endpoint, "sessions.search", query=query, limit=limit, **within)
    if as_json:
        output.json(found)
        return
    if not found["results"]:
        output.note("Nothing found.")
        return
    out = output.console()
    for hit in found["results"]:
        speaker = "user" if hit["role"] == "user" else keys.parse(hit["sessionKey"]).agent
        when = output.ago(hit["timestamp"])
        out.print(f"[bold]{escape(hit['sessionKey'])}[/] [dim]#{hit['seq']} · {speaker} · {when}[/]")
        out.print(output.paragraph(hit["snippet"], 2))
    if found.get("truncated"):
        output.note("There are more: add words, or raise --limit (25 at most).")


@app.command()
@uses_gateway
def patch(
    endpoint: Endpoint,
    key: Key,
    label: Annotated[str | None, typer.Option(help="A label that no other session of the agent has.")] = None,
    name: Annotated[str | None, typer.Option(help="The display name.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as provider/model.")] = None,
    thinking: Annotated[str | None, typer.Option(help="off, minimal, low, medium, high or xhigh.")] = None,
    send_policy: Annotated[
        SendPolicy | None, typer.Option(help="Whether messages may be sent into it.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="What it and what it spawns may spend from now on, as usd=5,tokens=100000."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a session. An empty value removes one."""
    given: dict[str, Any] = {
        "label": label,
        "displayName": name,
        "model": model,
        "thinkingLevel": thinking,
        "sendPolicy": None if send_policy is None else send_policy.value,
    }
    changes = {field: value or None for field, value in given.items() if value is not None}
    if budget is not None:
        changes["budget"] = _limits(budget)
    if not changes:
        raise BadInput(
            "There is nothing to change.",
            fix="Give --label, --name, --model, --thinking, --send-policy or --budget.",
        )
    if changes.get("sendPolicy") == "inherit":
        changes["sendPolicy"] = None
    changed = connection.call(endpoint, "sessions.patch", key=key, **changes)
    _done(changed, as_json, f"Changed {changed['key']}.")


def _limits(text: str) -> dict[str, float] | None:
    """A budget as people write it; None to remove it."""
    limits: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        try:
            limits[name.strip()] = float(number) if name.strip() in ("usd", "seconds") else int(number)
        except ValueError:
            raise BadInput(
                f"{part!r} is no limit.", fix="For example --budget usd=5,tokens=100000."
            ) from None
    return limits or None


@app.command()
@uses_gateway
def move(
    endpoint: Endpoint,
    key: Key,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The gateway that shall run it, by its name.")
    ] = None,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="The next gateway that runs it becomes its home.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also to a gateway that does not run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a session, and what it spawned, to another gateway. Files are not copied."""
    if (name is None) != anywhere:
        raise BadInput("Name a gateway, or give --anywhere.", fix="`hobnob nodes list` shows the gateways.")
    moved = connection.call(endpoint, "sessions.patch", key=key, home=name, force=force)
    message = f"The home of {moved['key']} is {moved['home'] or 'the next gateway that runs it'} now."
    if at := moved.get("filesAt"):
        message += f" Its files were not copied: they are on {at['gateway']}, in {at['workspace']}."
    _done(moved, as_json, message)


@app.command()
@uses_gateway
def reset(endpoint: Endpoint, key: Key, as_json: AsJson = False) -> None:
    """Start a new transcript. The old one stays readable by its sessionId."""

    async def act(gateway: Connection) -> tuple[Any, Any]:
        before = await gateway.call("sessions.resolve", key=key)
        return before, await gateway.call("sessions.reset", key=before["key"])

    before, changed = connection.run(endpoint, act)
    old = f"hobnob sessions show {before['sessionId']}"
    message = f"{changed['key']} has a new transcript. To read the old one: {old}"
    _done(changed | {"previousSessionId": before["sessionId"]}, as_json, message)


@app.command()
@uses_gateway
def compact(
    endpoint: Endpoint,
    key: Key,
    focus: Annotated[str, typer.Option(help="What the summary should pay attention to.")] = "",
    as_json: AsJson = False,
) -> None:
    """Summarise the older part of a conversation, for the model only. Nothing is deleted."""

    async def act(gateway: Connection) -> Any:
        return await gateway.call("sessions.compact", key=key, focus=focus)

    done = connection.run(endpoint, act, run_turns=True)
    message = f"Nothing changed: {done.get('reason')}."
    if done["compacted"]:
        message = f"A summary covers messages 1 to {done['covers'][1]} of {done['key']} now."
        message += f" It is incomplete: {done['failed']}" if "failed" in done else ""
    _done(done, as_json, message)
    if not done["ok"]:
        raise typer.Exit(1)


@app.command()
@uses_gateway
def archive(endpoint: Endpoint, key: Key, as_json: AsJson = False) -> None:
    """Archive a session: it is not listed and takes no messages until it is restored."""
    changed = connection.call(endpoint, "sessions.archive", key=key)
    _done(changed, as_json, f"Archived {changed['key']}.")


@app.command()
@uses_gateway
def restore(endpoint: Endpoint, key: Key, as_json: AsJson = False) -> None:
    """Restore an archived session."""
    changed = connection.call(endpoint, "sessions.restore", key=key)
    _done(changed, as_json, f"Restored {changed['key']}.")


@app.command()
@uses_gateway
def delete(
    endpoint: Endpoint,
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a session with all its messages. Asks first."""
    found = connection.call(endpoint, "sessions.resolve", key=key)
    if not yes:
        if as_json:
            raise BadInput("--json cannot ask for confirmation.", fix="Add --yes to delete without it.")
        typer.confirm(f"Delete {found['key']} with all its messages?", abort=True, err=True)
    deleted = connection.call(endpoint, "sessions.delete", key=found["key"])
    _done(deleted, as_json, f"Deleted {deleted['key']}.")


@app.command()
@uses_gateway
def cleanup(
    endpoint: Endpoint,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    enforce: Annotated[
        bool, typer.Option("--enforce", help='Remove it also with session.maintenance.mode "warn".')
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what is older than session.maintenance says. A running gateway does this by itself as well."""
    done = connection.call(endpoint, "sessions.cleanup", dryRun=dry_run, enforce=enforce)
    if as_json:
        output.json(done)
        return
    rows = [(name, f"{count:,}") for name, count in done["counts"].items() if count]
    if rows:
        output.listing(("what", "would be removed" if done["dryRun"] else "removed"), rows)
    else:
        output.note("Nothing is due.")
    if rows and done["dryRun"] and not dry_run:
        output.note('Nothing was removed: session.maintenance.mode is "warn". --enforce removes it.')


async def read_messages(gateway: Connection, key: str, limit: int, *, tools: bool) -> dict[str, Any]:
    """The newest messages of a session, oldest first, over as many pages as it takes."""
    await gateway.call("sessions.resolve", key=key)  # sessions.get of an unknown key is an empty page
    page: dict[str, Any] = await gateway.call(
        "sessions.get", key=key, limit=min(limit, LIST_MAX), includeTools=tools
    )
    while "nextCursor" in page and len(page["messages"]) < limit:
        missing = min(limit - len(page["messages"]), LIST_MAX)
        before = await gateway.call(
            "sessions.get", key=key, limit=missing, includeTools=tools, cursor=page.pop("nextCursor")
        )
        page["messages"] = before["messages"] + page["messages"]
        page |= {"nextCursor": before["nextCursor"]} if "nextCursor" in before else {}
    return page


def _home(session: dict[str, Any]) -> str:
    """The gateway that has the files of a session, and what to do if it runs no turns."""
    if (state := session.get("homeState")) not in ("gone", "drained"):
        return str(session.get("home", ""))
    return f"{session['home']} ({state}; see `hobnob sessions move`)"


def _row(session: dict[str, Any]) -> tuple[str, ...]:
    return (
        session["key"],
        output.ago(session["updatedAt"]),
        session["status"],
        output.count(session.get("totalTokens", 0)),
        session.get("label") or session.get("displayName") or "",
        _home(session),
    )


def _done(document: Any, as_json: bool, message: str) -> None:
    if as_json:
        output.json(document)
    else:
        output.console().print(escape(message))


async def _print_jsonl(endpoint: Endpoint, reference: str, limit: int) -> None:
    """Print a transcript file from the database: the mirror may be behind, and a gateway redacts."""
    if endpoint.url is not None:
        raise BadInput("--jsonl reads the store of this machine.", fix="Use --json for a gateway elsewhere.")
    loaded = endpoint.config
    async with open_reader(loaded.store_url) as reader:
        viewer = loaded.settings.viewer()
        session_id, header, after = await reader.read(_find_transcript, reference, viewer, limit)
        out = sys.stdout.buffer
        out.write(mirror.render([header]))
        while page := await reader.read(entries.after, session_id, after, limit=_JSONL_PAGE):
            out.write(mirror.render(mirror.line(entry) for entry in page))
            after = page[-1].seq
        out.flush()


def _find_transcript(
    tx: Tx, reference: str, viewer: keys.Viewer, limit: int
) -> tuple[str, dict[str, Any], int]:
    """The id and the header of a transcript, and the sequence number before its last `limit` entries."""
    session_id = reference.strip().lower()
    if session_rows.by_id(tx, session_id) is None:
        session = session_rows.find(tx, str(keys.parse(reference, viewer)))
        if session is None:
            raise SessionNotFound(
                f"There is no session {reference}.", fix="`hobnob sessions list` shows the sessions."
            )
        session_id = session.session_id
    after = max(entries.last_seq(tx, session_id) - limit, 0)
    return session_id, mirror.header_of(tx, session_id), after
