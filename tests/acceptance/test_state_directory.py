"""A state directory that other users can change: made private, or refused."""

import json
import os
import stat
from pathlib import Path

import pytest
from tests.acceptance.test_cli import Cli, findings


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_state_directory_that_others_can_write_to_is_made_private_and_that_is_said(
    cli: Cli, mode: int
) -> None:
    cli.configure("{}")
    cli.home.chmod(mode)
    done = cli.run("agent", "-m", "say hi")
    assert stat.S_IMODE(cli.home.stat().st_mode) == 0o700
    assert f"other users could write to the state directory {cli.home}" in done.stderr.replace("\n", "")
    assert "other users" not in cli.run("agent", "-m", "say hi").stderr


def test_a_state_directory_that_is_shared_on_purpose_is_refused(cli: Cli) -> None:
    cli.configure("{}")
    cli.home.chmod(0o1777)
    done = cli.run("agent", "-m", "say hi", code=1)
    assert "Other users can write to the state directory" in done.stderr.replace("\n", " ")
    assert stat.S_IMODE(cli.home.stat().st_mode) == 0o1777
    assert findings(cli.json("doctor", code=1), "state")[0][0] == "fail"
    assert [path.name for path in cli.home.iterdir()] == ["hobnob.json5"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_in_the_state_directory_is_not_used(cli: Cli) -> None:
    cli.configure("{}")
    cli.home.chmod(0o777)
    planted = cli.home / "token"
    planted.write_text("a-token-that-somebody-else-knows")
    os.chown(planted, 12345, 12345)
    for _ in range(2):  # also once the directory is private
        done = cli.run("agent", "-m", "say hi", code=1)
        assert "has files of another user: token" in done.stderr.replace("\n", " ")


def test_a_store_in_a_folder_where_everybody_can_replace_files_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "open to all"
    folder.mkdir()
    cli.configure(json.dumps({"store": {"url": f"sqlite:///{folder}/hobnob.db"}}))
    folder.chmod(0o777)
    done = cli.run("agent", "-m", "say hi", code=1)
    assert "chmod o-w" in done.stderr.replace("\n", " ")
    folder.chmod(0o1777)
    cli.run("agent", "-m", "say hi")
