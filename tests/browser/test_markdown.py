"""Markdown in messages: what is rendered, which links are links, and how long hostile text takes."""

from typing import Any

import pytest
from tests.browser.gateway_thread import GatewayThread, StartGateway
from tests.browser.tab import OpenTab, Tab
from tests.integration.helpers import ANN, three_agents

ANSWER = """# Plan for **Saturday**

It is *outside*; see [the map](https://example.org/map_(1)), ~~the tent~~ and https://example.org/a_b_c.

| Time | What | Who |
|------|:----:|----:|
| 14:00 | Set up `38` chairs | **Bo** |
| 15:00 | a \\| b |

1. Borrow chairs
   - from Cy
   - from the school
2. Buy lemonade

- [x] invite
- [ ] call

> Dry until five.
> > Says Bo.

```python
def f(a, *b):
    return __name__
```

---
2 * 3 * 4 snake_case_name \\*star\\* <b>bold</b>
"""

# Renders into a detached box and returns its markup.
MARKUP = """async (text) => {
    const { renderMarkdown } = await import('/ui/markdown.js');
    const box = document.createElement('div');
    box.append(...renderMarkdown(text));
    return box.innerHTML;
}"""
SECONDS = """async (text) => {
    const { renderMarkdown, preview } = await import('/ui/markdown.js');
    const start = performance.now();
    renderMarkdown(text);
    preview(text, text.length);
    return (performance.now() - start) / 1000;
}"""
# 200,000 characters each. They take minutes with a renderer that looks back or ahead for every sign.
HOSTILE = {
    "open emphasis": "*a _b **c __d ~~e " * 12_000,
    "closers": "a* b** c_ " * 20_000,
    "stars": "*" * 200_000,
    "nested emphasis": "**a *b " * 15_000 + "* **" * 15_000,
    "brackets": "[" * 100_000 + "](x" * 30_000,
    "links": "[a](" * 50_000,
    "links in parentheses": "[" * 10 + "](x" + "](y)" * 50_000,
    "backticks": "".join("`" * n + "a" for n in range(1, 620)),
    "addresses": "https://a" * 22_000,
    "dots": "https://a" + "." * 200_000,
    "quotes": ">" * 200_000,
    "quoted lines": "> > > > > > > > > > a\n" * 9_000,
    "deep lists": "\n".join("  " * n + "- a" for n in range(600)),
    "list of lists": "- " * 100_000,
    "blank lines in lists": "- a\n\n\n\n" * 25_000,
    "table rows": "|" * 200_000 + "\n|-|",
    "tables": "|a|b|\n|-|-|\n" * 16_000,
    "headings": "# " + "#" * 100_000 + " " * 100_000 + "x",
    "spaces": "a" + " " * 200_000 + "b",
    "rules": "- " * 100_000 + "x",
    "fences": "```\n~~~\n" * 25_000,
}


@pytest.fixture(scope="module")
def quiet_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with GatewayThread(tmp_path_factory.mktemp("quiet") / "home", three_agents()) as server:
        yield server


def markup(tab: Tab, text: str) -> str:
    return str(tab.page.evaluate(MARKUP, text))


@pytest.mark.promise("page.markdown")
def test_an_answer_is_shown_with_tables_lists_emphasis_and_links(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(three_agents({ANN: [ANSWER]})))
    tab.open_session(ANN)
    tab.send_message("plan")
    text = tab.page.locator(".message.agent .message-text")
    text.locator("table").wait_for()
    assert text.locator("h3").inner_text() == "Plan for Saturday"
    assert text.locator("h3 strong, em, s").all_inner_texts() == ["Saturday", "outside", "the tent"]
    assert text.locator("th").all_inner_texts() == ["Time", "What", "Who"]
    assert text.locator("td").all_inner_texts() == ["14:00", "Set up 38 chairs", "Bo", "15:00", "a | b"]
    assert text.locator("td code").inner_text() == "38"
    assert text.locator("td.right strong").inner_text() == "Bo"
    assert text.locator("ol > li > ul > li").all_inner_texts() == ["from Cy", "from the school"]
    assert text.locator("ol > li").count() == 2
    assert text.get_by_role("img", name="done").count() == 1
    assert text.locator("blockquote blockquote").inner_text() == "Says Bo."
    assert text.locator("pre").inner_text() == "def f(a, *b):\n    return __name__"
    assert "2 * 3 * 4 snake_case_name *star* <b>bold</b>" in text.inner_text()
    links = text.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [
        "https://example.org/map_(1)",
        "https://example.org/a_b_c",
    ]
    assert links.first.inner_text() == "the map"
    assert {link.get_attribute("rel") for link in links.all()} == {"noopener noreferrer"}


@pytest.mark.promise("page.text_is_text")
@pytest.mark.parametrize(
    "target",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert`1`",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "/ui/page.js",
        "#/explain",
        "//evil.example",
        "blob:x",
        "\x01javascript:alert(1)",
        "&#106;avascript:alert(1)",
    ],
)
def test_only_web_and_mail_addresses_become_links(
    quiet_server: GatewayThread, open_tab: OpenTab, target: str
) -> None:
    shown = markup(open_tab(quiet_server), f"[text]({target}) <{target}> ![picture]({target})")
    assert "<a" not in shown
    assert "text" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("***both***", "<p><strong><em>both</em></strong></p>"),
        ("**a*b**", "<p><strong>a*b</strong></p>"),
        ("a ** b and **open", "<p>a ** b and **open</p>"),
        ("``a`b``", "<p><code>a`b</code></p>"),
        ("`open", "<p>`open</p>"),
        ("[1] and [2]", "<p>[1] and [2]</p>"),
        ("one\ntwo", "<p>one\ntwo</p>"),
        ("## Title ##", "<h4>Title</h4>"),
        ("3. three\n4. four", '<ol start="3"><li>three</li><li>four</li></ol>'),
        ("- a\n\n  b\n- c", "<ul><li>a<p>b</p></li><li>c</li></ul>"),
        ("\t- a", "<ul><li>a</li></ul>"),
        ("```\n\ta\n", '<pre class="code" tabindex="0"><code>\ta\n</code></pre>'),
        ("a | b", "<p>a | b</p>"),
        ("<script>1</script>", "<p>&lt;script&gt;1&lt;/script&gt;</p>"),
    ],
)
def test_signs_that_mean_nothing_stay_text(
    quiet_server: GatewayThread, open_tab: OpenTab, text: str, shown: str
) -> None:
    assert markup(open_tab(quiet_server), text) == shown


def test_an_address_in_the_text_of_a_link_is_not_a_second_link(
    quiet_server: GatewayThread, open_tab: OpenTab
) -> None:
    shown = markup(open_tab(quiet_server), "[*https://good.example*](https://evil.example)")
    assert shown.count("<a") == 1
    assert 'href="https://evil.example/"' in shown
    assert 'title="https://evil.example/"' in shown


@pytest.mark.promise("page.markdown")
def test_hostile_text_is_rendered_in_linear_time(quiet_server: GatewayThread, open_tab: OpenTab) -> None:
    tab = open_tab(quiet_server)
    ordinary = tab.page.evaluate(SECONDS, "Some *words* and `code`.\n\n" * 8_000)
    slow = {}
    for name, text in HOSTILE.items():
        ratio = tab.page.evaluate(SECONDS, text) / ordinary
        if ratio > 40:  # a renderer that is not linear takes some hundred times as long
            slow[name] = ratio
    assert slow == {}
