"""Errors that other programs report, as one short line for the caller.

A provider or an MCP server may answer with its stack trace, or repeat a secret. The caller gets the sentence
before that; what was received in full belongs into the debug log.
"""

from __future__ import annotations

import re

from hobnob import redact

MAX_CHARS = 500
_SEARCHED_CHARS = 20_000
# The beginning of a stack trace in Python, JavaScript, Java, C#, Go, Rust, Ruby and PHP. A new line may be
# escaped, as in JSON.
_FRAMES = (
    r"at [\w$.<>\[\]/:@ ]{1,200}\(",
    r"at (?:file|https?|node):",
    r"File \\{0,2}\"",
    r"goroutine \d",
    r"from /",
    r"#\d+ ",
)
_TRACE = re.compile(
    r"Traceback \(most recent call last\)|Exception in thread |stack ?trace:|stack backtrace:|Call Stack"
    rf"|(?:\n|\\n){{1,9}}[ \t]{{0,40}}(?:{'|'.join(_FRAMES)})"
    r"|[ \t]at [\w$.<>]{1,100} ?\([^()\s]{1,200}:\d+",
    re.IGNORECASE,
)


def summary(text: str, limit: int = MAX_CHARS) -> str:
    """The text up to the first stack trace in it, on one line, with secrets masked; empty if none is left."""
    text = redact.excerpt(text, _SEARCHED_CHARS)
    if found := _TRACE.search(text):
        text = text[: found.start()]
    return " ".join(text.split())[:limit]
