"""Installing, upgrading and operating a gateway, at the command line."""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from tests.acceptance.test_cli import Cli
from tests.acceptance.test_tools_cli import Command, serving
from tests.integration.web import web_of

from hobnob import config

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


# -- the wheel


def build_wheel(sources: Path, folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=sources, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.promise("operating.wheel")
def test_a_wheel_without_the_sources_answers_and_serves_the_page(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
    env |= {"PYTHONPATH": str(installed), "HOBNOB_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    code = "import hobnob, sys; print(hobnob.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(installed))
    ask = [sys.executable, "-m", "hobnob", "agent", "-m", "what is 6 * 7?"]
    done = subprocess.run(ask, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "6 * 7 = 42", done.stderr
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("hobnob/ui/index.html", "hobnob/store/sql/sessions.sql", "hobnob/docs/tutorial.md"):
        assert part in names
    assert any(name.startswith("hobnob/store/sql/migrations_sqlite/0001") for name in names)


def test_the_container_image_is_built_from_all_files_that_the_wheel_needs(
    wheel: Path, tmp_path: Path
) -> None:
    """As far as it can be checked without Docker: what the Dockerfile copies makes the same wheel."""
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)).split()
    assert sorted(copied) == sorted(sent)
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in copied:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    built = build_wheel(sources, tmp_path / "built")
    assert sorted(zipfile.ZipFile(built).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


# -- init


@pytest.mark.promise("operating.init")
def test_init_writes_a_commented_file_that_loads(cli: Cli) -> None:
    words = ("--provider", "anthropic", "--model", "claude-sonnet-4-5", "--key-env", "MY_KEY", "--no-test")
    done = cli.run("init", *words, MY_KEY="sk-the-key")
    assert "hobnob serve" in done.stdout
    text = cli.config.read_text()
    assert "//" in text and "${MY_KEY}" in text and "sk-the-key" not in text
    assert cli.config.stat().st_mode & 0o777 == 0o600
    loaded = config.load(cli.config, env=cli.env | {"MY_KEY": "sk-the-key"})
    assert loaded.settings.agents.defaults.model.primary == "anthropic/claude-sonnet-4-5"
    key = loaded.settings.models.providers["anthropic"].api_key
    assert key is not None and key.get_secret_value() == "sk-the-key"


def test_init_says_when_the_key_is_still_missing(cli: Cli) -> None:
    done = cli.run("init", "--provider", "openai", "--model", "gpt-5-mini", OPENAI_API_KEY="")
    assert "export OPENAI_API_KEY=" in done.stdout
    assert "apiKey" not in cli.config.read_text()  # the usual variable needs no line


def test_after_init_with_the_offline_model_an_agent_answers(cli: Cli) -> None:
    assert cli.json("init", "--provider", "rehearsal")["keyMissing"] is False
    assert cli.run("agent", "-m", "what is 6 * 7?").stdout.strip() == "6 * 7 = 42"


def test_init_replaces_no_file_unless_told_and_keeps_the_old_one(cli: Cli) -> None:
    cli.configure("{ /* mine */ }")
    refused = cli.run("init", "--provider", "rehearsal", code=2)
    assert "hobnob config set" in refused.stderr
    cli.run("init", "--provider", "rehearsal", "--force")
    assert cli.config.with_name("hobnob.json5.old").read_text() == "{ /* mine */ }"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "nobody to ask"),
        (("--provider", "acme"), "no preset"),
        (("--provider", "openai"), "--model"),
        (("--provider", "openai", "--model", "x", "--key-env", "sk-123"), "not the key"),
    ],
)
def test_init_says_what_is_missing_and_writes_nothing(cli: Cli, words: tuple[str, ...], why: str) -> None:
    assert why in cli.run("init", *words, code=2).stderr
    assert not cli.config.exists()


