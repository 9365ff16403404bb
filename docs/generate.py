"""Write the generated pages and the import map. `make docs` runs it; a test fails if one is stale."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import orjson
from pydantic_core import PydanticUndefined

import conformance
import import_map
from hobnob import config, errors
from hobnob.api import routing, rpc
from hobnob.api import server as registered  # noqa: F401 - registers the methods and routes
from hobnob.api.routes import channels, hooks, openapi
from hobnob.config.channels import ChannelAccount, ChannelRoot
from hobnob.config.channels.chats import PLATFORMS
from hobnob.config.fields import FieldFact, Scope
from hobnob.config.leaves import walk_facts

DOCS = Path(__file__).parent
HEADER = "<!-- Written by `make docs`. Change the code, not this page. -->"


def pages() -> dict[str, str]:
    """The generated files: path under docs → content."""
    return {
        "reference/settings.md": settings(),
        "reference/errors.md": error_codes(),
        "reference/methods.md": methods(),
        "reference/http.md": http(),
        "conformance.md": conformance.summary(),
        import_map.FILE: import_map.draw(import_map.read()),
    }


def settings() -> str:
    lines = [
        HEADER,
        "# Settings",
        "",
        "The file is JSON5: comments, single quotes and trailing commas are allowed. `${NAME}` in a string",
        "is replaced by the environment variable NAME; `$${NAME}` is the literal text. `[]` stands for each",
        "item of a list, `<name>` for a name that you choose. `hobnob config show` prints the settings in",
        "effect and where each was set. A setting that needs a restart keeps its value on a reload. A",
        "setting that has no effect yet is accepted, and `hobnob doctor` warns about it.",
    ]
    section = ""
    facts = dict(walk_facts())
    _describe(config.Section)
    seen: set[str] = set()
    for path, info in config.walk_fields():
        facts_of, path = facts[path], _of_every_channel(path)
        if path in seen:
            continue
        seen.add(path)
        top = re.split(r"[.\[]", path)[0]
        if top != section:
            section = top
            lines += [
                "",
                f"## {top}",
                "",
                "| Setting | Values | Default | Description |",
                "|---|---|---|---|",
            ]
        default = info.get_default(call_default_factory=True, validated_data={})
        description = f"{info.description}{_notes(facts_of)}"
        lines.append(f"| `{path}` | {_values(info)} | {_default(default)} | {description} |")
    return "\n".join(lines) + "\n"


def _of_every_channel(path: str) -> str:
    """The path of a setting that every channel has, with `<channel>` for the name of the channel."""
    top, _, rest = path.partition(".")
    name, _, setting = rest.partition(".")
    if top != "channels" or name not in PLATFORMS:
        return path
    common = {p for kind in (ChannelAccount, ChannelRoot) for p, _ in config.walk_fields(kind)}
    return f"channels.<channel>.{setting}" if setting in {*common, "accounts"} else path


def _notes(facts: tuple[FieldFact, ...]) -> str:
    """The notes as a sentence in parentheses, for example ` (Needs a restart.)`."""
    text = "; ".join(fact.note for fact in facts)
    return f" ({text[:1].upper()}{text[1:]}.)" if text else ""


def _describe(kind: type[config.Section]) -> None:
    """Set each field's description to the string below it; only this script pays for parsing the source."""
    for sub in kind.__subclasses__():
        _describe(sub)
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, config.Section):
            (defined,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(defined, ast.ClassDef)
            for field, text in pairwise(defined.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    descriptions[ast.unparse(field.target)] = str(ast.literal_eval(text.value))
    for name, info in kind.model_fields.items():
        assert name in descriptions, f"{kind.__name__}.{name} has no string below it that describes it"
        info.description = inspect.cleandoc(descriptions[name])


def error_codes() -> str:
    lines = [
        HEADER,
        "# Errors",
        "",
        "Every error has a stable code. A refusal by a policy rule has the rule's code instead, for example",
        "`visibility.tree`; `hobnob explain` shows the rule and the setting that would change the verdict.",
        "",
        "| Code | HTTP | Exit | Meaning |",
        "|---|---|---|---|",
    ]
    for kind in _tree(errors.HobnobError):
        meaning = (kind.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| `{kind.code}` | {kind.http_status} | {kind.exit_code} | {meaning} |")
    return "\n".join(lines) + "\n"


def methods() -> str:
    lines = [
        HEADER,
        "# RPC methods",
        "",
        'A request is `{type: "req", id, method, params}`, its response `{type: "res", id, ok, payload}` or',
        '`{type: "res", id, ok: false, error: {code, message, details}}`. Parameters with a `?` are',
        "optional. `operator.write` includes `operator.read`; `operator.admin` includes both.",
    ]
    for scope in (*get_args(Scope), None):
        title = scope or "For nodes"
        lines += ["", f"## {title}", "", "| Method | Parameters | Description |", "|---|---|---|"]
        for name, method in sorted(rpc.METHODS.items()):
            if method.scope == scope:
                params = [
                    f"`{info.alias}{'' if info.is_required() else '?'}`"
                    for info in method.parameters.model_fields.values()
                ]
                description = inspect.cleandoc(method.function.__doc__ or "").replace("\n", " ")
                lines.append(f"| `{name}` | {', '.join(params)} | {description} |")
    return "\n".join(lines) + "\n"


def http() -> str:
    lines = [
        HEADER,
        "# HTTP",
        "",
        "[The guide](../http.md) has examples. Send the secret as `Authorization: Bearer …`. An error is",
        "`{ok: false, error: {type, code, message, fix}}`. Parameters with a `?` are optional; path",
        "parameters are part of the route. A request body is one JSON object. `GET /openapi.json` is the",
        "same as an OpenAPI document.",
        "",
        "| Route | Scope | Parameters | Largest body | Description |",
        "|---|---|---|---|---|",
    ]
    hook_routes = list(hooks.routes_at("/hooks", config.Settings().hooks.max_body_bytes))
    channel_routes = list(channels.routes())
    for route in [*sorted(routing.ROUTES, key=lambda route: route.path), *hook_routes, *channel_routes]:
        scope = f"`{route.scope}`" if route.scope else "`hooks.token`" if route in hook_routes else "none"
        fields = {info.alias or name: info for name, info in route.parameters.model_fields.items()}
        params = [
            f"`{name}{'' if info.is_required() else '?'}`"
            for name, info in fields.items()
            if name not in openapi.in_path(route)
        ]
        limit = f"{route.largest_body(config.Settings()) // 1024:,} KiB" if route.verb == "POST" else ""
        description = inspect.cleandoc(route.function.__doc__ or "").replace("\n", " ")
        name = f"`{route.verb} {openapi.shown_path(route)}`"
        lines.append(f"| {name} | {scope} | {', '.join(params)} | {limit} | {description} |")
    return "\n".join(lines) + "\n"


def _tree(kind: type[errors.HobnobError]) -> list[type[errors.HobnobError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _tree(sub))]


def _values(info: Any) -> str:
    """The type as a user of JSON knows it."""
    if literals := _literals(info.annotation):
        return " \\| ".join(f"`{v}`" for v in literals)
    text = str(info.annotation)
    bounds = {type(m).__name__: m for m in info.metadata}
    low, high = (getattr(bounds.get(n), n.lower(), None) for n in ("Ge", "Le"))
    if "SecretStr" in text:
        return "secret"
    for word, type_name in (
        ("dict", "object"),
        ("list", "list"),
        ("bool", "true \\| false"),
        ("int", "number"),
        ("float", "number"),
    ):
        if text.startswith((word, f"<class '{word}'>")) or f"{word} | None" in text:
            limits = f" {low}-{high}" if high is not None else f" ≥ {low}" if low is not None else ""
            return type_name + limits
    return "string"


def _literals(annotation: Any) -> tuple[Any, ...]:
    if "Literal" in str(annotation) and not str(annotation).startswith(("list", "dict")):
        found = get_args(annotation)
        return next((get_args(a) for a in found if "Literal" in str(a)), found)
    return ()


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    return "" if value is None else f"`{orjson.dumps(value).decode()}`"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print(f"docs/{name}")
