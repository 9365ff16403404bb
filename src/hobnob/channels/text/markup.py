"""Markdown, as models write it, converted to the markup of each platform. The converters never raise."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

LONGEST_CONVERTED = 20_000
"""Longer texts are not parsed as Markdown; they are shown as they are."""
_MAX_NESTING = 40
_MAX_CELLS = 5_000
_MAX_BRACKETS = 100
_WIDEST_COLUMN = 40
_LINKS = re.compile(r"^(https?://|mailto:)[^\s]", re.IGNORECASE)
_TAGS = re.compile(r"<[^>]*>")
_LINE = r"(?![\s#>+=-]|\d+[.)])[^\\`*_\[\]<>~|&\x00-\x1f]*(?<!\s)"
_UNMARKED = re.compile(rf"{_LINE}(?:\n\n?{_LINE})*")
"""Text that Markdown leaves as it is, and that no markup has to escape."""


def telegram_html(text: str) -> str:
    """Markdown as the HTML that the Bot API accepts."""
    return _converted(text, _Telegram())


def telegram_length(text: str) -> int:
    """The length of a Markdown text as Telegram counts it: what is shown, in UTF-16 units."""
    shown = html.unescape(_TAGS.sub("", telegram_html(text)))
    return len(shown) + sum(character > "\uffff" for character in shown)


def slack_text(text: str) -> str:
    """Markdown as Slack's mrkdwn."""
    return _converted(text, _Slack())


def whatsapp_text(text: str) -> str:
    """Markdown as the markup of WhatsApp."""
    return _converted(text, _WhatsApp())


def plain_text(text: str) -> str:
    """Markdown as text without markup."""
    return _converted(text, _Plain())


def matrix_html(text: str) -> str:
    """Markdown as the HTML of Matrix messages."""
    text = _clean(text)
    markdown = _parser(_has_small_tables(text), _has_links(text))
    tokens = markdown.parse(text) if len(text) <= LONGEST_CONVERTED else []
    if not tokens or max(token.level for token in tokens) >= _MAX_NESTING - 1:
        return html.escape(text, quote=False).replace("\n", "<br>\n")
    rendered: str = markdown.renderer.render(tokens, markdown.options, {}).strip()
    if [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]:
        return rendered.removeprefix("<p>").removesuffix("</p>")
    return rendered


def _clean(text: str) -> str:
    """Halves of surrogate pairs are joined or replaced: no platform accepts them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _has_small_tables(text: str) -> bool:
    """Whether tables are worth parsing. Rows are filled up to the width of the header, so cells multiply."""
    if "|" not in text:
        return False
    lines = text.split("\n")
    return max(line.count("|") for line in lines) * sum("|" in line for line in lines) <= _MAX_CELLS


def _has_links(text: str) -> bool:
    """Whether links are worth parsing. Each bracket that begins none costs a search for its end."""
    return (brackets := text.count("[")) <= _MAX_BRACKETS or text.count("](") * 2 >= brackets


def _converted(text: str, markup: _Plain) -> str:
    text = _clean(text)
    if _UNMARKED.fullmatch(text):
        return text
    if len(text) > LONGEST_CONVERTED:
        return markup.escape(text)
    return _parsed(text, markup)


def _parsed(text: str, markup: _Plain) -> str:
    from markdown_it.tree import SyntaxTreeNode

    tokens = _parser(_has_small_tables(text), _has_links(text)).parse(text)
    if max((token.level for token in tokens), default=0) >= _MAX_NESTING - 1:  # the parser drops deeper text
        return markup.escape(text)
    return markup.blocks(SyntaxTreeNode(tokens).children, "").strip("\n")


@lru_cache(maxsize=4)
def _parser(tables: bool, links: bool) -> MarkdownIt:
    """CommonMark with tables and strikethrough; without HTML, and without what would hide text.

    Link definitions would vanish from the part they are in; four spaces and underlines are rarely meant as
    code and headings in what models write.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING, "breaks": True})
    parser.enable(["table", "strikethrough"] if tables else ["strikethrough"])
    parser.disable([] if links else ["link", "image"])
    parser.disable(["reference", "lheading", "code", "html_block", "html_inline"])
    parser.validateLink = lambda url: bool(_LINKS.match(url))  # type: ignore[method-assign]
    rules = parser.renderer.rules  # type: ignore[attr-defined]
    rules["image"] = lambda tokens, index, options, env: (
        f'<a href="{html.escape(str(tokens[index].attrs["src"]))}">'
        f"{html.escape(tokens[index].content or str(tokens[index].attrs['src']), quote=False)}</a>"
    )
    rules["s_open"] = lambda tokens, index, options, env: "<del>"
    rules["s_close"] = lambda tokens, index, options, env: "</del>"
    for cell in ("th", "td"):
        rules[f"{cell}_open"] = lambda tokens, index, options, env, cell=cell: f"<{cell}>"
    return parser