async def test_init_asks_the_model_when_there_is_a_key(cli: Cli) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        text = 'data: {"choices":[{"index":0,"delta":{"content":"OK"},"finish_reason":"stop"}]}\n\n'
        return web.Response(text=text + "data: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 11434).start()
    except OSError:
        pytest.skip("the port of the local model server is taken")
    try:
        words = ("init", "--provider", "ollama", "--model", "m", "--key-env", "LOCAL_KEY", "--json")
        done = await asyncio.to_thread(cli.run, *words, LOCAL_KEY="abc")
        assert "answered in" in json.loads(done.stdout)["test"]
        assert asked == ["Bearer abc"]
    finally:
        await runner.cleanup()


# -- backup, restore, upgrade


@pytest.mark.promise("operating.restore")
def test_a_backup_is_restored_and_the_store_that_was_there_is_kept(cli: Cli, tmp_path: Path) -> None:
    cli.run("agent", "-m", "remember the milk")
    cli.run("backup", str(tmp_path / "copy.db"))
    cli.run("agent", "-m", "remember the bread")
    done = cli.json("restore", str(tmp_path / "copy.db"))
    said = cli.run("agent", "-m", "what do you remember?").stdout
    assert "milk" in said and "bread" not in said
    with closing(sqlite3.connect(done["kept"])) as kept:
        [count] = kept.execute("select count(*) from entries").fetchone()
    assert count == 4
    assert (tmp_path / "copy.db").exists()


@pytest.mark.promise("operating.restore")
def test_a_damaged_file_or_none_at_all_is_not_restored(cli: Cli, tmp_path: Path) -> None:
    cli.run("agent", "-m", "remember the milk")
    (tmp_path / "bad.db").write_bytes(b"SQLite format 3\0" + b"nonsense" * 1000)
    assert cli.run("restore", str(tmp_path / "bad.db"), code=1).stderr
    assert "no file" in cli.run("restore", str(tmp_path / "none.db"), code=1).stderr
    assert "milk" in cli.run("agent", "-m", "what do you remember?").stdout


@pytest.mark.promise("operating.restore")
def test_nothing_is_restored_while_a_gateway_is_running(tmp_path: Path) -> None:
    hobnob = Command(tmp_path / "home")
    hobnob.run("sessions", "list")
    hobnob.run("backup", str(tmp_path / "copy.db"))
    with serving(hobnob):
        assert "in use by process" in hobnob.run("restore", str(tmp_path / "copy.db"), code=1)


@pytest.mark.promise("operating.upgrade_check")
def test_missing_migrations_are_tried_on_a_copy(cli: Cli) -> None:
    cli.run("agent", "-m", "hello")
    assert cli.json("upgrade-check")["pending"] == []
    store = sqlite3.connect(cli.home / "hobnob.db")
    store.execute("drop table mcp_grants")
    store.execute("delete from migrations where name = '0011_mcp_grants'")
    store.commit()
    store.close()
    found = cli.json("upgrade-check")
    assert (found["ok"], found["pending"]) == (True, ["0011_mcp_grants"])
    with closing(sqlite3.connect(cli.home / "hobnob.db")) as again:
        tables = {name for (name,) in again.execute("select name from sqlite_master")}
    assert "mcp_grants" not in tables


@pytest.mark.promise("operating.upgrade_check")
def test_a_store_of_a_newer_version_and_wrong_settings_are_in_the_way(cli: Cli) -> None:
    cli.run("agent", "-m", "hello")
    store = sqlite3.connect(cli.home / "hobnob.db")
    store.execute("insert into migrations values (9999, 'later', 'x', 0)")
    store.commit()
    store.close()
    assert "newer Hobnob" in cli.run("upgrade-check", code=1).stdout
    cli.configure("{gatway: {}}")
    assert "gatway" in cli.run("upgrade-check", code=1).stdout


# -- the service


@pytest.fixture
def supervised(cli: Cli, tmp_path: Path) -> Path:
    """A program in the place of systemctl that notes how it was called."""
    tools, log = tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    (tools / "systemctl").write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n[ "$2" = is-active ] && echo active\nexit 0\n'
    )
    (tools / "systemctl").chmod(0o755)
    cli.env |= {"PATH": f"{tools}:{cli.env['PATH']}", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return log


@pytest.mark.promise("operating.service")
@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_the_service_is_installed_shown_and_removed(cli: Cli, supervised: Path, tmp_path: Path) -> None:
    assert "not installed" in cli.run("service", "status", code=1).stdout
    cli.run("service", "install")
    unit = tmp_path / "config" / "systemd" / "user" / "hobnob.service"
    text = unit.read_text()
    assert " serve\n" in text and f"Environment=HOBNOB_HOME={cli.home}" in text
    assert "--user enable hobnob.service" in supervised.read_text()
    assert "active" in cli.run("service", "status").stdout
    cli.run("service", "uninstall")
    assert not unit.exists()
    assert "--user disable --now hobnob.service" in supervised.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_without_systemd_the_command_says_what_to_use_instead(cli: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cli.env |= {"PATH": str(empty), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert "hobnob serve" in cli.run("service", "install", code=1).stderr
    assert "[Service]" in cli.run("service", "install", "--print").stdout


# -- readiness


@pytest.mark.promise("operating.ready")
async def test_a_gateway_that_stops_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with web_of(tmp_path) as site:
        assert (await site.ask("GET", "/readyz", token=None)).status == 200
        await site.gateway.runner.stop(0)
        refused = await site.ask("GET", "/readyz", token=None)
        assert (refused.status, refused.json["error"]["message"]) == (503, "The gateway is stopping.")
        assert (await site.ask("GET", "/healthz", token=None)).status == 200


async def test_the_dashboard_shows_metrics_that_there_are(tmp_path: Path) -> None:
    dashboard = (ROOT / "docs" / "grafana-dashboard.json").read_text()
    named = set(re.findall(r"hobnob_[a-z_]+", dashboard)) - {"hobnob_"}
    assert len(named) > 8
    async with web_of(tmp_path) as site:
        page = (await site.ask("GET", "/metrics")).json
    assert named - set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)) == set()
