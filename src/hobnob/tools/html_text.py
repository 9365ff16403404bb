"""Convert HTML to plain text."""

from __future__ import annotations

import re
from html.parser import HTMLParser


def as_text(html: str) -> tuple[str, str]:
    """The title and the visible text of a page, with the URLs of its links."""
    extractor = _TextExtractor()
    extractor.feed(html)
    extractor.close()
    text = re.sub(r"[ \t\r\f\v]+", " ", "".join(extractor.text))
    text = re.sub(r" ?\n ?", "\n", text)
    return " ".join("".join(extractor.title).split())[:300], re.sub(r"\n{3,}", "\n\n", text).strip()


class _TextExtractor(HTMLParser):
    HIDDEN = frozenset(("script", "style", "noscript", "template", "svg", "head", "iframe", "object"))
    BLOCKS = frozenset(
        "address article aside blockquote br dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6"
        " header hr li main nav ol p pre section table td th tr ul".split()
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.title: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        if tag == "body":
            self._hidden.clear()  # a head that was never closed
        elif tag in self.HIDDEN:
            self._hidden.append(tag)
        elif tag in self.BLOCKS:
            self.text.append("\n- " if tag == "li" else "\n")
        elif tag == "a":
            target = dict(attrs).get("href") or ""
            self._link = target if target.startswith(("http://", "https://", "/")) else None

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if tag in self._hidden:
            while self._hidden and self._hidden.pop() != tag:
                pass
        elif tag in self.BLOCKS:
            self.text.append("\n")
        elif tag == "a" and self._link and not self._hidden:
            self.text.append(f" ({self._link})")
            self._link = None

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self.text.append(data)
