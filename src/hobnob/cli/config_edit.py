"""Edits of the configuration file: paths as users write them, checked by the loader before they are saved."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyjson5

from hobnob import config as settings
from hobnob import json5_text, keys, statedir
from hobnob.errors import BadConfig, BadInput, Problem
from hobnob.records import Struct

_STEP = re.compile(r"""\.?([^.\[\]]+)|\[(?:"([^"]*)"|'([^']*)'|([^\[\]]*))\]""")
_EXAMPLE = "Paths look like tools.deny, agents.list[main].model or session.sendPolicy.rules[0].action."
_OLDER_AGENTS = (("agents", "entries"), ("routing", "agents"))
Edit = Callable[[str, dict[str, Any]], str]  # from the text and its settings to the new text


class Named(Struct, frozen=True):
    """A step to the item of a list with this id or name."""

    name: str


Step = str | int | Named


class Edited(Struct, frozen=True):
    file: Path
    remaining: list[Problem]
    """Problems that the file already had."""


def set_values(file: Path | None, pairs: list[tuple[str, str]]) -> Edited:
    """Set settings in the file, all or none. A value is JSON5, or else a text. Raises BadInput."""

    def edit(text: str, raw: dict[str, Any], as_text: frozenset[int]) -> str:
        for number, (path, value) in enumerate(pairs):
            for place, each in _assignments(
                raw, steps_of(path), value if number in as_text else _value(value)
            ):
                text, raw = _checked_edit(text, place, each)
        return text

    everything = range(len(pairs))
    # A token of digits is valid JSON5 too: what the loader refuses as JSON5 is tried as a text.
    unclear = frozenset(n for n in everything if not isinstance(_value(pairs[n][1]), str))
    shown = ", ".join(path for path, _ in pairs)  # not the values: one may be a secret
    attempts: list[Edit] = [lambda t, r: edit(t, r, frozenset()), lambda t, r: edit(t, r, unclear)]
    return _apply(file, attempts if unclear else attempts[:1], f"{shown} cannot be set")


def unset_value(file: Path | None, path: str) -> Edited:
    """Remove a setting from the file. Raises BadInput, and then nothing is changed."""

    def edit(text: str, raw: dict[str, Any]) -> str:
        return json5_text.remove(text, _place(raw, steps_of(path)))

    return _apply(file, [edit], f"{path} cannot be removed")


def steps_of(path: str) -> list[Step]:
    """The steps of a path such as `agents.list[main].tools`. Raises BadInput."""
    steps: list[Step] = []
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if found is None or (position == 0 and found[0].startswith((".", "["))):
            raise BadInput(f"{path!r} is not the path of a setting.", fix=_EXAMPLE)
        name, double, single, index = found.groups()
        if name is not None or double is not None or single is not None:
            steps.append(name or double or single or "")
        else:
            steps.append(int(index) if index.isdigit() else Named(index))
        position = found.end()
    if not steps:
        raise BadInput("The path is empty.", fix=_EXAMPLE)
    return steps


def _value(text: str) -> Any:
    try:
        return pyjson5.decode(text)
    except pyjson5.Json5Exception:
        return text


def _assignments(raw: dict[str, Any], steps: list[Step], value: Any) -> Iterator[tuple[json5_text.Path, Any]]:
    """The edits that set a value. A list item that is named and not there is made first, with its name."""
    place = _place(raw, steps)
    for depth, step in enumerate(steps):
        if not isinstance(step, Named) or isinstance(_at(raw, place[: depth + 1]), dict):
            continue
        if place[:2] == ("agents", "list") and not _has_agents(raw) and step.name != keys.DEFAULT_AGENT:
            # An empty list means the agent `main`, which must not vanish when another one is added.
            yield place[:2], [{"id": keys.DEFAULT_AGENT}]
            place = (*place[:2], 1, *place[3:])
        yield (*place[: depth + 1], _identity(place)), step.name
    yield place, value


