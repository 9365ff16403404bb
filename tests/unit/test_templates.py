"""`{{a.b[0].c}}`, and nothing more than that."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob.api.formats.completions import StreamedText
from hobnob.api.routes.hook_templates import has_placeholders, render, value_at

PAYLOAD = {"a": {"b": [{"c": "x"}, 2, None, True]}, "odd name": "o", "n": 1.5, "__class__": "plain"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{a.b[0].c}}", "x"),
        ("{{ a.b[1] }}-{{n}}", "2-1.5"),
        ("{{a.b[3]}}", "true"),
        ("{{a.b[0]}}", '{"c":"x"}'),
        ("{{odd name}}", "o"),
        ("{{a.b[9]}}|{{a.b[2]}}|{{nope.x}}|{{n.x}}|{{a[0]}}", "||||"),
        ("{{a.b[-1]}}{{a..b}}{{}}{{a.b[0].}}{{[0]}}", ""),
        ("{{__class__}}{{a.__class__}}{{a.b.append}}", "plain"),
        ("{a} {{{a.b[1]}}} }} {{", "{a} {2} }} {{"),
        ("", ""),
    ],
)
def test_a_place_is_what_stands_there_and_nothing_where_nothing_does(template: str, text: str) -> None:
    assert render(template, PAYLOAD) == text


def test_what_was_put_in_is_not_read_again() -> None:
    assert render("{{a}}", {"a": "{{b}}", "b": "secret"}) == "{{b}}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.text(), json_values)
def test_no_template_and_no_payload_breaks_it(template: str, payload: Any) -> None:
    assert isinstance(render("{{" + template + "}}" + template, payload), str)
    value_at(payload, template)


@given(st.text(alphabet="{}ab. "))
def test_what_has_no_places_comes_out_as_it_is(template: str) -> None:
    if not has_placeholders(template):
        assert render(template, {"a": "x"}) == template


def test_a_stream_whose_model_began_anew_ends_with_the_whole_answer() -> None:
    stream = StreamedText()
    told = stream.piece("Half an")
    stream.restart()
    told += stream.piece("A whole")
    told += stream.rest("A whole answer.")
    assert told == "Half an\n\nA whole answer."


def test_a_stream_that_heard_too_little_gets_the_rest_at_the_end() -> None:
    stream = StreamedText()
    told = stream.piece("Let me see.")
    stream.message_ended()
    assert told + stream.rest("Done.") == "Let me see.\n\nDone."
    assert StreamedText().rest("All of it.") == "All of it."
