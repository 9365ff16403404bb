"""`hobnob doctor`: check the installation and say how to fix what is wrong."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from hobnob import config as settings
from hobnob import dependencies, statedir
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.errors import BadConfig, HobnobError, StateUnsafe
from hobnob.sandbox import syscalls
from hobnob.sandbox.bubblewrap import Bubblewrap
from hobnob.sandbox.spawn import folder_problem
from hobnob.sandbox.unprivileged import USER, gateway_is_root
from hobnob.store import sqlite_path
from hobnob.store.engine import sqlite_file

_LOW_DISK_BYTES = 500 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: Literal["ok", "warn", "fail"]
    message: str
    fix: str | None = None


def doctor(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check the configuration, the state directory, the store and the sandbox. Exits with 1 on a failure."""
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
        out.print("\nNo check failed." if healthy else "\nSome checks failed.")
    raise typer.Exit(0 if healthy else 1)


def _findings(file: Path | None) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", version)
    for outdated in dependencies.too_old_optional():
        yield Finding("packages", "fail", outdated, "pip install --upgrade 'hobnob[acp,mcp,pydantic-ai]'")
    try:
        loaded = settings.load(file)
    except BadConfig as problem:
        for each in problem.problems:
            yield Finding(
                "config", "fail", f"{each.path}: {each.message}" if each.path else each.message, None
            )
        yield Finding("config", "fail", f"{problem.source} cannot be used.", "Fix the problems above.")
        return
    except StateUnsafe as problem:
        yield Finding("state", "fail", problem.message, problem.fix)
        return
    yield from _config(loaded)
    yield from _harnesses(loaded)
    yield from _home(loaded.home)
    yield from _store(loaded)
    yield from _sandbox(loaded)
    if loaded.settings.mcp.servers and importlib.util.find_spec("mcp") is None:
        fix = "pip install 'hobnob[mcp]'"
        yield Finding("mcp", "fail", "mcp.servers is set, but the package mcp is not installed", fix)


def _config(loaded: Config) -> Iterator[Finding]:
    yield Finding("config", "ok", str(loaded.source or "no file, all defaults"))
    for path, note in loaded.renamed:
        yield Finding("config", "warn", f"{path} {note}", "It still works; rename it when you can.")
    if loaded.ignored:
        listed = ", ".join(path for path, _ in loaded.ignored)
        yield Finding("config", "warn", f"settings that Hobnob ignores: {listed}")
    if loaded.without_effect:
        listed = ", ".join(loaded.without_effect)
        yield Finding("config", "warn", f"accepted, but without effect in this version: {listed}")
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
            fix = f"Install it, or correct acp.harnesses.{name}.command."
            yield Finding("acp", "fail", f"the command of {name} cannot be found: {harness.command[0]}", fix)
        elif not acp.enabled or not acp.allows(name):
            fix = "See acp.enabled and acp.allowedAgents."
            yield Finding("acp", "warn", f"{name} is configured, but no agent may run it", fix)
        else:
            yield Finding("acp", "ok", f"{name}, permissions: {acp.permission_mode}")
    if acp.default_agent and acp.default_agent not in acp.harnesses:
        fix = "Name one of acp.harnesses, or leave it out."
        yield Finding("acp", "warn", f"acp.defaultAgent is {acp.default_agent}, which is not a harness", fix)


def _holds_secrets(loaded: Config) -> bool:
    """Whether the file itself contains a secret, rather than a reference to the environment."""
    return any(
        settings.MASK in str(value) and "$" not in loaded.origin(path)
        for path, value in settings.masked_leaves(loaded.settings)
        if loaded.origin(path) != "default"
    )


