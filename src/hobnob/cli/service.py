"""`hobnob service`: run the gateway as a service of this user, with systemd or launchd."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from hobnob import statedir
from hobnob.cli import output
from hobnob.cli.options import ConfigFile
from hobnob.errors import HobnobError

app = typer.Typer(help="The gateway as a service of this user.", no_args_is_help=True)

NAME, LABEL = "hobnob.service", "dev.hobnob.gateway"
_STOP_S = 40  # more than the grace period of turns
_UNIT = """\
[Unit]
Description=Hobnob gateway
After=network-online.target

[Service]
ExecStart={command}
Environment=HOBNOB_HOME={home}
# Keys of providers, one NAME=value per line.
EnvironmentFile=-{home}/env
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
TimeoutStopSec={stop_s}
NoNewPrivileges=no

[Install]
WantedBy=default.target
"""
Print = Annotated[bool, typer.Option("--print", help="Only print the file of the service.")]


@app.command()
def install(config: ConfigFile = None, print_only: Print = False) -> None:
    """Start the gateway now and at each login. Existing files of the service are replaced."""
    path, text = _file(), _text(config)
    if print_only:
        sys.stdout.write(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    output.console().print(output.escape(f"Wrote {path}."))
    if _is_mac():
        _run("launchctl", "unload", str(path), check=False)
        _run("launchctl", "load", "-w", str(path))
    else:
        _run("systemctl", "--user", "daemon-reload")
        _run("systemctl", "--user", "enable", NAME)
        _run("systemctl", "--user", "restart", NAME)
        output.note("To keep it running after you log out: loginctl enable-linger")
    output.console().print("The gateway runs as a service. Its log: " + _log_hint())


@app.command()
def uninstall() -> None:
    """Stop the service and remove its file. Settings and store stay."""
    path = _file()
    if not path.exists():
        output.note("The service is not installed.")
        return
    if _is_mac():
        _run("launchctl", "unload", "-w", str(path), check=False)
    else:
        _run("systemctl", "--user", "disable", "--now", NAME, check=False)
    path.unlink()
    if not _is_mac():
        _run("systemctl", "--user", "daemon-reload", check=False)
    output.console().print(output.escape(f"Removed {path}."))


@app.command()
def status() -> None:
    """Show whether the service is installed and running. Exits with 1 when it is not running."""
    if not _file().exists():
        output.console().print("The service is not installed. To install it: hobnob service install")
        raise typer.Exit(1)
    words = ("launchctl", "list", LABEL) if _is_mac() else ("systemctl", "--user", "is-active", NAME)
    done = _run(*words, check=False)
    state = ("running" if done.returncode == 0 else "not loaded") if _is_mac() else done.stdout.strip()
    output.console().print(output.escape(f"The service is {state or 'unknown'}. Its log: {_log_hint()}"))
    raise typer.Exit(0 if done.returncode == 0 else 1)


def _is_mac() -> bool:
    return sys.platform == "darwin"


def _file() -> Path:
    if _is_mac():
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return settings / "systemd" / "user" / NAME


def _text(config: Path | None) -> str:
    home = statedir.home(os.environ)
    words = [_program(), "serve", *(["--config", str(config.absolute())] if config else [])]
    if _is_mac():
        log = str(home / "gateway.log")
        job = {
            "Label": LABEL,
            "ProgramArguments": words,
            "EnvironmentVariables": {"HOBNOB_HOME": str(home), "PATH": os.environ.get("PATH", os.defpath)},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": _STOP_S,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
        return plistlib.dumps(job).decode()
    return _UNIT.format(command=" ".join(map(_quoted, words)), home=_escaped(str(home)), stop_s=_STOP_S)


def _program() -> str:
    beside = Path(sys.executable).parent / "hobnob"
    return str(beside) if beside.exists() else shutil.which("hobnob") or sys.argv[0]


def _quoted(word: str) -> str:
    """A word of ExecStart: % and $ have a meaning there."""
    text = _escaped(word).replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if any(c in word for c in " \t\"'\\") else text


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _log_hint() -> str:
    return "~/.hobnob/gateway.log" if _is_mac() else f"journalctl --user -u {NAME}"


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    program = shutil.which(words[0])
    if program is None:
        raise HobnobError(
            f"There is no {words[0]} on this machine.",
            fix="Use another supervisor with the command `hobnob serve`; --print shows the file.",
        )
    done = subprocess.run(  # noqa: S603 - the words are ours
        [program, *words[1:]], capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise HobnobError(f"`{' '.join(words)}` failed: {said or f'exit code {done.returncode}'}.")
    return done
