"""From HTML to the words a reader of the page would see."""

from __future__ import annotations

import re
from html.parser import HTMLParser


def as_text(html: str) -> tuple[str, str]:
    """The title of a page and its words, with the addresses of its links."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    text = re.sub(r"[ \t\r\f\v]+", " ", "".join(reader.said))
    text = re.sub(r" ?\n ?", "\n", text)
    return " ".join("".join(reader.title).split())[:300], re.sub(r"\n{3,}", "\n\n", text).strip()


class _Reader(HTMLParser):
    """Gathers what a reader of a page would see."""

    SILENT = frozenset(("script", "style", "noscript", "template", "svg", "head", "iframe", "object"))
    BLOCKS = frozenset(
        "address article aside blockquote br dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6"
        " header hr li main nav ol p pre section table td th tr ul".split()
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.said: list[str] = []
        self.title: list[str] = []
        self._silent: list[str] = []
        self._in_title = False
        self._link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        if tag == "body":
            self._silent.clear()  # a head that was never closed
        elif tag in self.SILENT:
            self._silent.append(tag)
        elif tag in self.BLOCKS:
            self.said.append("\n- " if tag == "li" else "\n")
        elif tag == "a":
            target = dict(attrs).get("href") or ""
            self._link = target if target.startswith(("http://", "https://", "/")) else None

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if tag in self._silent:
            while self._silent and self._silent.pop() != tag:
                pass
        elif tag in self.BLOCKS:
            self.said.append("\n")
        elif tag == "a" and self._link and not self._silent:
            self.said.append(f" ({self._link})")
            self._link = None

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._silent:
            self.said.append(data)
