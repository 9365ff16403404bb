"""A web page as plain text: decode it, and convert HTML.

Pages are hostile: there is HTML that keeps the parser of the standard library busy for hours. So this runs
only in a guest process.
"""

from __future__ import annotations

import binascii
import re
from html.parser import HTMLParser
from typing import Any

from hobnob.workspaces.guest import process

_TITLE_CHARS = 300
# The charsets that occur, by their names in Content-Type. Python knows more, but some take quadratic time
# (punycode) or are no charsets at all. As in browsers, a superset stands for each older charset.
_CODECS = {
    "utf-8": "utf-8 utf8 unicode-1-1-utf-8",
    "utf-16": "utf-16 utf16 unicode ucs-2 iso-10646-ucs-2",
    "utf-16-le": "utf-16le",
    "utf-16-be": "utf-16be",
    "cp1252": "us-ascii ascii iso-8859-1 iso8859-1 latin1 latin-1 l1 windows-1252 cp1252 x-cp1252",
    "cp932": "shift_jis shift-jis sjis x-sjis ms_kanji windows-31j cp932",
    "euc_jp": "euc-jp eucjp x-euc-jp",
    "iso2022_jp": "iso-2022-jp",
    "gb18030": "gb18030 gbk x-gbk gb2312 gb_2312-80 chinese cp936",
    "big5hkscs": "big5 big5-hkscs cn-big5 x-x-big5",
    "cp949": "euc-kr euckr ks_c_5601-1987 ksc5601 windows-949 cp949 korean",
    "koi8_r": "koi8-r koi8 koi",
    "koi8_u": "koi8-u",
    "mac_roman": "macintosh x-mac-roman",
}
_CODECS |= {
    f"cp{n}": f"windows-{n} cp{n} x-cp{n}" for n in (874, 1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258)
}
_CODECS |= {f"iso8859_{n}": f"iso-8859-{n} iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)}
_CODECS["cp1254"] += " iso-8859-9 iso8859-9 latin5"
_CODEC_OF = {name: codec for codec, names in _CODECS.items() for name in names.split()}


def main() -> None:
    """The program of a page's own process."""
    process.serve(lambda job: page(binascii.a2b_base64(job.pop("body")), **job))


def page(body: bytes, *, kind: str, charset: str, max_chars: int) -> dict[str, Any]:
    """The text of a page, at most `max_chars` of it, and its title if it is HTML. `kind` is its MIME type."""
    row: dict[str, Any] = {}
    text, known = decode(body, charset)
    if not known:
        row["note"] = f"The page names the unknown charset {charset!r}. It was read as UTF-8."
    if "html" in kind or (not kind and "<html" in text[:2000].lower()):
        row["title"], text = as_text(text)
    return row | {"text": text[:max_chars], "truncated": len(text) > max_chars}


def decode(body: bytes, charset: str) -> tuple[str, bool]:
    """The text of a body, and whether its charset is known. If not, or if none is given, it is UTF-8."""
    codec = _CODEC_OF.get(charset.strip().lower() or "utf-8")
    return body.decode(codec or "utf-8", "replace").removeprefix("\ufeff"), codec is not None


def as_text(html: str) -> tuple[str, str]:
    """The title and the visible text of a page, with the URLs of its links."""
    extractor = _TextExtractor()
    extractor.feed(html)
    extractor.close()
    text = re.sub(r"[ \t\r\f\v]+", " ", "".join(extractor.text))
    text = re.sub(r" ?\n ?", "\n", text)
    title = " ".join("".join(extractor.title).split())[:_TITLE_CHARS]
    return title, re.sub(r"\n{3,}", "\n\n", text).strip()


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
