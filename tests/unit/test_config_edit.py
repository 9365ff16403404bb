"""Settings changed by command: in the file, with its comments, and only if the result can be loaded."""

import os
import stat
from pathlib import Path
from typing import Any

import pyjson5
import pytest

from hobnob import config
from hobnob.cli.config_edit import set_values, unset_value
from hobnob.errors import BadConfig, BadInput


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOBNOB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOBNOB_CONFIG", raising=False)
    return tmp_path / "home"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.json5"


def change(file: Path, text: str, *pairs: tuple[str, str]) -> Any:
    file.write_text(text)
    set_values(file, list(pairs))
    return pyjson5.decode(file.read_text())


@pytest.mark.parametrize(
    ("pair", "tree"),
    [
        (("gateway.port", "99"), {"gateway": {"port": 99}}),
        (("tools.sessions.visibility", "all"), {"tools": {"sessions": {"visibility": "all"}}}),
        (("tools.deny", '["exec"]'), {"tools": {"deny": ["exec"]}}),
        (("tools.deny", "['exec',]"), {"tools": {"deny": ["exec"]}}),
        (("gateway.auth.token", "12345678901234567"), {"gateway": {"auth": {"token": "12345678901234567"}}}),
        (("agents.defaults.model", "ollama/x"), {"agents": {"defaults": {"model": "ollama/x"}}}),
        (
            ('models.providers["a.b"].baseUrl', "http://x"),
            {"models": {"providers": {"a.b": {"baseUrl": "http://x"}}}},
        ),
        (("agents.list[main].name", "Me"), {"agents": {"list": [{"id": "main", "name": "Me"}]}}),
        (("agents.list[b].id", "b"), {"agents": {"list": [{"id": "main"}, {"id": "b"}]}}),
        (("agents.list[0].id", "only"), {"agents": {"list": [{"id": "only"}]}}),
    ],
)
def test_a_value_is_json5_or_a_text(file: Path, pair: tuple[str, str], tree: Any) -> None:
    assert change(file, "// mine\n", pair) == tree
    assert file.read_text().startswith("// mine\n")


@pytest.mark.parametrize("section", ["agents: {entries: {b: {}}}", "routing: {agents: {b: {}}}"])
def test_an_agent_in_an_older_section_is_found_there(file: Path, section: str) -> None:
    change(file, f"{{ {section} }}", ("agents.list[b].name", "Bee"))
    assert [(a.id, a.name) for a in config.load(file).settings.agent_list()] == [("b", "Bee")]


def test_items_are_found_by_id_or_name(file: Path) -> None:
    text = """{agents: {list: [{id: "A"}]}, gateway: {auth: {tokens: [
        {name: "for ann", token: "t", scopes: ["operator.read"]}]}}}"""
    tree = change(file, text, ("agents.list[a].name", "x"), ("gateway.auth.tokens[for ann].agents", '["a"]'))
    assert tree["agents"]["list"] == [{"id": "A", "name": "x"}]
    assert tree["gateway"]["auth"]["tokens"][0]["agents"] == ["a"]


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([("tools.sessions.visibilty", "all")], "did you mean 'visibility'"),
        ([("gateway.port", "many")], "valid integer"),
        ([("tools.deny", "exec")], "valid list"),
        ([("gateway.port.x", "1")], "not a section"),
        ([("gateway.port", "5"), ("session.scope", "galaxy")], "session.scope"),
        ([("", "1")], "empty"),
        ([("..", "1")], "not the path"),
        ([("a[", "1")], "not the path"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_nothing_is_changed(
    file: Path, pairs: list[tuple[str, str]], says: str
) -> None:
    text = "{ gateway: { port: 4 } } // mine"
    with pytest.raises(BadInput) as refusal:
        change(file, text, *pairs)
    assert says in refusal.value.message
    assert file.read_text() == text


def test_settings_that_need_each_other_are_set_together(file: Path) -> None:
    with pytest.raises(BadInput, match=r"hooks\.token"):
        change(file, "{}", ("hooks.enabled", "true"))
    assert change(file, "{}", ("hooks.enabled", "true"), ("hooks.token", "s"))["hooks"]["enabled"] is True


def test_a_file_with_errors_can_be_repaired(file: Path) -> None:
    file.write_text("{ tools: { denny: ['exec'], deny: 3 } } // mine")
    assert [problem.path for problem in unset_value(file, "tools.denny").remaining] == ["tools.deny"]
    assert set_values(file, [("tools.deny", '["exec"]')]).remaining == []
    assert file.read_text() == '{ tools: { deny: ["exec"] } } // mine'
    with pytest.raises(BadInput, match="not in the file"):
        unset_value(file, "tools.denny")


def test_a_file_that_is_not_json5_is_left_alone(file: Path) -> None:
    file.write_text("{ gateway: ")
    with pytest.raises(BadConfig, match="line 1"):
        set_values(file, [("gateway.port", "5")])
    assert file.read_text() == "{ gateway: "


def test_the_mode_a_link_and_line_ends_stay(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"{\r\n  gateway: { port: 1 },\r\n}\r\n")
    file.chmod(0o640)
    link = tmp_path / "link.json5"
    link.symlink_to(file)
    set_values(link, [("gateway.port", "2")])
    assert link.is_symlink()
    assert file.read_bytes() == b"{\r\n  gateway: { port: 2 },\r\n}\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json5", "mine.json5"]


def test_the_first_setting_makes_the_file_for_its_owner_only(home: Path) -> None:
    set_values(None, [("gateway.port", "5")])
    assert (home / "hobnob.json5").read_text() == "{\n  gateway: { port: 5 },\n}\n"
    assert stat.S_IMODE((home / "hobnob.json5").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
