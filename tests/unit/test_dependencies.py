"""The versions of packages that pyproject.toml allows. `make lowest` runs this with the lowest of them."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests import lowest

import hobnob
from hobnob import dependencies
from hobnob.errors import UnsupportedVersion

ROOT = Path(__file__).parent.parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(hobnob.__path__, "hobnob."))


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        importlib.import_module(name)


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    unbounded = [
        line
        for line in (*project["dependencies"], *extras)
        if not re.match(r"[a-z0-9.-]+(\[[a-z0-9,]+\])?>=\d", line)
    ]
    assert unbounded == []


def test_the_lowest_versions_are_those_that_are_tested() -> None:
    locked = re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / "requirements-lowest.lock").read_text(), re.M)
    pinned = dict(re.findall(r"([a-z0-9-]+)(?:\[[a-z0-9,]+\])?==([0-9.]+)", "\n".join(lowest.pins())))
    wrong = {name: pin for name, pin in pinned.items() if not same(dict(locked).get(name, ""), pin)}
    assert wrong == {}, "run `make lock`"


def same(one: str, other: str) -> bool:
    return dependencies._numbers(one) == dependencies._numbers(other) and one != ""


def plant(folder: Path, name: str, version: str) -> None:
    """A package that is found before the installed one, as far as its metadata goes."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["0.34.3", "0.52.0", "0.9"])
def test_a_package_that_is_too_old_is_named_with_the_oldest_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    plant(tmp_path, "uvicorn", version)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnsupportedVersion, match=rf"uvicorn {version} is installed, and 0\.52\.1 is the old"):
        dependencies.check()


@pytest.mark.parametrize("version", ["0.52.1", "0.52.1.post1", "1.0rc1", "2026.1"])
def test_a_newer_package_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    plant(tmp_path, "uvicorn", version)
    monkeypatch.syspath_prepend(str(tmp_path))
    dependencies.check()


def test_an_old_package_of_an_extra_matters_only_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "mcp", "1.9.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    dependencies.check()
    assert [clause.split(" is ")[0] for clause in dependencies.too_old_optional()] == ["mcp 1.9.0"]


def test_a_gateway_with_an_old_package_does_not_start_and_says_why(tmp_path: Path) -> None:
    plant(tmp_path / "old", "websockets", "15.0.1")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "old"), "HOBNOB_HOME": str(tmp_path / "home")}
    for command, place in (("serve", "stderr"), ("doctor", "stdout")):
        done = subprocess.run(
            [sys.executable, "-m", "hobnob", command], env=env, capture_output=True, text=True
        )
        said = " ".join(getattr(done, place).split())
        assert done.returncode == 1
        assert "websockets 15.0.1 is installed, and 16 is the oldest that works" in said
        assert "pip install --upgrade" in said
    assert not (tmp_path / "home").exists()
