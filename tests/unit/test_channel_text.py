"""Long chat texts in parts, and Markdown in the markup of each platform."""

from __future__ import annotations

import html
import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hobnob.channels.text import (
    markup,
    matrix_html,
    plain_text,
    slack_text,
    split,
    telegram_html,
    telegram_length,
)

FENCE_LINE = re.compile(r"^[ \t>]*(?:[-*+] )?(?:`{3,}|~{3,})[^\n]*$", re.MULTILINE)
HOSTILE = {
    "one word": "a" * 200_000,
    "words": "word " * 40_000,
    "spaces": " " * 200_000 + "x",
    "empty lines in code": "```py\n" + "\n" * 200_000 + "x",
    "families": "👨‍👩‍👧" * 10_000,
    "flags": "🇦🇶" * 10_000,
    "right to left": "\u202e\u200fשלום " * 30_000,
    "code": "```py\n" + "x = 1\n" * 30_000 + "```",
    "brackets": "[" * 200_000,
    "asterisks": "*" * 200_000,
    "quotes": "> " * 100_000,
    "table": "|a" * 1000 + "\n" + "|-" * 1000 + "\n" + "|x\n" * 60_000,
}
CONVERTERS = [telegram_html, slack_text, matrix_html, plain_text]

SPACES = ("word ", "\n", "\n\n", "  ", "\x00")
MARKS = (
    "```",
    "```py\n",
    "~~~\n",
    "\n```\n",
    "- ",
    "> ",
    "1. ",
    "**",
    "_",
    "[l](https://e.x)",
    "|a|b|\n|-|-|\n",
)
CHARACTERS = ("a", "x. ", "é", "e\u0301", "👩\u200d🔬", "👍🏽", "🇩🇪", "\u200f", "&", "<", "\ud83d", "\ude00")
pieces = st.sampled_from((*SPACES, *MARKS, *CHARACTERS))
texts = st.lists(pieces, max_size=80).map("".join) | st.text(max_size=300)


def utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def without_spaces(text: str) -> str:
    return re.sub(r"\s", "", text)


def without_fences(text: str) -> str:
    return without_spaces(FENCE_LINE.sub("", text))


# --- Parts


@given(
    texts,
    st.integers(6, 120),
    st.sampled_from([len, utf8, telegram_length]),
    st.sampled_from(["length", "newline"]),
)
@settings(deadline=None, max_examples=300)
def test_every_part_is_within_the_limit_and_shows_something(text, limit, measure, mode):
    for part in split(text, limit, measure, mode):
        assert measure(part) <= limit
        assert len(part) <= limit
        assert part.strip()


@given(texts.filter(lambda text: not re.search("`{3}|~{3}", text)), st.integers(1, 60))
@settings(deadline=None, max_examples=300)
def test_the_parts_of_a_text_without_code_lose_nothing_but_whitespace(text, limit):
    assert without_spaces("".join(split(text, limit))) == without_spaces(text)


@given(texts, st.integers(60, 200))
@settings(deadline=None, max_examples=300)
def test_the_parts_of_a_text_with_code_lose_nothing_but_whitespace(text, limit):
    text = re.sub(r"(?m)^([^\n]*\S[^\n]*)(`{3}|~{3})", r"\1", text)  # fences only at the start of lines
    assert without_fences("\n".join(split(text, limit))) == without_fences(text)


@given(st.lists(st.text("ab \n", max_size=60), max_size=8), st.integers(30, 80))
@settings(deadline=None, max_examples=300)
def test_every_part_has_as_many_ends_of_code_as_beginnings(blocks, limit):
    text = "\n".join(f"text\n```py\n{block}\n```" for block in blocks)
    for part in split(text, limit):
        assert len(FENCE_LINE.findall(part)) % 2 == 0


def test_a_text_that_fits_stays_as_it_is():
    assert split("  hello\n\nworld \n", 100) == ["  hello\n\nworld \n"]


