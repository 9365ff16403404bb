"""A mail as its headers, its text and its files, or one of its files.

Mails are hostile: their parts may be nested or repeated without end, and their HTML may keep a parser busy.
So this runs only in a guest process. The parser of headers is the tolerant one of the standard library: the
newer one takes quadratic time on some addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path
from typing import Any

from hobnob.workspaces.guest import mail_quotes, pages, process
from hobnob.workspaces.guest.process import GuestError

Row = dict[str, Any]

_HEADERS = (
    "from to cc subject message-id in-reply-to references authentication-results auto-submitted precedence"
    " return-path list-id list-post x-failed-recipients x-autoreply x-autorespond"
).split()
_HEADER_CHARS = 8_000
_SAME_HEADER = 20  # of one name
_TEXT_CHARS = 200_000
_MAX_PARTS = 500
_MAX_FILES = 50
_NAME_CHARS = 200
_COUNTED_CHARS = 4_000_000  # of HTML that is converted
_WORD = re.compile(r"=\?[^?\s]{1,60}\?[bBqQ]\?")


def main() -> None:
    """The program of a mail's own process."""
    process.serve(run)


def run(job: Row) -> Row:
    """Read the mail in the file `mail`; with `part`, write that file of the mail to the file `to`."""
    try:
        with Path(job["mail"]).open("rb") as file:
            mail = BytesParser(policy=compat32).parse(file)
        if "part" in job:
            return _extract(mail, job["part"], Path(job["to"]))
        return _read(mail)
    except RecursionError:
        raise GuestError("Its parts are nested too deeply.") from None


def _read(mail: Message) -> Row:
    headers: dict[str, list[str]] = {name: [] for name in _HEADERS}
    for name, value in mail.items():
        values = headers.get(name.lower())
        if values is not None and len(values) < _SAME_HEADER:
            values.append(_decoded(str(value)))
    plain: list[str] = []
    html: list[str] = []
    files: list[Row] = []
    for part in _leaves(mail):
        kind = part.get_content_type()
        if _is_file(part):
            if len(files) < _MAX_FILES:
                files.append({"name": _name(part), "type": kind[:100], "size": len(_content(part))})
        elif kind == "text/html":
            html.append(_text(part))
        else:
            plain.append(_text(part))
    text = "\n".join(plain)
    is_html = not text.strip() and bool(html)
    if is_html:
        text = pages.as_text("\n".join(html)[:_COUNTED_CHARS])[1]
    text = text[:_TEXT_CHARS]
    if headers["references"] or headers["in-reply-to"]:
        text = mail_quotes.without_quotes(text, is_html=is_html)
    return {"headers": headers, "text": text, "files": files}


def _extract(mail: Message, number: int, target: Path) -> Row:
    files = [part for part in _leaves(mail) if _is_file(part)]
    if not 0 <= number < len(files):
        raise GuestError("The mail has no such file.")
    content = _content(files[number])
    target.write_bytes(content)
    return {"size": len(content)}


def _leaves(mail: Message) -> Iterator[Message]:
    """The parts with content, in order. A mail inside a mail is a file, and is not opened."""
    waiting, seen = [mail], 0
    while waiting:
        part = waiting.pop()
        if (seen := seen + 1) > _MAX_PARTS:
            return
        content = part.get_payload()
        if part.get_content_maintype() == "multipart" and isinstance(content, list):
            waiting += [each for each in reversed(content) if isinstance(each, Message)]
        else:
            yield part


def _is_file(part: Message) -> bool:
    if part.get_content_type() not in ("text/plain", "text/html"):
        return True
    return part.get_content_disposition() == "attachment" or bool(part.get_filename())


def _content(part: Message) -> bytes:
    inner = part.get_payload()
    if isinstance(inner, list):
        return inner[0].as_bytes() if inner and isinstance(inner[0], Message) else b""
    decoded = part.get_payload(decode=True)
    return decoded if isinstance(decoded, bytes) else b""


def _text(part: Message) -> str:
    return pages.decode(_content(part), part.get_content_charset() or "")[0].replace("\r\n", "\n")


def _name(part: Message) -> str:
    return _decoded(part.get_filename() or "")[:_NAME_CHARS]


def _decoded(value: str) -> str:
    """A header in one line, with its encoded words decoded."""
    value = " ".join(value[:_HEADER_CHARS].split())
    if not _WORD.search(value):
        return value.encode("utf-8", "replace").decode()
    try:
        pieces = decode_header(value)
    except (HeaderParseError, ValueError):
        return value
    words = [
        pages.decode(text, charset or "")[0] if isinstance(text, bytes) else text for text, charset in pieces
    ]
    return " ".join("".join(words)[:_HEADER_CHARS].split()).encode("utf-8", "replace").decode()
