"""The configuration: loaded from a JSON5 file, the environment and the command line.

Later layers win: defaults, environment, file, command line. All problems are reported at once, with their
paths. `Config.origins` maps each setting that is not a default to its source.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyjson5
from pydantic import ValidationError

from hobnob import statedir
from hobnob.config import compat
from hobnob.config.fields import NO_EFFECT_YET, Section
from hobnob.config.leaves import (
    MASK,
    flatten,
    masked_changes,
    masked_leaves,
    section_in,
    walk_facts,
    walk_fields,
)
from hobnob.config.models import ModelEntry
from hobnob.config.reload import Reload, merge
from hobnob.config.tree import Settings
from hobnob.errors import BadConfig, Problem

__all__ = [
    "MASK",
    "Config",
    "Section",
    "Settings",
    "flatten",
    "load",
    "masked_changes",
    "masked_leaves",
    "parse",
    "read_text",
    "source_of",
    "walk_fields",
]

_ENV = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NEAR = re.compile(r"near (\d+)")


@dataclass(slots=True)
class Config:
    """The settings in effect and their origins.

    `settings` is an immutable snapshot that a reload replaces. Read it from here each time, do not keep it.
    """

    settings: Settings
    home: Path
    source: Path | None = None
    read: Callable[[], Config] | None = field(default=None, repr=False, compare=False)
    """Loads the configuration again, in the same way."""
    origins: Mapping[str, str] = field(default_factory=dict)
    renamed: tuple[compat.Note, ...] = ()
    ignored: tuple[compat.Note, ...] = ()
    without_effect: tuple[str, ...] = ()
    """Settings that were set but have no effect in this version."""
    watchers: list[Callable[[], None]] = field(default_factory=list, repr=False, compare=False)
    """Called after each reload."""

    def reload(self, fresh: Config | None = None) -> Reload:
        """Apply the configuration as it is now, except for what needs a restart. Raises BadConfig."""
        fresh = fresh or self.reread()
        merged = merge(self.settings, fresh.settings)
        self.settings = merged.settings
        self.source, self.origins = fresh.source, fresh.origins
        self.renamed, self.ignored, self.without_effect = fresh.renamed, fresh.ignored, fresh.without_effect
        for notify in self.watchers:
            notify()
        return merged

    def reread(self) -> Config:
        """The configuration as it would be loaded now. Raises BadConfig."""
        return self.read() if self.read is not None else self

    def unapplied(self) -> Reload:
        """What a reload would change, and what waits for a restart. Raises BadConfig."""
        return merge(self.settings, self.reread().settings)

    @property
    def store_url(self) -> str:
        return self.settings.store.url or f"sqlite:///{self.home / 'hobnob.db'}"

    @property
    def transcripts(self) -> Path | None:
        """Where transcripts are kept as files. None where each gateway has a disk of its own.

        The one that writes them changes: the others would keep copies, also of deleted sessions.
        """
        return self.home if self.settings.home_name is None else None

    def workspace(self, agent_id: str) -> Path:
        """The folder of an agent's workspace."""
        agent, defaults = self.settings.agent(agent_id), self.settings.agents.defaults
        is_default = agent is self.settings.default_agent
        chosen = (agent.workspace if agent else None) or (defaults.workspace if is_default else None)
        return Path(chosen).expanduser() if chosen else _own_workspace(self.home, agent_id)

    def tool_modules(self) -> list[Path]:
        """The files of `tools.modules`; a relative path begins at the configuration file."""
        folder = self.source.parent if self.source else self.home
        return [(folder / Path(name).expanduser()).absolute() for name in self.settings.tools.modules]

    def origin(self, path: str) -> str:
        """Where the setting at `path` was set, or its items; `default` if it was not."""
        inside = (f"{path}[", f"{path}.")
        if items := next((origin for each, origin in self.origins.items() if each.startswith(inside)), None):
            return items
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return "default"


@lru_cache(maxsize=1_000)  # asked for in every turn
def _own_workspace(home: Path, agent_id: str) -> Path:
    return home / "agents" / agent_id / "workspace"