def test_a_text_without_characters_has_no_parts():
    assert split(" \n\t ", 1) == []


def test_a_cut_is_made_at_a_blank_line_rather_than_a_line_end():
    assert split("one two.\nthree\n\nfour\nfive six seven", 25) == ["one two.\nthree", "four\nfive six seven"]


def test_a_cut_is_made_at_a_line_end_rather_than_a_sentence_end():
    assert split("one two three\nfour. five six seven", 24) == ["one two three", "four. five six seven"]


def test_a_cut_is_made_at_a_sentence_end_rather_than_a_space():
    assert split("one two three. four five six seven", 24) == ["one two three.", "four five six seven"]


def test_a_cut_is_made_at_a_space_rather_than_within_a_word():
    assert split("one two three four", 12) == ["one two", "three four"]


def test_a_blank_line_at_the_beginning_is_used_only_when_blank_lines_come_first():
    text = "one\n\ntwo three four five six seven eight"
    assert split(text, 30)[0] == "one\n\ntwo three four five six"
    assert split(text, 30, mode="newline")[0] == "one"


def test_code_across_a_cut_is_closed_and_opened_again_with_its_language():
    assert split("```python\na = 1\nb = 2\nc = 3\n```", 24) == [
        "```python\na = 1\n```",
        "```python\nb = 2\n```",
        "```python\nc = 3\n```",
    ]


def test_code_that_fits_into_the_next_part_is_not_cut():
    assert split("intro intro intro\n```\nx = 1\ny = 2\n```", 30) == [
        "intro intro intro",
        "```\nx = 1\ny = 2\n```",
    ]


def test_the_indentation_of_code_survives_a_cut():
    assert split("```\nif a:\n    b = 1\n    c = 2\n```", 26)[-1] == "```\n    c = 2\n```"


def test_code_within_a_list_is_opened_again_at_its_indentation():
    assert split("- ```sh\n  first\n  second\n  ```\n- next", 24)[1].startswith("  ```sh\n  second\n  ```")


def test_characters_made_of_several_are_not_cut():
    for character in ("👩‍🔬", "👍🏽", "🇩🇪", "e\u0301", "\ud83d\ude00"):
        parts = split(character * 50, 11)
        assert all(len(part) % len(character) == 0 for part in parts), character


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_split_as_quickly_as_an_ordinary_one(name):
    ordinary = "A sentence with **some** words. " * 6_000
    began = time.process_time()
    split(ordinary, 4096, telegram_length)
    usual = time.process_time() - began
    began = time.process_time()
    parts = split(HOSTILE[name], 4096, telegram_length)
    assert time.process_time() - began < 10 * usual + 2
    assert len(parts) <= 400


# --- Markup

MARKDOWN = """# A *title*

**bold** _it_ ~~no~~ `a<b` [site](https://x.y/?a=1&b=2) <b>

- one
  - two
1. first

> said

| a | b |
|---|---|
| 1 | **2** |

```python
x < 1
```"""


def test_markdown_becomes_html_that_telegram_accepts():
    assert telegram_html(MARKDOWN) == (
        "<b>A <i>title</i></b>\n\n"
        "<b>bold</b> <i>it</i> <s>no</s> <code>a&lt;b</code> "
        '<a href="https://x.y/?a=1&amp;b=2">site</a> &lt;b&gt;\n\n'
        "• one\n  • two\n\n1. first\n\n"
        "<blockquote>said</blockquote>\n\n"
        "<pre>a | b\n--+--\n1 | 2</pre>\n\n"
        '<pre><code class="language-python">x &lt; 1</code></pre>'
    )


def test_markdown_becomes_text_for_slack():
    assert slack_text(MARKDOWN) == (
        "*A _title_*\n\n"
        "*bold* _it_ ~no~ `a&lt;b` <https://x.y/?a=1&amp;b=2|site> &lt;b&gt;\n\n"
        "• one\n  • two\n\n1. first\n\n"
        "> said\n\n"
        "```\na | b\n--+--\n1 | 2\n```\n\n"
        "```\nx &lt; 1\n```"
    )


