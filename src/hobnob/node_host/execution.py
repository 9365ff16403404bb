"""Commands that a gateway asks this machine to run: the policy of this machine, the plan, and the run."""

from __future__ import annotations

import asyncio
import fnmatch
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

from hobnob import statedir
from hobnob.config.node_host import NodeExec
from hobnob.node_host.link import Progress, Refused
from hobnob.processes import Processes, Program
from hobnob.records import Struct
from hobnob.sandbox import WORKSPACE, ProcessSpec, Sandbox, SandboxSpec
from hobnob.sandbox.bubblewrap import PATH
from hobnob.sandbox.host import host_spec
from hobnob.types import new_id

Row = dict[str, Any]
COMMAND_CHARS = 100_000
_SHELLS = ("sh", "bash", "dash", "zsh")
_SHELL_SYNTAX = re.compile(r"[|&;<>()$`\\\n*?\[\]{}~#!]")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_STRIPPED = re.compile(
    r"PATH|LD_.*|DYLD_.*|BASH_ENV|ENV|IFS|SHELLOPTS|PYTHON.*|NODE_OPTIONS|PERL5?LIB|PERL5OPT"
)
_PROGRESS_S = 0.3
_SESSION = "node"


class Plan(Struct, frozen=True):
    """What would run: shown to a person, and compared with what is asked for later."""

    argv: tuple[str, ...]
    cwd: str
    text: str

    def row(self, rules: NodeExec) -> Row:
        return {
            "argv": list(self.argv),
            "cwd": self.cwd,
            "commandText": self.text,
            "policySnapshot": {"security": rules.security, "host": rules.host, "network": rules.network},
        }