def load(
    file: Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> Config:
    """Load the configuration. `flags` maps dotted paths to values. Raises BadConfig with all problems.

    With `text`, as if the file contained that.
    """
    env = os.environ if env is None else env
    home = statedir.home(env)
    statedir.secure(home)
    source = source_of(file, env)
    must_exist = file is not None or bool(env.get("HOBNOB_CONFIG"))
    raw = parse(read_text(source, must_exist=must_exist) if text is None else text, source)
    raw, renamed, ignored = compat.adapt(raw)

    problems: list[Problem] = []
    origins: dict[str, str] = {}
    merged: dict[str, Any] = {}
    if token := env.get("HOBNOB_TOKEN"):
        _set(merged, "gateway.auth.token", token)
        origins["gateway.auth.token"] = "$HOBNOB_TOKEN"
    if key := env.get("HOBNOB_STORE_KEY"):
        _set(merged, "store.secretKey", key)
        origins["store.secretKey"] = "$HOBNOB_STORE_KEY"
    raw = _substitute(raw, "", env, source.name, origins, problems)
    merged = compat.merged(merged, raw)
    for path, value in (flags or {}).items():
        if value is not None:
            _set(merged, path, value)
            origins[path] = "command line"

    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        known = {p.path for p in problems}
        problems += [p for p in map(_problem, error.errors()) if p.path not in known]
    else:
        problems += _workspace_problems(Config(settings, home))
    if problems:
        raise BadConfig(str(source), problems)
    return Config(
        settings,
        home,
        source if os.path.exists(source) else None,
        partial(load, file, env=env, flags=flags),
        origins,
        tuple(renamed),
        tuple(ignored) + tuple(_extra_model_fields(settings)),
        tuple(_without_effect(origins)),
    )


def _without_effect(origins: Mapping[str, str]) -> Iterator[str]:
    patterns = [_pattern(path) for path, facts in walk_facts() if NO_EFFECT_YET in facts]
    return (path for path in origins if any(pattern.fullmatch(path) for pattern in patterns))


def _pattern(path: str) -> re.Pattern[str]:
    """Matches the concrete paths of a field path, and everything below them."""
    steps = re.escape(path).replace(re.escape("<name>"), r"[^.]+").replace(re.escape("[]"), r"\[\d+\]")
    return re.compile(rf"{steps}([.\[].*)?")


def _workspace_problems(config: Config) -> Iterator[Problem]:
    """Workspaces that would expose the state directory: an agent can read all files of its workspace."""
    home = Path(os.path.realpath(config.home))
    for agent in config.settings.agent_list():
        setting = f"agents.list[{agent.id}].workspace" if agent.workspace else "agents.defaults.workspace"
        try:
            folder = Path(os.path.realpath(config.workspace(agent.id)))
        except RuntimeError:
            yield Problem(setting, "no such user")  # from `~name`
            continue
        inside = folder.relative_to(home).parts if folder.is_relative_to(home) else ()
        if home.is_relative_to(folder) or (inside[:1] == ("agents",) and inside[2:3] != ("workspace",)):
            yield Problem(setting, f"{folder} contains the state directory or a part of it; choose another")


def source_of(file: Path | None, env: Mapping[str, str]) -> Path:
    """The configuration file: as given, else `$HOBNOB_CONFIG`, else the one in the state directory."""
    return file or Path(env.get("HOBNOB_CONFIG") or statedir.home(env) / "hobnob.json5")


def read_text(path: Path, *, must_exist: bool = False) -> str:
    """The text of a configuration file; empty when there is none. Raises BadConfig."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not must_exist:
            return ""
        raise BadConfig(str(path), [Problem("", f"the file cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise BadConfig(str(path), [Problem("", f"the file is not UTF-8 (byte {error.start})")]) from error


def parse(text: str, path: Path) -> dict[str, Any]:
    """The settings of a file as written, before validation. Raises BadConfig."""
    try:
        raw = pyjson5.decode(text)
    except pyjson5.Json5DecoderException as error:
        if str(error.args[0]).startswith("No JSON data"):  # empty, or nothing but comments
            return {}
        raise BadConfig(str(path), [Problem("", _syntax_error(text, str(error.args[0])))]) from error
    if not isinstance(raw, dict):
        raise BadConfig(str(path), [Problem("", "the file must contain one object: { … }")])
    return raw


def _syntax_error(text: str, message: str) -> str:
    """The parser's message with line and column in place of its character offset."""
    found = _NEAR.search(message)
    offset = max(int(found[1]) - 1, 0) if found else 0
    line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
    plain = re.sub(r"b'(\w+)'", r"\1", _NEAR.sub("there", message))
    plain = re.sub(r"U\+([0-9A-Fa-f]{4,6})", lambda m: repr(chr(int(m[1], 16))), plain)
    return f"line {line}, column {column}: {plain}"


def _substitute(
    node: Any, path: str, env: Mapping[str, str], name: str, origins: dict[str, str], problems: list[Problem]
) -> Any:
    """Insert environment variables, and record the origin of each leaf."""
    if isinstance(node, dict) and node:
        return {
            k: _substitute(v, f"{path}.{k}" if path else str(k), env, name, origins, problems)
            for k, v in node.items()
        }
    if isinstance(node, list) and node:
        return [_substitute(v, f"{path}[{i}]", env, name, origins, problems) for i, v in enumerate(node)]
    origins[path] = name
    if not isinstance(node, str):
        return node

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "${" + match[2] + "}"
        if match[2] not in env:
            problems.append(Problem(path, f"the environment variable {match[2]} is not set"))
        origins[path] = f"{name}, ${match[2]}"
        return env.get(match[2], "")

    return _ENV.sub(value, node)


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        if not isinstance(tree.setdefault(parent, {}), dict):
            return  # wrong type: validation refuses the file
        tree = tree[parent]
    tree[last] = value


def _problem(error: Any) -> Problem:
    loc = tuple(error["loc"])
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).lstrip(".")
    if error["type"] == "extra_forbidden":
        return Problem(path, f"there is no setting {loc[-1]!r} here{_did_you_mean(loc)}")
    message = error["msg"].removeprefix("Value error, ")
    return Problem(path, message[:1].lower() + message[1:])


def _did_you_mean(loc: tuple[Any, ...]) -> str:
    section: type[Section] | None = Settings
    names: list[str] = []
    for step in (*loc[:-1], None):
        if section is None:
            break
        by_alias = {str(f.alias): f for f in section.model_fields.values()}
        names = list(by_alias)
        if step in by_alias:
            section = section_in(by_alias[step].annotation)
    similar = difflib.get_close_matches(str(loc[-1]), names, 1, 0.6)
    if similar:
        return f"; did you mean {similar[0]!r}?"
    elsewhere = [p for p, _ in walk_fields() if p.rsplit(".", 1)[-1].lower() == str(loc[-1]).lower()]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return f"; known settings: {', '.join(sorted(names))}"


def _extra_model_fields(settings: Settings) -> Iterator[compat.Note]:
    for name, provider in settings.models.providers.items():
        for i, entry in enumerate(provider.models):
            assert isinstance(entry, ModelEntry)
            for extra in entry.model_extra or {}:
                yield f"models.providers.{name}.models[{i}].{extra}", "is ignored: Hobnob does not use it"
