"""`hobnob sessions`: find sessions, read them, and change them."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import output, reach, transcript
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.cli.output import escape
from hobnob.config import Config
from hobnob.errors import BadInput, NotFound, SessionNotFound
from hobnob.store import entries, mirror, sqlite_path
from hobnob.store import sessions as session_rows
from hobnob.store.engine.sqlite import SqliteTx
from hobnob.store.engine.sqlite_file import connect, named

if TYPE_CHECKING:
    from hobnob.cli.gateways import Here, There

app = typer.Typer(help="The sessions: conversations with agents.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="A session key, or a sessionId.")]
_PAGE = 200
_CHUNK = 500
_SHOWN = 50


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
def list_(
    kind: Annotated[
        list[Kind] | None, typer.Option("--kind", help="Only this kind; may be repeated.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    search: Annotated[str | None, typer.Option(help="Only with this text in key, label or name.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="Most rows.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on where the page before ended.")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="The archived sessions instead.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first."""
    wanted: dict[str, Any] = {"limit": limit, "archived": archived}
    wanted |= {"kinds": [k.value for k in kind]} if kind else {}
    wanted |= {"agentId": agent} if agent else {}
    wanted |= {"search": search} if search else {}
    wanted |= {"cursor": cursor} if cursor else {}
    page = reach.ask(settings.load(config), "sessions.list", **wanted)
    if as_json:
        output.json(page)
        return
    if not page["sessions"]:
        narrowed = kind or agent or search or cursor or archived
        output.note("No such sessions." if narrowed else 'No sessions yet. Try: hobnob agent -m "say hi"')
        return
    output.listing(("key", "used", "state", "tokens", "label"), [_row(each) for each in page["sessions"]])
    if "nextCursor" in page:
        output.note(f"There are more: --cursor {page['nextCursor']}")


