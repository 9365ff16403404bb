"""The link that `hobnob serve` prints: for a person at a terminal, and for nobody else."""

import os
import pty
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SERVE = [sys.executable, "-u", "-m", "hobnob", "serve", "--port", "0"]
LAST = "Try: hobnob agent"


def own(home: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOBNOB_")}
    return env | {"HOBNOB_HOME": str(home)}


@pytest.mark.promise("page.link_signs_in")
def test_on_a_terminal_the_link_signs_in(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(SERVE, env=own(tmp_path), stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = ""
    try:
        while LAST not in printed:
            printed += os.read(ours, 4096).decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    found = re.search(r"http://127\.0\.0\.1:\d+/#token=(\S+)", plain)
    assert found, plain
    assert found[1] == (tmp_path / "token").read_text().strip()


@pytest.mark.promise("page.link_on_terminals_only")
def test_into_a_log_goes_the_address_and_where_the_token_is_but_not_the_token(tmp_path: Path) -> None:
    process = subprocess.Popen(
        SERVE, env=own(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    printed = ""
    try:
        while LAST not in printed:
            printed += process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert re.search(r"The page is at http://127\.0\.0\.1:\d+/; it asks for the token", printed)
    assert str(tmp_path / "token") in printed
    assert (tmp_path / "token").read_text().strip() not in printed


def test_the_page_is_in_the_package(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("hobnob/ui/")}
    ours = {f"hobnob/ui/{path.name}" for path in (root / "src" / "hobnob" / "ui").iterdir()}
    assert packed == ours
