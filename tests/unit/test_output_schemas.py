"""Schemas of typed results: which are accepted, what fits them, and that no schema takes long."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import output_schemas
from hobnob.errors import BadInput

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": ["integer", "null"], "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "uniqueItems": True},
        "boss": {"$ref": "#/$defs/boss"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"boss": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
}


@pytest.mark.promise("typed.checked")
@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"name": "Ann"}, None),
        ({"name": "Ann", "age": None, "tags": ["a", "b"], "boss": "Bob"}, None),
        ({"name": "Ann", "age": 3.0}, None),
        ({}, "name is missing."),
        ({"name": ""}, "name must have at least 1 characters."),
        ({"name": 4}, "name must be string, not integer."),
        ({"name": "Ann", "age": -1}, "age must be at least 0."),
        ({"name": "Ann", "age": True}, "age must be integer or null, not boolean."),
        ({"name": "Ann", "age": 1.5}, "age must be integer or null, not number."),
        ({"name": "Ann", "tags": ["a", "c"]}, 'tags[1] must be one of ["a","b"].'),
        ({"name": "Ann", "tags": ["a", "a"]}, "tags must have no item twice."),
        ({"name": "Ann", "boss": 1}, "boss must be null, not integer."),
        ({"name": "Ann", "extra": 1}, "extra is not expected."),
    ],
)
def test_what_is_wrong_with_a_result_is_said_with_its_place(result: Any, problem: str | None) -> None:
    schema = output_schemas.check(PERSON)
    assert output_schemas.problems(schema, result) == ([problem] if problem else [])


@pytest.mark.promise("typed.schemas_are_bounded")
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "must describe an object"),
        ({"type": "array"}, "must describe an object"),
        ({"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}}, "uses pattern at #/properties/a"),
        ({"type": "object", "patternProperties": {}}, "uses patternProperties"),
        ({"type": "object", "properties": {"a": 1}}, "no schema at #/properties/a"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "invalid type"),
        ({"type": "object", "properties": {"a": {"$ref": "https://x.test/y"}}}, "invalid $ref"),
        ({"type": "object", "properties": {"a": {"enum": []}}}, "invalid enum"),
        ({"type": "object", "required": "name"}, "invalid required"),
        ({"type": "object", "properties": {"a": {"multipleOf": 0}}}, "invalid multipleOf"),
        ({"type": "object", "minProperties": True}, "invalid minProperties"),
        ({"type": "object", "description": "x" * 30_000}, "the limit is 20,000"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema: Any, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        output_schemas.check(schema)
    assert words in refused.value.message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.promise("typed.schemas_are_bounded")
def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    output_schemas.check(nested(20))
    for depth in (40, 400):
        with pytest.raises(BadInput, match="nested"):
            output_schemas.check(nested(depth))


@pytest.mark.promise("typed.schemas_are_bounded")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "$ref": "#"},
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/d0"}},
            "$defs": {
                f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} if n < 30 else {"type": "string"}
                for n in range(31)
            },
        },
    ],
)
def test_a_schema_that_would_be_checked_for_ever_is_given_up(schema: Any) -> None:
    started = time.process_time()
    found = output_schemas.problems(output_schemas.check(schema), {"a": 1})
    assert found == ["The result is too complex to be checked."]
    assert time.process_time() - started < 10  # it would take years


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.promise("typed.schemas_are_bounded")
@given(
    st.dictionaries(st.sampled_from(sorted(output_schemas.KEYWORDS)), json_values, max_size=5), json_values
)
def test_whatever_schema_is_accepted_can_be_checked_against_anything(schema: Any, value: Any) -> None:
    try:
        checked = output_schemas.check(schema | {"type": "object"})
    except BadInput:
        return
    for result in (value, {"a": value}):
        assert isinstance(output_schemas.problems(checked, result), list)