def _identity(place: json5_text.Path) -> str:
    """The name of the member that names an item of a list."""
    return "name" if "tokens" in place else "id"


def _place(raw: dict[str, Any], steps: list[Step]) -> json5_text.Path:
    """The steps as keys and indices of the file. An item that is not there gets the next index."""
    place: list[str | int] = []
    for step in steps:
        here = _at(raw, tuple(place))
        if isinstance(step, Named):
            older = _by_id(raw, step.name) if place == ["agents", "list"] else None
            if older is not None:
                place = list(older)
                continue
            items = here if isinstance(here, list) else []
            name, wanted = _identity(tuple(place)), step.name.strip().lower()
            ids = [str(i.get(name, "")).strip().lower() if isinstance(i, dict) else "" for i in items]
            place.append(ids.index(wanted) if wanted in ids else len(items))
        else:
            place.append(step)
    return tuple(place)


def _has_agents(raw: dict[str, Any]) -> bool:
    return any(_at(raw, place) for place in (("agents", "list"), *_OLDER_AGENTS))


def _by_id(raw: dict[str, Any], agent: str) -> tuple[str, ...] | None:
    """The place of an agent in the older sections that map ids to agents."""
    for place in _OLDER_AGENTS:
        section = _at(raw, place)
        if isinstance(section, dict) and isinstance(section.get(agent), dict):
            return (*place, agent)
    return None


def _at(raw: Any, place: json5_text.Path) -> Any:
    for step in place:
        if isinstance(raw, dict) and isinstance(step, str):
            raw = raw.get(step)
        elif isinstance(raw, list) and isinstance(step, int) and step < len(raw):
            raw = raw[step]
        else:
            return None
    return raw


def _checked_edit(text: str, place: json5_text.Path, value: Any) -> tuple[str, dict[str, Any]]:
    """The edited text and its settings, which hold the value at its place. Raises NotEditable."""
    edited = json5_text.set_value(text, place, value)
    raw = pyjson5.decode(edited)
    if _at(raw, place) != value:
        raise json5_text.NotEditable("the file cannot be edited by this command; use an editor")
    return edited, raw


def _apply(file: Path | None, attempts: list[Edit], what: str) -> Edited:
    """Save the first attempt that brings no new problem. Raises BadInput with the problems of the first."""
    source = settings.source_of(file, os.environ)
    source = Path(os.path.realpath(source))  # a link stays a link
    with _locked(source):
        text = settings.read_text(source)
        raw = settings.parse(text, source)
        before = _problems(file, text)
        first: list[Problem] | None = None
        for attempt in attempts:
            try:
                edited = attempt(text, raw)
            except json5_text.NotEditable as problem:
                raise BadInput(f"{what}: {problem}.", fix=f"Edit {source} by hand.") from None
            after = _problems(file, edited)
            if all(problem in before for problem in after):
                _save(source, edited)
                return Edited(source, after)
            first = first or [problem for problem in after if problem not in before]
        raise _refused(what, first or [])


def _refused(what: str, problems: list[Problem]) -> BadInput:
    listed = "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in problems)
    fix = "Nothing was changed. `hobnob config show` lists the settings."
    if any("valid list" in problem.message for problem in problems):
        fix = """Nothing was changed. A list is written as '["one", "two"]'."""
    return BadInput(f"{what}: {listed.rstrip('.?')}.", fix=fix)


def _problems(file: Path | None, text: str) -> list[Problem]:
    try:
        settings.load(file, text=text)
    except BadConfig as problem:
        return problem.problems
    return []


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep other commands from editing the file meanwhile: a lock on its folder, as the file is replaced."""
    if file.parent == statedir.home(os.environ):
        statedir.private_dir(file.parent)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _save(file: Path, text: str) -> None:
    """Replace the file atomically. Mode and owner stay; a new file is for its owner only."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    fd = statedir.open_private(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as out:
            if file.exists():
                known = file.stat()
                if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(out.fileno(), known.st_uid, known.st_gid)
                os.fchmod(out.fileno(), statedir.mode(file))
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
