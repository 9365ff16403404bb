"""`hobnob doctor`: is everything well, and if not, what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from hobnob import config as settings
from hobnob import statedir
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.errors import BadConfig, HobnobError
from hobnob.sandbox.bubblewrap import Bubblewrap
from hobnob.store import sqlite_path
from hobnob.store.engine import sqlite_file

_LOW_BYTES = 500 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: Literal["ok", "warn", "fail"]
    message: str
    fix: str | None = None


def doctor(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check the configuration, the state directory and the store. Exits with 1 when something is wrong."""
    findings = list(_findings(config))
    healthy = all(f.state != "fail" for f in findings)
    if as_json:
        output.json({"ok": healthy, "findings": [asdict(f) for f in findings]})
    else:
        out = output.console()
        for finding in findings:
            out.print(
                f"{output.MARKS[finding.state]} [bold]{finding.check}[/]  {output.escape(finding.message)}"
            )
            if finding.fix:
                out.print(f"    → {output.escape(finding.fix)}")
        out.print("\nAll is well." if healthy else "\nSomething needs your attention.")
    raise typer.Exit(0 if healthy else 1)


def _findings(file: Path | None) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", version)
    try:
        loaded = settings.load(file)
    except BadConfig as problem:
        for each in problem.problems:
            yield Finding(
                "config", "fail", f"{each.path}: {each.message}" if each.path else each.message, None
            )
        yield Finding("config", "fail", f"{problem.source} cannot be used.", "Mend the points above.")
        return
    yield from _config(loaded)
    yield from _harnesses(loaded)
    yield from _home(loaded.home)
    yield from _store(loaded)
    yield from _sandbox(loaded)
    if loaded.settings.mcp.servers and importlib.util.find_spec("mcp") is None:
        fix = "pip install 'hobnob[mcp]'"
        yield Finding("mcp", "fail", "mcp.servers is set, and the package mcp is not installed", fix)


def _config(loaded: Config) -> Iterator[Finding]:
    yield Finding("config", "ok", str(loaded.source or "no file, all defaults"))
    for path, note in loaded.renamed:
        yield Finding("config", "warn", f"{path} {note}", "It is read all the same; rename it when you can.")
    if loaded.ignored:
        listed = ", ".join(path for path, _ in loaded.ignored)
        yield Finding("config", "warn", f"ignored, Hobnob has no use for it: {listed}")
    if loaded.source and statedir.mode(loaded.source) & 0o077 and _holds_secrets(loaded):
        fix = f"chmod 600 {loaded.source}"
        yield Finding("config", "warn", "other users can read the secrets in the file", fix)
    agents = loaded.settings.agent_list()
    names = ", ".join(a.id + (" (default)" if a is loaded.settings.default_agent else "") for a in agents)
    yield Finding("agents", "ok", names)
    model = loaded.settings.agents.defaults.model.primary
    if model:
        yield Finding("model", "ok", model)
    else:
        fix = 'To use another, set agents.defaults.model: "provider/model" and models.providers.'
        yield Finding("model", "ok", "none configured: agents run on the built-in rehearsal model", fix)


def _harnesses(loaded: Config) -> Iterator[Finding]:
    acp = loaded.settings.acp
    if not acp.harnesses:
        return
    if importlib.util.find_spec("acp") is None:
        fix = "Install it: pip install 'hobnob[acp]'."
        yield Finding("acp", "fail", "harnesses need agent-client-protocol, which is not installed", fix)
    for name, harness in acp.harnesses.items():
        given = harness.env.get("PATH")
        path = given.get_secret_value() if given else os.environ.get("PATH")
        if shutil.which(harness.command[0], path=path) is None:
            fix = f"Install it, or mend acp.harnesses.{name}.command."
            yield Finding("acp", "fail", f"the command of {name} cannot be found: {harness.command[0]}", fix)
        elif not acp.enabled or not acp.allows(name):
            fix = "See acp.enabled and acp.allowedAgents."
            yield Finding("acp", "warn", f"{name} is configured, and nobody may run it", fix)
        else:
            yield Finding("acp", "ok", f"{name}, permissions: {acp.permission_mode}")
    if acp.default_agent and acp.default_agent not in acp.harnesses:
        fix = "Name one of acp.harnesses, or leave it out."
        yield Finding("acp", "warn", f"acp.defaultAgent is {acp.default_agent}, which is no harness", fix)


def _holds_secrets(loaded: Config) -> bool:
    """Whether a secret stands in the file itself rather than in the environment."""
    return any(
        settings.MASK in str(value) and "$" not in loaded.origin(path)
        for path, value in settings.masked_leaves(loaded.settings)
        if loaded.origin(path) != "default"
    )


def _home(home: Path) -> Iterator[Finding]:
    if not os.path.exists(home):
        parent = next(p for p in home.parents if os.path.exists(p))
        if os.access(parent, os.W_OK):
            yield Finding("state", "ok", f"{home} is made at first use")
        else:
            yield Finding("state", "fail", f"{home} cannot be made", f"Make it, or set HOBNOB_HOME: {parent}")
        return
    if not home.is_dir() or not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("state", "fail", f"{home} is not a folder we can write to", "Set HOBNOB_HOME.")
        return
    if statedir.mode(home) & 0o077:
        yield Finding("state", "warn", f"other users can look into {home}", f"chmod 700 {home}")
    else:
        yield Finding("state", "ok", str(home))
    free = shutil.disk_usage(home).free
    if free < _LOW_BYTES:
        yield Finding(
            "disk", "warn", f"{free / 1e6:,.0f} MB free", "Make room: a full disk stops every turn."
        )
    else:
        yield Finding("disk", "ok", f"{free / 1e9:,.1f} GB free")


def _sandbox(loaded: Config) -> Iterator[Finding]:
    problem = asyncio.run(Bubblewrap().probe())
    if problem is None:
        yield Finding("sandbox", "ok", "bubblewrap works")
        return
    needed = loaded.settings.agents.needs_sandbox
    lost = "sessions that must run in it are refused" if needed else "agents have no exec tool"
    fix = "Install bubblewrap (0.8 or newer) and allow user namespaces."
    yield Finding("sandbox", "fail" if needed else "warn", f"{problem} Without it {lost}.", fix)


def _store(loaded: Config) -> Iterator[Finding]:
    try:
        path = sqlite_path(loaded.store_url)
        if not path.exists():
            yield Finding("store", "ok", f"{path} is made at first use")
            return
        if not os.access(path, os.R_OK | os.W_OK):
            fix = "Give the user that runs Hobnob the right to read and write it."
            yield Finding("store", "fail", f"{path} cannot be read and written by this user", fix)
            return
        if statedir.mode(path) & 0o077:
            yield Finding("store", "warn", f"other users can read {path}", f"chmod 600 {path}")
        found = sqlite_file.integrity(path)
        if found:
            fix = "Stop Hobnob and put a backup in its place; `hobnob backup` makes them."
            yield Finding("store", "fail", f"{path} is damaged: {'; '.join(found)}", fix)
            return
        pid = sqlite_file.holder(path)
        used = f", in use by process {pid}" if pid else ""
        yield Finding("store", "ok", f"{path}, sound, {path.stat().st_size / 1e6:,.1f} MB{used}")
    except HobnobError as problem:
        yield Finding("store", "fail", problem.message, problem.fix)
