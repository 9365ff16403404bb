"""The checks of `hobnob doctor`, in the order in which it prints them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hobnob import checks, dependencies, kept_secrets, statedir
from hobnob import config as settings
from hobnob.api.server import listen, read_address_file, require_secret
from hobnob.checks import Finding
from hobnob.cli.channels import ask_platform
from hobnob.config import Config
from hobnob.config.channels import DEFAULT_ACCOUNT, account_ids, account_of
from hobnob.errors import BadConfig, BadTools, HobnobError, StateUnsafe
from hobnob.fixes import config_set
from hobnob.models import Failed, Finished, Request
from hobnob.models.catalog import Catalog, open_models
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.policy import toolsets
from hobnob.policy.toolsets import ToolFacts
from hobnob.sandbox import syscalls
from hobnob.sandbox.bubblewrap import Bubblewrap
from hobnob.sandbox.spawn import folder_problem
from hobnob.sandbox.unprivileged import USER, gateway_is_root
from hobnob.store import exists, holder, holders, is_postgres, open_reader, shown, sqlite_path
from hobnob.store.access import shared_secrets
from hobnob.store.engine import sqlite_file
from hobnob.tools.modules import load_modules

_LOW_DISK_BYTES = 500 * 1024 * 1024
_RUN_AS_ROOT = "agents.defaults.sandbox.runAsRoot"
_ONLINE_TIMEOUT_S = 60.0
_ANSWER_TOKENS = 16
_QUESTION = {"role": "user", "content": "Answer with the word OK."}


def findings(file: Path | None, *, online: bool) -> Iterator[Finding]:
    """The results of all checks. With `online`, models and chat platforms are asked for an answer."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", version)
    for outdated in dependencies.too_old_optional():
        yield Finding("packages", "fail", outdated, "pip install --upgrade 'hobnob[acp,mcp,pydantic-ai]'")
    try:
        loaded = settings.load(file)
    except BadConfig as problem:
        for each in problem.problems:
            where = f"{each.path}: " if each.path else ""
            yield Finding("config", "fail", f"{where}{each.message}", f"Correct it in {problem.source}.")
        return
    except StateUnsafe as problem:
        yield Finding("state", "fail", problem.message, problem.fix)
        return
    yield from _config(loaded)
    yield from asyncio.run(_names(loaded, online=online))
    yield from _harnesses(loaded)
    yield from _channels(loaded, online=online)
    yield from _address(loaded)
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


async def _names(loaded: Config, *, online: bool) -> list[Finding]:
    """Whether models can be opened, tool files loaded, and names in lists exist."""
    facts = [ToolFacts(name, group) for group, names in toolsets.BUILT_IN.items() for name in names]
    found: list[Finding] = []
    try:
        own = load_modules(loaded.tool_modules(), [tool.name for tool in facts])
        facts += [tool.facts for tool in own]
        if own:
            found.append(Finding("tools", "ok", f"your own: {', '.join(tool.name for tool in own)}"))
    except BadTools as problem:
        found.append(Finding("tools", "fail", problem.message, problem.fix))
    async with open_models(loaded.settings, os.environ) as models:
        problems = checks.findings(loaded.settings, models, facts)
        for name, path in checks.used_models(loaded.settings).items():
            if name == REHEARSAL.name:
                fix = config_set("agents.defaults.model", "PROVIDER/MODEL")
                found.append(
                    Finding("model", "ok", "agents run on the built-in rehearsal model", f"Another: {fix}")
                )
            elif not any(finding.message.startswith(f"{path}: ") for finding in problems):
                found.append(await try_model(models, name, path) if online else Finding("model", "ok", name))
    return [*found, *problems]


async def try_model(models: Catalog, name: str, path: str) -> Finding:
    """Whether the provider of a model answers a short request."""
    request = Request(model=models.info(name).id, system="", messages=[_QUESTION], max_tokens=_ANSWER_TOKENS)
    started = time.monotonic()
    failure = "there was no answer"
    try:
        async with asyncio.timeout(_ONLINE_TIMEOUT_S):
            async for event in models.model(name).stream(request):
                if isinstance(event, Finished):
                    return Finding("model", "ok", f"{name} answered in {time.monotonic() - started:.1f} s")
                if isinstance(event, Failed):
                    failure = event.message
    except TimeoutError:
        failure = f"there was no answer within {_ONLINE_TIMEOUT_S:.0f} seconds"
    fix = (
        f"See {path} and models.providers.{models.info(name).provider}: address, key, and name of the model."
    )
    return Finding("model", "fail", f"{name} does not answer: {failure.rstrip('.')}.", fix)


def _address(loaded: Config) -> Iterator[Finding]:
    """Whether the gateway can listen, and no stranger can sign in."""
    gateway = loaded.settings.gateway
    place = f"{gateway.bind}:{gateway.port}"
    try:
        require_secret(gateway)
        if pid := _running(loaded):
            yield Finding("address", "ok", f"the gateway is running, process {pid}")
            return
        for each in listen(gateway.bind, gateway.port):
            each.close()
    except HobnobError as problem:
        yield Finding("address", "fail", problem.message, problem.fix)
        return
    if gateway.auth.mode == "password" and gateway.auth.password is None:
        fix = config_set("gateway.auth.mode", "token")
        yield Finding("address", "warn", "gateway.auth.mode is password, and no password is set", fix)
    yield Finding("address", "ok", f"{place} is free")


def _running(loaded: Config) -> int | None:
    """The process of the running gateway."""
    pids = holders(loaded.store_url)
    return next((pid for pid in pids if pid and read_address_file(loaded.home, pid)), None)


