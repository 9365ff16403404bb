"""The web page: static files of this package, served with strict security headers."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache

from starlette.responses import Response

from hobnob.api.routing import HttpCall, route
from hobnob.errors import NotFound
from hobnob.records import Struct

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # The browser refuses every API that turns text into markup.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # cached, but revalidated each time
    "Vary": "Accept-Encoding",
}


class File(Struct, frozen=True):
    body: bytes
    gzipped: bytes
    media_type: str
    etag: str


@route("GET", "/", scope=None)
async def page(call: HttpCall) -> Response:
    """The page. It contains no secrets: the user signs in on it."""
    return _answer(call, "index.html")


@route("GET", "/ui/{name}", scope=None)
async def page_file(call: HttpCall, name: str) -> Response:
    """A file of the page."""
    return _answer(call, name)


def _answer(call: HttpCall, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise NotFound(f"The page has no file {name}.")
    headers = {**HEADERS, "ETag": file.etag}
    if file.etag in call.http.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" not in call.http.headers.get("accept-encoding", ""):
        return Response(file.body, headers=headers, media_type=file.media_type)
    headers["Content-Encoding"] = "gzip"
    return Response(file.gzipped, headers=headers, media_type=file.media_type)


@cache
def _files() -> dict[str, File]:
    """All files of the page by name, read once. No part of a request becomes a path."""
    from importlib import resources  # here: not needed at startup

    files = {}
    for entry in (resources.files("hobnob") / "ui").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in TYPES:
            body = entry.read_bytes()
            etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'  # weak: the same for both encodings
            files[entry.name] = File(body, gzip.compress(body, mtime=0), TYPES[suffix], etag)
    return files