def _home(home: Path) -> Iterator[Finding]:
    if not os.path.exists(home):
        parent = next(p for p in home.parents if os.path.exists(p))
        if os.access(parent, os.W_OK):
            yield Finding("state", "ok", f"{home} is created at first use")
        else:
            yield Finding(
                "state", "fail", f"{home} cannot be created", f"Make {parent} writable, or set HOBNOB_HOME."
            )
        return
    if not home.is_dir() or not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("state", "fail", f"{home} is not a writable directory", "Set HOBNOB_HOME.")
        return
    if statedir.mode(home) & 0o077:
        yield Finding("state", "warn", f"other users can read {home}", f"chmod 700 {home}")
    else:
        yield Finding("state", "ok", str(home))
    free = shutil.disk_usage(home).free
    if free < _LOW_DISK_BYTES:
        yield Finding(
            "disk", "warn", f"{free / 1e6:,.0f} MB free", "Free some space: a full disk stops every turn."
        )
    else:
        yield Finding("disk", "ok", f"{free / 1e9:,.1f} GB free")


def _sandbox(loaded: Config) -> Iterator[Finding]:
    backend = Bubblewrap(lambda: loaded.settings.agents.defaults.sandbox.run_as_root)
    problem = asyncio.run(backend.probe())
    if problem is not None:
        needed = loaded.settings.agents.needs_sandbox
        effect = "sessions that must run in it are refused" if needed else "agents have no exec tool"
        fix = "Install bubblewrap (0.8 or newer) and allow user namespaces."
        yield Finding("sandbox", "fail" if needed else "warn", f"{problem} Without it {effect}.", fix)
        return
    yield Finding("sandbox", "ok", "bubblewrap works")
    yield from _sandbox_user(loaded, backend)
    if syscalls.ARCHITECTURE is None:
        what = f"system calls are not filtered and keyrings are shared: {platform.machine()} is not supported"
        yield Finding("sandbox", "warn", what, "Trust the kernel, or use x86_64 or aarch64.")
    else:
        yield Finding("sandbox", "ok", f"system calls are filtered ({syscalls.ARCHITECTURE})")


def _sandbox_user(loaded: Config, backend: Bubblewrap) -> Iterator[Finding]:
    """As whom sandboxed programs run on this machine."""
    if not backend.changes_user:
        if gateway_is_root():
            fix = "Run the gateway as an ordinary user, or set agents.defaults.sandbox.runAsRoot = false."
            yield Finding("sandbox", "warn", "its programs run as root, without capabilities", fix)
        else:
            yield Finding("sandbox", "ok", f"its programs run as the user of the gateway ({os.geteuid()})")
        return
    yield Finding("sandbox", "ok", f"its programs run as the unprivileged user {USER}, not as root")
    for agent in loaded.settings.agent_list():
        workspace = loaded.workspace(agent.id)
        existing = next(path for path in (workspace, *workspace.parents) if path.exists())
        if why := folder_problem(existing):
            fix = "Run the gateway as an ordinary user, or set agents.defaults.sandbox.runAsRoot = true."
            yield Finding("sandbox", "warn", f"{agent.id} cannot run commands in it: {why}", fix)


def _store(loaded: Config) -> Iterator[Finding]:
    try:
        path = sqlite_path(loaded.store_url)
        if not path.exists():
            yield Finding("store", "ok", f"{path} is created at first use")
            return
        if not os.access(path, os.R_OK | os.W_OK):
            fix = "Give the user that runs Hobnob read and write permission."
            yield Finding("store", "fail", f"this user may not read and write {path}", fix)
            return
        if statedir.mode(path) & 0o077:
            yield Finding("store", "warn", f"other users can read {path}", f"chmod 600 {path}")
        damage = sqlite_file.integrity(path)
        if damage:
            fix = "Stop Hobnob and replace the file with a backup made by `hobnob backup`."
            yield Finding("store", "fail", f"{path} is damaged: {'; '.join(damage)}", fix)
            return
        pid = sqlite_file.holder(path)
        in_use = f", in use by process {pid}" if pid else ""
        yield Finding("store", "ok", f"{path}, intact, {path.stat().st_size / 1e6:,.1f} MB{in_use}")
    except HobnobError as problem:
        yield Finding("store", "fail", problem.message, problem.fix)