def test_markdown_becomes_plain_text():
    assert plain_text(MARKDOWN) == (
        "A title\n\nbold it no a<b site (https://x.y/?a=1&b=2) <b>\n\n• one\n  • two\n\n1. first\n\n"
        "> said\n\na | b\n--+--\n1 | 2\n\nx < 1"
    )


def test_markdown_becomes_html_for_matrix():
    made = matrix_html(MARKDOWN)
    for expected in (
        "<h1>A <em>title</em></h1>",
        "<strong>bold</strong> <em>it</em> <del>no</del> <code>a&lt;b</code>",
        '<a href="https://x.y/?a=1&amp;b=2">site</a> &lt;b&gt;',
        "<td><strong>2</strong></td>",
        '<pre><code class="language-python">x &lt; 1\n</code></pre>',
    ):
        assert expected in made
    assert matrix_html("just *one* line") == "just <em>one</em> line"


@pytest.mark.parametrize("convert", CONVERTERS)
@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", "tg://user?id=1", "file:///etc/passwd", "x.md"]
)
def test_only_links_to_the_web_and_to_mail_become_links(convert, url):
    assert f"[here]({url})" in html.unescape(convert(f"[here]({url})"))
    assert "<a" not in convert(f"![here]({url})")


def test_an_image_becomes_a_link():
    assert telegram_html("![cat](https://e.x/c.png)") == '<a href="https://e.x/c.png">cat</a>'
    assert matrix_html("![cat](https://e.x/c.png)") == '<a href="https://e.x/c.png">cat</a>'


def test_slack_calls_nobody_because_of_a_text():
    assert slack_text("<!channel> <@U123>") == "&lt;!channel&gt; &lt;@U123&gt;"


def test_telegram_counts_what_is_shown_in_utf16_units():
    assert telegram_length("**ab** & [c](https://example.org)") == 6
    assert telegram_length("😀") == 2


def test_a_list_goes_on_with_its_number_in_the_next_part():
    assert plain_text("4. four\n5. five") == "4. four\n5. five"


def test_link_definitions_stay_visible():
    assert plain_text("see [a][1]\n\n[1]: https://e.x") == "see [a][1]\n\n[1]: https://e.x"


@pytest.mark.parametrize("convert", CONVERTERS)
def test_deeply_nested_text_is_shown_as_it_is(convert):
    assert "bottom" in convert("> " * 500 + "bottom")


@given(texts)
@settings(deadline=None, max_examples=300)
def test_no_text_breaks_a_converter(text):
    for convert in CONVERTERS:
        convert(text).encode()


class Balanced(HTMLParser):
    """Fails on an element that Telegram does not know, or that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag in {"b", "i", "s", "code", "pre", "a", "blockquote"}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@given(texts)
@settings(deadline=None, max_examples=300)
def test_the_html_for_telegram_has_only_its_elements_and_closes_them(text):
    parser = Balanced()
    parser.feed(telegram_html(text))
    parser.close()
    assert not parser.open


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("convert", CONVERTERS)
def test_a_hostile_text_is_converted_in_bounded_time_and_size(name, convert):
    text = HOSTILE[name][:20_000]
    began = time.process_time()
    assert len(convert(text)) <= 20 * len(text)
    assert time.process_time() - began < 20


@given(st.text(alphabet="ab1. )-+#=>:!'\"(é😀\u00a0\u200b\u2028\x85\n", max_size=30))
@example("1986. A year")
@example("one\n\n\ntwo")
@example("one  \ntwo")
@pytest.mark.parametrize("kind", [markup._Slack, markup._Telegram, markup._Plain])
def test_text_without_markup_is_shown_as_the_parser_would_show_it(
    kind: type[markup._Plain], text: str
) -> None:
    """The parser is skipped for such texts."""
    assert markup._converted(text, kind()) == markup._parsed(text, kind())