class _Plain:
    """Text without markup, and what the markups of chats have in common."""

    def blocks(self, nodes: list[SyntaxTreeNode], indent: str, between: str = "\n\n") -> str:
        return between.join(self.block(node, indent) for node in nodes)

    def block(self, node: SyntaxTreeNode, indent: str) -> str:
        """A block whose lines are indented, except for code, which has to stay as it is."""
        match node.type:
            case "fence" | "code_block":
                return self.code_block(node.content.rstrip("\n"), node.info.strip().partition(" ")[0])
            case "blockquote":
                return self.quote(self.blocks(node.children, indent))
            case "bullet_list" | "ordered_list":
                return self.list(node, indent)
            case "table":
                return self.code_block(_table(node), "")
            case "hr":
                return f"{indent}———"
        line = self.inline(node).replace("\n", f"\n{indent}")
        return indent + (self.heading(line) if node.type == "heading" else line)

    def list(self, node: SyntaxTreeNode, indent: str) -> str:
        number = int(node.attrs.get("start", 1))
        is_tight = all(
            child.hidden for item in node.children for child in item.children[:1] if child.nester_tokens
        )
        items: list[str] = []
        for count, item in enumerate(node.children):
            marker = "• " if node.type == "bullet_list" else f"{number + count}. "
            inner = indent + " " * len(marker)
            body = self.blocks(item.children, inner, "\n" if is_tight else "\n\n")
            starts_with_text = bool(item.children) and item.children[0].type in ("paragraph", "heading")
            items.append(
                f"{indent}{marker}{body[len(inner) :]}" if starts_with_text else f"{indent}{marker}\n{body}"
            )
        return ("\n" if is_tight else "\n\n").join(items)

    def inline(self, node: SyntaxTreeNode) -> str:
        match node.type:
            case "text" | "text_special":
                return self.escape(node.content)
            case "softbreak" | "hardbreak":
                return "\n"
            case "code_inline":
                return self.code(node.content)
            case "image":
                return self.link(str(node.attrs["src"]), self.escape(node.content))
        inner = "".join(self.inline(child) for child in node.children)
        match node.type:
            case "strong":
                return self.strong(inner)
            case "em":
                return self.emphasis(inner)
            case "s":
                return self.struck(inner)
            case "link":
                return self.link(str(node.attrs["href"]), inner)
        return inner

    def escape(self, text: str) -> str:
        return text

    def heading(self, text: str) -> str:
        return text

    def strong(self, text: str) -> str:
        return text

    def emphasis(self, text: str) -> str:
        return text

    def struck(self, text: str) -> str:
        return text

    def code(self, text: str) -> str:
        return text

    def code_block(self, text: str, language: str) -> str:
        return text

    def quote(self, text: str) -> str:
        return "\n".join(f"> {line}" for line in text.split("\n"))

    def link(self, url: str, label: str) -> str:
        bare, label = self.escape(url.removeprefix("mailto:")), label.removeprefix("mailto:")
        return bare if label in ("", bare) else f"{label} ({bare})"


class _Telegram(_Plain):
    def __init__(self) -> None:
        self._quotes = 0

    def escape(self, text: str) -> str:
        return html.escape(text, quote=False)

    def heading(self, text: str) -> str:
        return f"<b>{text}</b>"

    def strong(self, text: str) -> str:
        return f"<b>{text}</b>"

    def emphasis(self, text: str) -> str:
        return f"<i>{text}</i>"

    def struck(self, text: str) -> str:
        return f"<s>{text}</s>"

    def code(self, text: str) -> str:
        return f"<code>{self.escape(text)}</code>"

    def code_block(self, text: str, language: str) -> str:
        named = f' class="language-{html.escape(language)}"' if language else ""
        return (
            f"<pre><code{named}>{self.escape(text)}</code></pre>"
            if named
            else f"<pre>{self.escape(text)}</pre>"
        )

    def block(self, node: SyntaxTreeNode, indent: str) -> str:
        if node.type != "blockquote":
            return super().block(node, indent)
        self._quotes += 1
        try:
            inner = self.blocks(node.children, indent)
        finally:
            self._quotes -= 1
        return inner if self._quotes else f"<blockquote>{inner}</blockquote>"  # they cannot be nested

    def link(self, url: str, label: str) -> str:
        if not url.lower().startswith("http"):
            return super().link(url, label)
        return f'<a href="{html.escape(url)}">{label or self.escape(url)}</a>'


class _Slack(_Plain):
    def escape(self, text: str) -> str:
        return html.escape(text, quote=False)

    def heading(self, text: str) -> str:
        return self.strong(text)

    def strong(self, text: str) -> str:
        return f"*{text}*"

    def emphasis(self, text: str) -> str:
        return f"_{text}_"

    def struck(self, text: str) -> str:
        return f"~{text}~"

    def code(self, text: str) -> str:
        return f"`{self.escape(text)}`"

    def code_block(self, text: str, language: str) -> str:
        unfenced = text.replace("```", "`\u200b``")
        return f"```\n{self.escape(unfenced)}\n```"

    def link(self, url: str, label: str) -> str:
        target = self.escape(url.replace("|", "%7C"))
        return f"<{target}|{label}>" if label not in ("", self.escape(url)) else f"<{target}>"


class _WhatsApp(_Slack):
    """As Slack's, without escapes and without labels of links."""

    def escape(self, text: str) -> str:
        return text

    def link(self, url: str, label: str) -> str:
        return _Plain.link(self, url, label)


def _table(node: SyntaxTreeNode) -> str:
    """A table in columns of characters."""
    plain = _Plain()
    rows = [
        [plain.inline(cell).replace("\n", " ") for cell in row.children]
        for part in node.children
        for row in part.children
    ]
    widths = [min(_WIDEST_COLUMN, max(map(len, column))) for column in zip(*rows, strict=False)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])
