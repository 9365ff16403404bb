"""Configurations of MCP clients, as text to paste."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from hobnob.cli import connection
from hobnob.cli.endpoint import Endpoint
from hobnob.errors import BadInput

_TOKEN = "HOBNOB_MCP_TOKEN"  # noqa: S105 - the name of a variable
_TIMEOUT_S = 60  # of Codex, for one tool call; waits end before


def command(endpoint: Endpoint, session: str) -> list[str]:
    """The command that starts the server over stdio. By its path: desktop programs have another PATH."""
    beside = Path(sys.executable).parent / "hobnob"
    program = str(beside) if beside.exists() else shutil.which("hobnob") or sys.argv[0]
    words = [program, "mcp", "--session", session]
    if endpoint.url:
        words += ["--url", endpoint.url]
    if endpoint.token_file:
        words += ["--token-file", str(endpoint.token_file.absolute())]
    if endpoint.file:
        words += ["--config", str(endpoint.file.absolute())]
    return words


def url_of(endpoint: Endpoint) -> str:
    """The address of the MCP endpoint of a gateway."""
    found = connection.locate(endpoint)
    if found is None:
        port = endpoint.config.settings.gateway.port
        return f"http://127.0.0.1:{port}/mcp"
    return f"http{found.url.removeprefix('ws')}/mcp"


def config(client: str, words: list[str], url: str | None) -> tuple[str, str]:
    """Where to paste, and what: over stdio, or with a URL over HTTP. Raises BadInput."""
    make = CLIENTS.get(client.strip().lower())
    if make is None:
        raise BadInput(f"There is no client {client!r}.", fix=f"Known clients: {', '.join(CLIENTS)}.")
    return make(words, url)


def _claude(words: list[str], url: str | None) -> tuple[str, str]:
    if url is None:
        return "Run this, in the project where you want it:", f"claude mcp add hobnob -- {shlex.join(words)}"
    server = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer ${{{_TOKEN}}}"}}
    return "In .mcp.json of the project:", _json({"mcpServers": {"hobnob": server}})


def _codex(words: list[str], url: str | None) -> tuple[str, str]:
    lines = ["[mcp_servers.hobnob]"]
    if url is None:
        lines += [f"command = {json.dumps(words[0])}", f"args = {json.dumps(words[1:])}"]
    else:
        lines += [f"url = {json.dumps(url)}", f"bearer_token_env_var = {json.dumps(_TOKEN)}"]
    return "In ~/.codex/config.toml:", "\n".join([*lines, f"tool_timeout_sec = {_TIMEOUT_S}"])


def _cursor(words: list[str], url: str | None) -> tuple[str, str]:
    server: dict[str, Any] = {"command": words[0], "args": words[1:]}
    if url is not None:
        server = {"url": url, "headers": {"Authorization": f"Bearer ${{env:{_TOKEN}}}"}}
    return "In ~/.cursor/mcp.json:", _json({"mcpServers": {"hobnob": server}})


def _vscode(words: list[str], url: str | None) -> tuple[str, str]:
    if url is None:
        server: dict[str, Any] = {"type": "stdio", "command": words[0], "args": words[1:]}
        return "In .vscode/mcp.json:", _json({"servers": {"hobnob": server}})
    asked = {
        "type": "promptString",
        "id": "hobnob-token",
        "description": "Token of the MCP grant",
        "password": True,
    }
    server = {"type": "http", "url": url, "headers": {"Authorization": "Bearer ${input:hobnob-token}"}}
    return "In .vscode/mcp.json:", _json({"inputs": [asked], "servers": {"hobnob": server}})


def _json(document: Any) -> str:
    return json.dumps(document, indent=2)


CLIENTS = {"claude": _claude, "codex": _codex, "cursor": _cursor, "vscode": _vscode}
