"""Write the generated pages. `make docs` runs it; a test fails when a page is stale."""

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
from hobnob import config, errors
from hobnob.api import routing, rpc
from hobnob.api import server as registered  # noqa: F401 - for the methods and routes it registers
from hobnob.api.routes import hooks, openapi
from hobnob.config.fields import Scope

DOCS = Path(__file__).parent
SAID = "<!-- Written by `make docs`. Change the code, not this page. -->"


def pages() -> dict[str, str]:
    """Every generated page by its path under docs."""
    return {
        "reference/settings.md": settings(),
        "reference/errors.md": error_codes(),
        "reference/methods.md": methods(),
        "reference/http.md": http(),
        "conformance.md": conformance.page(),
    }


def settings() -> str:
    lines = [
        SAID,
        "# Settings",
        "",
        "The file is JSON5: comments, single quotes and trailing commas are fine. `${NAME}` in a string is",
        "the environment variable NAME, `$${NAME}` is the text itself. `[]` stands for each item of a list,",
        "`<name>` for a name you choose. `hobnob config show` prints what is in effect and where it came",
        "from.",
    ]
    section = ""
    _describe(config.Section)
    for path, info in config.walk_fields():
        top = re.split(r"[.\[]", path)[0]
        if top != section:
            section = top
            lines += ["", f"## {top}", "", "| Setting | Values | Default | |", "|---|---|---|---|"]
        default = info.get_default(call_default_factory=True, validated_data={})
        lines.append(f"| `{path}` | {_values(info)} | {_default(default)} | {info.description} |")
    return "\n".join(lines) + "\n"


def _describe(kind: type[config.Section]) -> None:
    """Give each setting the words under it. They are read here and not at every start, which takes time."""
    for sub in kind.__subclasses__():
        _describe(sub)
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, config.Section):
            (defined,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(defined, ast.ClassDef)
            for field, text in pairwise(defined.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    words[ast.unparse(field.target)] = str(ast.literal_eval(text.value))
    for name, info in kind.model_fields.items():
        assert name in words, f"{kind.__name__}.{name} has no words under it"
        info.description = inspect.cleandoc(words[name])


def error_codes() -> str:
    lines = [
        SAID,
        "# Errors",
        "",
        "Every failure has a stable code. Refusals by a rule carry the rule's own code instead, for example",
        "`visibility.tree`; `hobnob explain` shows them with the setting that would change the answer.",
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
        SAID,
        "# RPC methods",
        "",
        'A request is `{type: "req", id, method, params}`, its answer `{type: "res", id, ok, payload}` or',
        '`{type: "res", id, ok: false, error: {code, message, details}}`. Parameters with a `?` may be left',
        "out. `operator.write` holds `operator.read`, and `operator.admin` holds both.",
    ]
    for scope in get_args(Scope):
        lines += ["", f"## {scope}", "", "| Method | Parameters | |", "|---|---|---|"]
        for name, method in sorted(rpc.METHODS.items()):
            if method.scope == scope:
                taken = [
                    f"`{info.alias}{'' if info.is_required() else '?'}`"
                    for info in method.parameters.model_fields.values()
                ]
                said = inspect.cleandoc(method.function.__doc__ or "").replace("\n", " ")
                lines.append(f"| `{name}` | {', '.join(taken)} | {said} |")
    return "\n".join(lines) + "\n"


def http() -> str:
    lines = [
        SAID,
        "# HTTP",
        "",
        "[How to use it](../http.md). The secret comes as `Authorization: Bearer …`. A refusal is",
        "`{ok: false, error: {type, code, message, fix}}`. Parameters with a `?` may be left out; those that",
        "stand in the path are shown there. A body is one JSON object. `GET /openapi.json` has all this for",
        "programs.",
        "",
        "| Route | Scope | Parameters | Body | |",
        "|---|---|---|---|---|",
    ]
    hooked = list(hooks.routes_at("/hooks", config.Settings().hooks.max_body_bytes))
    for route in [*sorted(routing.ROUTES, key=lambda route: route.path), *hooked]:
        scope = (
            f"`{route.scope}`" if route.scope else "the hooks' secret" if route.authenticate else "anybody"
        )
        fields = {info.alias or name: info for name, info in route.parameters.model_fields.items()}
        taken = [
            f"`{name}{'' if info.is_required() else '?'}`"
            for name, info in fields.items()
            if name not in openapi.in_path(route)
        ]
        most = f"{route.body_bytes // 1024:,} KiB" if route.verb == "POST" else ""
        said = inspect.cleandoc(route.function.__doc__ or "").replace("\n", " ")
        shown = f"`{route.verb} {openapi.shown_path(route)}`"
        lines.append(f"| {shown} | {scope} | {', '.join(taken)} | {most} | {said} |")
    return "\n".join(lines) + "\n"


def _tree(kind: type[errors.HobnobError]) -> list[type[errors.HobnobError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in _tree(sub))]


def _values(info: Any) -> str:
    """The type in words a user of JSON knows."""
    if literals := _literals(info.annotation):
        return " \\| ".join(f"`{v}`" for v in literals)
    text = str(info.annotation)
    bounds = {type(m).__name__: m for m in info.metadata}
    low, high = (getattr(bounds.get(n), n.lower(), None) for n in ("Ge", "Le"))
    if "SecretStr" in text:
        return "secret"
    for word, shown in (("dict", "object"), ("list", "list"), ("bool", "true \\| false"), ("int", "number")):
        if text.startswith((word, f"<class '{word}'>")) or f"{word} | None" in text:
            limits = f" {low}-{high}" if high is not None else f" ≥ {low}" if low is not None else ""
            return shown + limits
    return "string"


def _literals(annotation: Any) -> tuple[Any, ...]:
    if "Literal" in str(annotation) and not str(annotation).startswith(("list", "dict")):
        found = get_args(annotation)
        return next((get_args(a) for a in found if "Literal" in str(a)), found)
    return ()


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "needed"
    return "" if value is None else f"`{orjson.dumps(value).decode()}`"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print(f"docs/{name}")
