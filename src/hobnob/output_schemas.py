"""JSON schemas of typed results: check a schema that came from outside, and a result against it.

A schema is written by an agent or a client, so both are bounded: the size and depth of the schema, and the
steps that checking a result takes. Regular expressions are refused, because matching one can take for ever;
so are rare keywords, rather than pass over what the caller asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from hobnob.errors import BadInput

Schema = dict[str, Any]
MAX_BYTES, MAX_DEPTH, MAX_STEPS = 20_000, 30, 50_000
RESULT_BYTES = 200_000
TOOL = "structured_output"  # takes the result
MAX_PROBLEMS = 5
_NESTING = 120  # of a result, counting references
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: _is_number(v),
    "integer": lambda v: _is_number(v) and float(v).is_integer(),
}
_NOTES = set(
    "title description default examples $schema $id $comment format deprecated readOnly writeOnly".split()
)
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_SCHEMAS, _LISTS, _MAPS = {"items"}, {"anyOf", "oneOf", "allOf"}, {"properties", "$defs", "definitions"}
_OTHERS = {"type", "required", "enum", "const", "uniqueItems", "additionalProperties", "$ref"}
KEYWORDS = _NUMBERS | _COUNTS | _SCHEMAS | _LISTS | _MAPS | _OTHERS


def check(schema: Any) -> Schema:
    """A schema that results can be checked against. Raises BadInput."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise _bad("must describe an object", 'Begin with {"type": "object", "properties": {…}}.')
    try:
        size = len(orjson.dumps(schema))
    except (TypeError, orjson.JSONEncodeError):
        raise _bad("is not JSON, or nested too deeply") from None
    if size > MAX_BYTES:
        raise _bad(f"has {size:,} bytes; the limit is {MAX_BYTES:,}")
    to_visit: list[tuple[Any, str, int]] = [(schema, "#", 1)]
    while to_visit:
        node, path, depth = to_visit.pop()
        if depth > MAX_DEPTH:
            raise _bad(f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise _bad(f"has no schema at {path}")
        for name, value in node.items():
            _check_keyword(schema, path, name, value)
        to_visit += [(child, where, depth + 1) for child, where in _children(node, path)]
    return schema


def problems(schema: Schema, result: Any) -> list[str]:
    """What is wrong with a result, a few sentences at most; empty if it fits."""
    if len(orjson.dumps(result)) > RESULT_BYTES:
        return [f"The result has more than {RESULT_BYTES:,} bytes."]
    checker = _Checker(schema)
    try:
        return [f"{path or 'The result'} {what}." for path, what in checker.problems(schema, result, "", 0)]
    except _TooComplex:
        return ["The result is too complex to be checked."]


class _TooComplex(Exception):
    pass


class _Checker:
    """Checks one result. Every comparison costs a step, so that no schema can make it long."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_STEPS

    def problems(self, schema: Any, value: Any, path: str, depth: int) -> list[tuple[str, str]]:
        self._spend(1)
        if depth > _NESTING:
            raise _TooComplex
        if isinstance(schema, bool):
            return [] if schema else [(path, "is not expected")]
        if "$ref" in schema:
            target = _target(self._root, schema["$ref"])
            if found := self.problems(target, value, path, depth + 1):
                return found
        if (wanted := schema.get("type")) is not None:
            names = wanted if isinstance(wanted, list) else [wanted]
            if not any(_TYPES[name](value) for name in names):
                return [(path, f"must be {_a(names)}, not {_kind(value)}")]
        found = [(path, what) for what in self._value_problems(schema, value)]
        found += self._choice_problems(schema, value, path, depth)
        if isinstance(value, dict):
            found += self._object_problems(schema, value, path, depth)
        if isinstance(value, list) and "items" in schema:
            for i, item in enumerate(value):
                if len(found) >= MAX_PROBLEMS:
                    break
                found += self.problems(schema["items"], item, f"{path}[{i}]", depth + 1)
        return found[:MAX_PROBLEMS]

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooComplex

    def _value_problems(self, schema: Schema, value: Any) -> Iterator[str]:
        if "enum" in schema:
            self._spend(len(schema["enum"]))
            if not any(_same(value, each) for each in schema["enum"]):
                yield f"must be one of {_short(schema['enum'])}"
        if "const" in schema and not _same(value, schema["const"]):
            yield f"must be {_short(schema['const'])}"
        if _is_number(value):
            yield from _number_problems(schema, value)
        for kind, low, high, unit in (
            (str, "minLength", "maxLength", "characters"),
            (list, "minItems", "maxItems", "items"),
            (dict, "minProperties", "maxProperties", "properties"),
        ):
            if isinstance(value, kind):
                if len(value) < schema.get(low, 0):
                    yield f"must have at least {schema[low]} {unit}"
                if len(value) > schema.get(high, len(value)):
                    yield f"must have at most {schema[high]} {unit}"
        if isinstance(value, list) and schema.get("uniqueItems"):
            self._spend(len(value))
            if len({orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in value}) < len(value):
                yield "must have no item twice"

    def _choice_problems(self, schema: Schema, value: Any, path: str, depth: int) -> list[tuple[str, str]]:
        for each in schema.get("allOf", ()):
            if found := self.problems(each, value, path, depth + 1):
                return found
        for name in ("anyOf", "oneOf"):
            if name not in schema:
                continue
            tried = [self.problems(each, value, path, depth + 1) for each in schema[name]]
            fitting = sum(not found for found in tried)
            if not fitting:
                return min(tried, key=len, default=[])[:1] or [(path, "fits none of the alternatives")]
            if name == "oneOf" and fitting > 1:
                return [(path, f"fits {fitting} alternatives instead of one")]
        return []

    def _object_problems(
        self, schema: Schema, value: dict[str, Any], path: str, depth: int
    ) -> list[tuple[str, str]]:
        known, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", ())
        self._spend(len(required))
        found = [(_join(path, name), "is missing") for name in required if name not in value]
        for name, item in value.items():
            if len(found) >= MAX_PROBLEMS:
                break
            found += self.problems(known.get(name, extra), item, _join(path, name), depth + 1)
        return found


def _check_keyword(root: Schema, path: str, name: str, value: Any) -> None:
    if name in _NOTES:
        return
    if name not in KEYWORDS:
        supported = ", ".join(sorted(KEYWORDS))
        raise _bad(f"uses {name} at {path}, which is not supported", f"Supported: {supported}.")
    names = value if isinstance(value, list) else [value]
    valid = {
        "type": bool(names) and all(isinstance(each, str) and each in _TYPES for each in names),
        "required": isinstance(value, list) and all(isinstance(each, str) for each in value),
        "enum": isinstance(value, list) and bool(value),
        "uniqueItems": isinstance(value, bool),
        "additionalProperties": isinstance(value, (bool, dict)),
        "$ref": isinstance(value, str) and _target(root, value) is not None,
        "multipleOf": _is_number(value) and value > 0,
    }.get(name, True)
    if name in _NUMBERS:
        valid = valid and _is_number(value)
    if name in _COUNTS:
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name in _MAPS:
        valid = isinstance(value, dict)
    if name in _LISTS:
        valid = isinstance(value, list) and bool(value)
    if not valid:
        raise _bad(f"has an invalid {name} at {path}: {_short(value)}")


def _children(node: Schema, path: str) -> Iterator[tuple[Any, str]]:
    for name, value in node.items():
        if name in _MAPS:
            yield from ((child, f"{path}/{name}/{key}") for key, child in value.items())
        elif name in _LISTS:
            yield from ((child, f"{path}/{name}/{i}") for i, child in enumerate(value))
        elif name in ("items", "additionalProperties"):
            yield value, f"{path}/{name}"


def _target(root: Schema, ref: str) -> Any:
    """The schema that a reference names; None when there is none. Only those of the document itself."""
    for section in ("$defs", "definitions"):
        prefix = f"#/{section}/"
        if ref.startswith(prefix) and isinstance(root.get(section), dict):
            return root[section].get(ref.removeprefix(prefix))
    return root if ref == "#" else None


def _number_problems(schema: Schema, value: float) -> Iterator[str]:
    if value < schema.get("minimum", value):
        yield f"must be at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        yield f"must be at most {schema['maximum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"must be more than {schema['exclusiveMinimum']}"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield f"must be less than {schema['exclusiveMaximum']}"
    if step := schema.get("multipleOf"):
        ratio = value / step
        if abs(ratio - round(ratio)) > 1e-9:
            yield f"must be a multiple of {step}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _kind(value: Any) -> str:
    return next(name for name in ("null", "boolean", "integer", *_TYPES) if _TYPES[name](value))


def _a(names: list[str]) -> str:
    return " or ".join(names)


def _join(path: str, name: str) -> str:
    return f"{path}.{name[:80]}" if path else name[:80]


def _short(value: Any) -> str:
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 200 else text[:200] + "…"


def _bad(what: str, fix: str | None = None) -> BadInput:
    return BadInput(f"outputSchema {what}.", fix=fix)