def _channels(loaded: Config, *, online: bool) -> Iterator[Finding]:
    """With `online`, platforms are asked, unless a running gateway has the accounts in use."""
    in_use = online and _running(loaded)
    for name, root in loaded.settings.channels.configured.items():
        for account in account_ids(root):
            label = name if account == DEFAULT_ACCOUNT else f"{name}, account {account}"
            if not (root.enabled and account_of(root, account).enabled):
                yield Finding("channels", "ok", f"{label} is disabled")
            elif not online:
                yield Finding("channels", "ok", label, "Ask the platform: hobnob doctor --online")
            elif in_use:
                fix = "Ask the platform: hobnob channels status --probe"
                yield Finding("channels", "ok", f"{label} is in use by the gateway", fix)
            else:
                yield _asked(loaded, name, account, label)


def _asked(loaded: Config, name: str, account: str, label: str) -> Finding:
    try:
        return Finding("channels", "ok", f"{label}: {asyncio.run(ask_platform(loaded, name, account))}")
    except HobnobError as problem:
        which = "" if account == DEFAULT_ACCOUNT else f" --account {account}"
        fix = f"Set it up again: hobnob channels add {name}{which}"
        return Finding("channels", "fail", f"{label} does not work: {problem.message}", fix)


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
        fix = "Make it writable for this user, or set HOBNOB_HOME to another folder."
        if home.is_dir() and os.statvfs(home).f_flag & os.ST_RDONLY:
            yield Finding("state", "fail", f"{home} is on a disk that is mounted read-only", fix)
        else:
            yield Finding("state", "fail", f"{home} is not a writable directory", fix)
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
            fix = f"Run the gateway as an ordinary user, or: {config_set(_RUN_AS_ROOT, False)}"
            yield Finding("sandbox", "warn", "its programs run as root, without capabilities", fix)
        else:
            yield Finding("sandbox", "ok", f"its programs run as the user of the gateway ({os.geteuid()})")
        return
    yield Finding("sandbox", "ok", f"its programs run as the unprivileged user {USER}, not as root")
    for agent in loaded.settings.agent_list():
        workspace = loaded.workspace(agent.id)
        existing = next(path for path in (workspace, *workspace.parents) if path.exists())
        if why := folder_problem(existing):
            fix = f"Run the gateway as an ordinary user, or: {config_set(_RUN_AS_ROOT, True)}"
            yield Finding("sandbox", "warn", f"{agent.id} cannot run commands in it: {why}", fix)


def _store(loaded: Config) -> Iterator[Finding]:
    try:
        if is_postgres(loaded.store_url):
            yield _database(loaded.store_url)
            yield from _strangers(loaded.store_url)
            yield from _shared_secrets(loaded)
            yield from _gateways(loaded.store_url)
            return
        path = sqlite_path(loaded.store_url)
        if not path.exists():
            yield Finding("store", "ok", f"{path} is created at first use")
            return
        if not os.access(path, os.R_OK | os.W_OK):
            fix = "Give the user that runs Hobnob read and write permission."
            yield Finding("store", "fail", f"{path} cannot be read and written", fix)
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


def _database(url: str) -> Finding:
    """A store on PostgreSQL. Raises StoreError."""
    if not exists(url):
        return Finding("store", "ok", f"the tables in {shown(url)} are created at first use")
    pid = holder(url)
    in_use = "" if pid is None else f", in use by process {pid}" if pid else ", in use on another machine"
    return Finding("store", "ok", f"{shown(url)}, PostgreSQL{in_use}")


def _strangers(url: str) -> Iterator[Finding]:
    """Who else may use the database. Raises StoreError."""
    from hobnob.store.engine import postgres_server  # not at the top: it needs psycopg

    found = postgres_server.strangers(url)
    if creators := [each.name for each in found if each.may_create]:
        what = f"may create functions in the database, and so read and change it: {', '.join(creators)}"
        yield Finding("store", "warn", f"other users of the server {what}", postgres_server.STRANGERS_FIX)
    elif found:
        what = f"may connect to the database, and so disturb it: {', '.join(each.name for each in found)}"
        fix = "Run: revoke connect on database … from public."
        yield Finding("store", "warn", f"other users of the server {what}", fix)


def _gateways(url: str) -> Iterator[Finding]:
    """The gateways that share a database. Raises StoreError."""
    from hobnob.cluster.members import read_all  # not at the top: it needs psycopg

    found = read_all(url) if exists(url) else []
    if not found:
        return
    names = ", ".join(each.name + (" (draining)" if each.draining else "") for each in found)
    yield Finding("gateways", "ok", f"on this database: {names}")
    for each in found:
        if each.silent:
            fix = "Look at its log. After 8 seconds the others take it for dead and run its turns."
            what = f"no sign of life from {each.name} on {each.host} for {each.age_s:,.0f} s"
            yield Finding("gateways", "warn", what, fix)
    if len({each.version for each in found}) > 1:
        versions = ", ".join(f"{each.name} {each.version}" for each in found)
        yield Finding("gateways", "warn", f"different versions: {versions}", "Upgrade the older ones soon.")


def _shared_secrets(loaded: Config) -> Iterator[Finding]:
    """Whether the secrets that the gateways of a database share can be decrypted. Raises BadInput."""
    if not exists(loaded.store_url):
        return

    async def read() -> dict[str, str]:
        async with open_reader(loaded.store_url) as store:
            return await store.read(shared_secrets.stored)

    if kept_secrets.decrypt(loaded, asyncio.run(read())):
        yield Finding("secrets", "ok", "shared by the gateways of the database, and store.secretKey fits")
