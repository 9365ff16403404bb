"""The installed versions of the packages that Hobnob needs, checked before they are imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata

from hobnob.errors import UnsupportedVersion

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])? *>= *([0-9.]+)")
_EXTRA = re.compile(r"extra *== *['\"]([^'\"]+)")
_OPTIONAL = ("acp", "mcp", "postgres", "pydantic-ai")


def check() -> None:
    """Raises UnsupportedVersion when a package is older than the oldest version that is supported."""
    if found := list(too_old()):
        raise UnsupportedVersion(
            f"Packages are older than Hobnob supports: {'; '.join(found)}.",
            fix="Install newer ones: pip install --upgrade hobnob.",
        )


def too_old(extras: Iterable[str] = ()) -> Iterator[str]:
    """The packages with an unsupported version, each as a clause; of extras only what is installed."""
    try:
        requirements = metadata.requires("hobnob") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return
    for requirement in requirements:
        extra, bound = _EXTRA.search(requirement), _REQUIREMENT.match(requirement)
        if bound is None or (extra is not None and extra[1] not in extras):
            continue
        name, lowest = bound.groups()
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:  # not needed on this platform, or an extra that is not used
            continue
        if _numbers(installed) < _numbers(lowest):
            yield f"{name} {installed} is installed, and {lowest} is the oldest that works"


def too_old_optional() -> Iterator[str]:
    """The same, with the packages of the extras."""
    return too_old(_OPTIONAL)


def _numbers(version: str) -> list[int]:
    """The release part of a version, without zeros at its end."""
    release = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in release[1].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