@app.command()
def show(
    key: Key,
    tools: Annotated[bool, typer.Option("--tools", help="Also what tools gave back.")] = False,
    limit: Annotated[
        int, typer.Option(min=0, help="Most messages, the newest.", show_default="50; all with --jsonl")
    ] = 0,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="The lines of the transcript file: nothing left out, or hidden.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what was said in a session. Secrets are hidden, long texts cut, but not with --jsonl."""
    loaded = settings.load(config)
    if jsonl and as_json:
        raise BadInput("--json is one document and --jsonl one for each line.", fix="Choose one of them.")
    if jsonl:
        _print_lines(loaded, key, limit or sys.maxsize)
        return
    limit = limit or _SHOWN
    page = reach.run(loaded, lambda reached: read(reached, key, limit, tools=tools))
    if as_json:
        output.json(page)
        return
    out = output.console()
    said = page["messages"]
    out.print(f"[bold]{escape(page['sessionKey'])}[/]  [dim]{output.number(len(said), 'message')}[/]\n")
    transcript.show(out, said, keys.parse(page["sessionKey"]).agent)
    if "nextCursor" in page:
        output.note(f"There are earlier ones: --limit {2 * limit}")


@app.command()
def status(key: Key, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show how a session is doing: what is under way, whom it waits for, what it cost."""
    row = reach.ask(settings.load(config), "sessions.status", key=key)
    if as_json:
        output.json(row)
        return
    used = f"{row['inputTokens']:,} in, {row['outputTokens']:,} out"
    lines = {
        "status": row["status"] + (" (archived)" if "archivedAt" in row else ""),
        "under way": output.number(row["openTurns"], "turn") if row["openTurns"] else "nothing",
        "waits for": ", ".join(row["waitsFor"]),
        "label": row.get("label"),
        "name": row.get("displayName"),
        "model": row.get("model", "as configured"),
        "thinking": row.get("thinkingLevel"),
        "send policy": row.get("sendPolicy"),
        "tokens": used + (f", ${row['costUsd']:.4f}" if row["costUsd"] else ""),
        "last used": output.ago(row["updatedAt"]),
        "chat": row.get("lastChannel"),
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
def search(
    query: Annotated[str, typer.Argument(metavar="WORDS", help="Words that must all occur.")],
    session: Annotated[str | None, typer.Option(help="Only in this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=25, help="Most results.")] = 10,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, in all sessions. Best matches first."""
    within = {"sessionKey": session} if session else {}
    found = reach.ask(settings.load(config), "sessions.search", query=query, limit=limit, **within)
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
        output.note("There are more: name more words, or a larger --limit (25 at most).")


@app.command()
def patch(
    key: Key,
    label: Annotated[str | None, typer.Option(help="A unique label.")] = None,
    name: Annotated[str | None, typer.Option(help="The name people see.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as provider/model.")] = None,
    thinking: Annotated[str | None, typer.Option(help="off, minimal, low, medium, high or xhigh.")] = None,
    send_policy: Annotated[
        SendPolicy | None, typer.Option(help="Whether anything may be sent into it.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a session. An empty value takes one back."""
    given: dict[str, Any] = {
        "label": label,
        "displayName": name,
        "model": model,
        "thinkingLevel": thinking,
        "sendPolicy": None if send_policy is None else send_policy.value,
    }
    changes = {field: value or None for field, value in given.items() if value is not None}
    if not changes:
        raise BadInput(
            "There is nothing to change.", fix="Give --label, --name, --model, --thinking or --send-policy."
        )
    if changes.get("sendPolicy") == "inherit":
        changes["sendPolicy"] = None
    changed = reach.ask(settings.load(config), "sessions.patch", key=key, **changes)
    _done(changed, as_json, f"Changed {changed['key']}.")


@app.command()
def reset(key: Key, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Begin a new transcript. The old one stays readable by its sessionId."""
    loaded = settings.load(config)

    async def act(reached: There | Here) -> tuple[Any, Any]:
        before = await reached.call("sessions.resolve", key=key)
        return before, await reached.call("sessions.reset", key=before["key"])

    before, changed = reach.run(loaded, act)
    old = f"hobnob sessions show {before['sessionId']}"
    said = f"{changed['key']} begins anew. To read the old transcript: {old}"
    _done(changed | {"previousSessionId": before["sessionId"]}, as_json, said)


@app.command()
def archive(key: Key, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Put a session away: it is not listed and takes no messages until it is restored."""
    changed = reach.ask(settings.load(config), "sessions.archive", key=key)
    _done(changed, as_json, f"Archived {changed['key']}.")


@app.command()
def restore(key: Key, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Bring an archived session back."""
    changed = reach.ask(settings.load(config), "sessions.restore", key=key)
    _done(changed, as_json, f"Restored {changed['key']}.")


@app.command()
def delete(
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a session with all that was said in it. Asks first."""
    loaded = settings.load(config)
    found = reach.ask(loaded, "sessions.resolve", key=key)
    if not yes:
        if as_json:
            raise BadInput("With --json nobody is asked.", fix="To delete without being asked, add --yes.")
        typer.confirm(f"Delete {found['key']} with all that was said in it?", abort=True, err=True)
    gone = reach.ask(loaded, "sessions.delete", key=found["key"])
    _done(gone, as_json, f"Deleted {gone['key']}.")


async def read(reached: There | Here, key: str, limit: int, *, tools: bool) -> dict[str, Any]:
    """The newest messages of a session that is there, page after page, oldest first."""
    await reached.call("sessions.resolve", key=key)  # an empty page would not tell whether it is there
    page: dict[str, Any] = await reached.call(
        "sessions.get", key=key, limit=min(limit, _PAGE), includeTools=tools
    )
    while "nextCursor" in page and len(page["messages"]) < limit:
        left = min(limit - len(page["messages"]), _PAGE)
        before = await reached.call(
            "sessions.get", key=key, limit=left, includeTools=tools, cursor=page.pop("nextCursor")
        )
        page["messages"] = before["messages"] + page["messages"]
        page |= {"nextCursor": before["nextCursor"]} if "nextCursor" in before else {}
    return page


def _row(session: dict[str, Any]) -> tuple[str, str, str, str, str]:
    return (
        session["key"],
        output.ago(session["updatedAt"]),
        session["status"],
        output.count(session.get("totalTokens", 0)),
        session.get("label") or session.get("displayName") or "",
    )


def _done(document: Any, as_json: bool, said: str) -> None:
    if as_json:
        output.json(document)
    else:
        output.console().print(escape(said))


def _print_lines(loaded: Config, reference: str, limit: int) -> None:
    """What the transcript's file holds, from the database, which is never behind. Nobody is asked for it."""
    path = sqlite_path(loaded.store_url)
    if not path.exists():
        raise NotFound(f"There is no store at {path} yet.", fix="It is made when Hobnob is first used.")
    with named(path), contextlib.closing(connect(path, read_only=True)) as connection:
        tx = SqliteTx(connection)
        by_id = session_rows.by_id(tx, reference.strip().lower())
        found = by_id or session_rows.find(tx, str(keys.parse(reference, loaded.settings.viewer())))
        if found is None:
            raise SessionNotFound(
                f"There is no session {reference}.", fix="`hobnob sessions list` shows those there are."
            )
        session_id = reference.strip().lower() if by_id else found.session_id
        session_key, _, created_at_ms = tx.rows("transcript_get", session_id=session_id)[0]
        out = sys.stdout.buffer
        out.write(mirror.render([mirror.header(session_id, session_key, created_at_ms)]))
        after = max(entries.last_seq(tx, session_id) - limit, 0)
        while page := entries.after(tx, session_id, after, limit=_CHUNK):
            out.write(mirror.render(mirror.line(entry) for entry in page))
            after = page[-1].seq
        out.flush()