class Execution:
    """Runs commands by the rules of this machine. Nothing the gateway sends can widen them."""

    def __init__(
        self, rules: Callable[[], NodeExec], workspace: Path, sandbox: Sandbox, processes: Processes
    ) -> None:
        self._rules = rules
        self._workspace = workspace
        self._sandbox = sandbox
        self._processes = processes

    async def prepare(self, params: Row, progress: Progress) -> Row:
        """The plan of a command, without running it. Raises Refused."""
        rules = self._rules()
        return {
            "plan": self._plan(params).row(rules),
            "execPolicy": {"security": rules.security, "ask": "off"},
        }

    async def run(self, params: Row, progress: Progress) -> Row:
        """Run a command to its end. Raises Refused."""
        rules, plan = self._rules(), self._plan(params)
        approved = params.get("systemRunPlan")
        if approved is not None and approved != plan.row(rules):
            raise Refused("APPROVAL_MISMATCH", "What was approved is not what would run now. Ask again.")
        running = sum(program.running for program in self._processes.of(_SESSION))
        if running >= rules.max_running:
            raise Refused("BUSY", f"{running} commands are running (nodeHost.exec.maxRunning).")
        program = Program(
            _SESSION, new_id(), plan.text, _timeout_s(params.get("timeoutMs"), rules.timeout_sec)
        )
        env = _env(params.get("env"))
        with ExitStack() as fds:
            await self._processes.start(await self._spec(rules, plan, env, fds), program)
        try:
            await self._follow(program, progress)
        finally:
            if program.running:
                program.stop()
            await asyncio.shield(program.ended.wait())
            self._processes.forget(program)
        return _result(program)

    async def which(self, params: Row, progress: Progress) -> Row:
        """Where programs are, for those that exist."""
        bins = params.get("bins")
        if not isinstance(bins, list) or not 1 <= len(bins) <= 64:
            raise Refused("INVALID_REQUEST", "bins is a list of 1 to 64 names.")
        names = [
            name for name in bins if isinstance(name, str) and name and "/" not in name and "\0" not in name
        ]
        found = {name: shutil.which(name, path=self._path) for name in names}
        return {"bins": {name: place for name, place in found.items() if place}}

    @property
    def _path(self) -> str | None:
        return PATH if self._rules().host == "sandbox" else None

    # -- what would run

    def _plan(self, params: Row) -> Plan:
        rules = self._rules()
        if rules.security == "deny":
            raise Refused("SYSTEM_RUN_DENIED", "This node runs no commands (nodeHost.exec.security is deny).")
        argv = _argv(params.get("command"))
        if rules.security == "allowlist":
            argv = self._allowed(argv, rules)
        program = shutil.which(argv[0], path=self._path)
        if program is None:
            raise Refused("NOT_FOUND", f"There is no program {argv[0][:200]!r} on this node.")
        text = str(params.get("rawCommand") or shlex.join(argv))[:COMMAND_CHARS]
        return Plan((program, *argv[1:]), self._cwd(params.get("cwd"), rules), text)

    def _allowed(self, argv: list[str], rules: NodeExec) -> list[str]:
        """The program itself, without a shell around it, if it is on the list. Raises Refused."""
        if PurePosixPath(argv[0]).name in _SHELLS and len(argv) == 3 and argv[1] in ("-c", "-lc"):
            if _SHELL_SYNTAX.search(argv[2]):
                why = "With an allowlist this node runs plain commands only: no pipes, variables or patterns."
                raise Refused("SYSTEM_RUN_DENIED", why)
            try:
                argv = shlex.split(argv[2])
            except ValueError as problem:
                raise Refused("INVALID_REQUEST", f"The command cannot be read: {problem}.") from None
        name = argv[0] if argv else ""
        place = shutil.which(name, path=self._path) or name
        if not name or not any(self._matches(pattern, name, place) for pattern in rules.allow):
            listed = ", ".join(rules.allow) or "none"
            why = f"{name[:200]!r} is not in nodeHost.exec.allow of this node (allowed: {listed})."
            raise Refused("SYSTEM_RUN_DENIED", why)
        return argv

    def _matches(self, pattern: str, name: str, place: str) -> bool:
        """A pattern with a slash is compared with the path, another with the name of a program on PATH."""
        if "/" in pattern:
            return fnmatch.fnmatchcase(place, pattern)
        plain = PurePosixPath(name).name
        return fnmatch.fnmatchcase(plain, pattern) and shutil.which(plain, path=self._path) == place

    def _cwd(self, asked: Any, rules: NodeExec) -> str:
        """The folder of a command, as it is seen there."""
        text = str(asked or "")
        if "\0" in text or ".." in PurePosixPath(text).parts:
            raise Refused("INVALID_REQUEST", "cwd must be a folder without `..`.")
        if rules.host == "host":
            folder = self._workspace / text  # an absolute one replaces the workspace
            if not folder.is_dir():
                raise Refused("INVALID_REQUEST", f"There is no folder {text[:200]!r} on this node.")
            return str(folder)
        inside = PurePosixPath(WORKSPACE) / text
        if not inside.is_relative_to(WORKSPACE):
            raise Refused(
                "INVALID_REQUEST", "The sandbox of this node sees only its workspace: leave cwd out."
            )
        return str(inside)

    # -- running

    async def _spec(self, rules: NodeExec, plan: Plan, env: Mapping[str, str], fds: ExitStack) -> ProcessSpec:
        workspace = statedir.private_dir(self._workspace)
        if rules.host == "host":
            return host_spec(plan.argv, Path(plan.cwd), env)
        if problem := await self._sandbox.ready():
            raise Refused(
                "SANDBOX_UNAVAILABLE", f"Commands run in a sandbox, and none works on this node: {problem}"
            )
        box = SandboxSpec(
            workspace=workspace, writable=True, network=rules.network, workdir=plan.cwd, env=env
        )
        return self._sandbox.process_spec(box, plan.argv, fds)

    async def _follow(self, program: Program, progress: Progress) -> None:
        """Send the output as it comes, until the command ends."""
        sent = 0
        while program.running:
            try:
                async with asyncio.timeout(_PROGRESS_S):
                    await program.ended.wait()
            except TimeoutError:
                if program.output.total > sent:
                    text, sent = program.output.text(sent), program.output.total
                    await progress(text)


def _argv(command: Any) -> list[str]:
    if isinstance(command, str):
        command = ["/bin/sh", "-c", command]
    if not isinstance(command, list) or not command or not all(isinstance(part, str) for part in command):
        raise Refused("INVALID_REQUEST", "command is a list: the program and its arguments.")
    if not command[0] or any("\0" in part for part in command) or sum(map(len, command)) > COMMAND_CHARS:
        raise Refused("INVALID_REQUEST", "The command is empty, too long, or has a NUL in it.")
    return list(command)


def _env(given: Any) -> dict[str, str]:
    """The variables of a command, without those that change which program runs."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > 100:
        raise Refused("INVALID_REQUEST", "env is an object of at most 100 variables.")
    env = {str(name): str(value) for name, value in given.items()}
    if any(not _ENV_NAME.fullmatch(name) or "\0" in value for name, value in env.items()):
        raise Refused("INVALID_REQUEST", "env has an invalid name or value.")
    return {name: value for name, value in env.items() if not _STRIPPED.fullmatch(name)}


def _timeout_s(asked_ms: Any, limit_s: float) -> float:
    return min(max(asked_ms / 1000, 0.1), limit_s) if isinstance(asked_ms, int | float) else limit_s


def _result(program: Program) -> Row:
    timed_out = program.why == "timeout"
    error = f"It was stopped: {program.why}." if program.why else None
    return {
        "exitCode": program.exit_code,
        "timedOut": timed_out,
        "success": program.exit_code == 0 and program.why is None,
        "stdout": program.output.text(),  # both streams, in the order written
        "stderr": "",
        "error": error,
    }
