"""`hobnob mcp` as people meet it at the command line: a real gateway, real commands, a real client."""

import json
import os
import tomllib
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.acceptance.conftest import run_command
from tests.acceptance.test_tools_cli import Command, serving


@pytest.fixture
def hobnob(tmp_path: Path) -> Command:
    command = Command(tmp_path / "home")
    (command.home / "hobnob.json5").write_text('{gateway: {port: 0}, tools: {sessions: {visibility: "all"}}}')
    return command


def test_a_grant_is_made_listed_and_revoked(hobnob: Command) -> None:
    with serving(hobnob):
        made = json.loads(hobnob.run("mcp", "grant", "--ttl", "30m", "--name", "desk", "--json"))
        assert made["grant"]["expiresAtMs"] - made["grant"]["createdAtMs"] == 1_800_000
        listed = hobnob.run("mcp", "grants")
        assert "active" in listed and "desk" in listed and made["token"] not in listed
        assert "revoked" in hobnob.run("mcp", "revoke", made["grant"]["grantId"])
        assert json.loads(hobnob.run("mcp", "grants", "--json"))["grants"][0]["state"] == "revoked"
        assert "30m, 8h or 7d" in hobnob.run("mcp", "grant", "--ttl", "soon", code=2)


def test_the_token_alone_goes_to_stdout(hobnob: Command) -> None:
    """So that a shell can put it into a variable."""
    with serving(hobnob):
        done = run_command(("mcp", "grant"), hobnob.env)
        assert done.stdout.startswith("hm_") and len(done.stdout.split()) == 1
        assert "not shown again" in done.stderr


@pytest.mark.promise("mcp_server.offers_the_session_tools")
async def test_the_printed_command_is_a_server_that_answers(hobnob: Command) -> None:
    with serving(hobnob):
        printed = run_command(("mcp", "config", "codex", "--session", "main"), hobnob.env)
        server = tomllib.loads(printed.stdout)["mcp_servers"]["hobnob"]
        assert Path(server["command"]).exists()
        env = dict(os.environ) | hobnob.env
        command = StdioServerParameters(command=server["command"], args=server["args"], env=env)
        async with Client(stdio_client(command), cache=None) as client:
            result = await client.call_tool("sessions_list", {})
            assert [row["key"] for row in result.structured_content["sessions"]] == ["main"]


def test_without_a_gateway_the_command_says_how_to_start_one(hobnob: Command) -> None:
    said = hobnob.run("mcp", code=1)
    assert "hobnob serve" in said


@pytest.mark.parametrize(
    ("client", "where", "over_http"),
    [
        ("claude", "claude mcp add hobnob", '"Bearer ${HOBNOB_MCP_TOKEN}"'),
        ("codex", "~/.codex/config.toml", 'bearer_token_env_var = "HOBNOB_MCP_TOKEN"'),
        ("cursor", "~/.cursor/mcp.json", '"Bearer ${env:HOBNOB_MCP_TOKEN}"'),
        ("vscode", ".vscode/mcp.json", '"Bearer ${input:hobnob-token}"'),
    ],
)
def test_lines_to_paste_are_printed_for_each_client(
    hobnob: Command, client: str, where: str, over_http: str
) -> None:
    printed = hobnob.run("mcp", "config", client, "--session", "agent:main:main")
    assert where in printed and "agent:main:main" in printed
    printed = hobnob.run("mcp", "config", client, "--http")
    assert over_http in printed and "/mcp" in printed and "hobnob mcp grant" in printed


def test_an_unknown_client_is_refused_with_those_there_are(hobnob: Command) -> None:
    assert "claude, codex, cursor, vscode" in hobnob.run("mcp", "config", "emacs", code=2)
