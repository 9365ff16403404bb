"""Whether a mail is from whom it says: the results that our own mail server wrote into it (RFC 8601).

Anybody can write any sender, and any `Authentication-Results`. Only the topmost one with the name of our own
server counts: the server adds it above all others, and removes those that claim its name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

_METHOD = re.compile(r"([a-z0-9-]{1,20})(?:/\d)?\s{0,5}=\s{0,5}([a-z]{1,20})\b", re.ASCII)
# Quoted values are matched as a whole: what looks like a property inside one is none.
_PROPERTY = re.compile(
    r"([a-z0-9.-]{1,40})\s{0,5}=\s{0,5}(\"(?:[^\"\\]|\\.){0,300}\"|[^\s;\"]{1,300})", re.ASCII
)

Result = tuple[str, str, dict[str, str]]


def why_unverified(address: str, results: Sequence[str], trusted: Sequence[str]) -> str:
    """Why the sender of a mail is not proven; empty if it is."""
    if not trusted:
        return "the setting authservId does not say whose results on senders are believed"
    found = own_results(results, trusted)
    if found is None:
        return f"your mail server ({', '.join(trusted)}) wrote no result on the sender into the mail"
    if any(method == "dmarc" and result == "fail" for method, result, _ in found):
        return f"your mail server says that the mail is not from {address} (DMARC)"
    if not proves(address.rpartition("@")[2], found) and not _signed_in(address, found):
        return f"no result of your mail server proves that the mail is from {address}"
    return ""


def own_results(headers: Sequence[str], trusted: Sequence[str]) -> list[Result] | None:
    """The results of the topmost header that our own server wrote; None without one."""
    for header in headers:
        pieces = list(_pieces(_without_comments(header)))
        name = pieces[0].split()[0] if pieces and pieces[0].split() else ""
        if any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in trusted):
            return [result for piece in pieces[1:] if (result := _result(piece)) is not None]
    return None


def server_name(header: str) -> str:
    """The name of the server that wrote a header."""
    first = _without_comments(header).partition(";")[0].split()
    return first[0] if first else ""


def proves(domain: str, results: Sequence[Result]) -> bool:
    """Whether a result proves that a mail comes from a domain: DMARC, or DKIM or SPF of the domain itself."""
    for method, result, properties in results:
        if result != "pass":
            continue
        if method == "dmarc" and _domain(properties.get("header.from", "")) == domain:
            return True
        signer = properties.get("header.d") or _domain(properties.get("header.i", ""))
        if method == "dkim" and signer and _is_within(domain, signer):
            return True
        if method == "spf" and _domain(properties.get("smtp.mailfrom", "")) == domain:
            return True
    return False


def _signed_in(address: str, results: Sequence[Result]) -> bool:
    """Whether the sender signed in to our own server with this address."""
    return any(
        method == "auth" and result == "pass" and properties.get("smtp.auth") == address
        for method, result, properties in results
    )


def _is_within(domain: str, signer: str) -> bool:
    return domain == signer or ("." in signer and domain.endswith(f".{signer}"))


def _domain(text: str) -> str:
    return text.rpartition("@")[2]


def _result(piece: str) -> Result | None:
    piece = piece.lower()
    method = _METHOD.match(piece.strip())
    if method is None:
        return None
    properties: dict[str, str] = {}
    for found in _PROPERTY.finditer(piece):
        if properties.setdefault(found[1], found[2]) != found[2]:
            properties[found[1]] = ""  # two values: neither is believed
    return method[1], method[2], properties


def _pieces(text: str) -> Iterator[str]:
    """The text between semicolons that are not quoted."""
    start, quoted, escaped = 0, False, False
    for index, character in enumerate(text):
        if escaped or character == "\\":
            escaped = not escaped
        elif character == '"':
            quoted = not quoted
        elif character == ";" and not quoted:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _without_comments(text: str) -> str:
    """The text without what stands in parentheses, outside quotes."""
    kept: list[str] = []
    depth, quoted, escaped = 0, False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"' and not depth:
            quoted = not quoted
        elif character == "(" and not quoted:
            depth += 1
        elif character == ")" and depth:
            depth -= 1
            continue
        if not depth:
            kept.append(character)
    return "".join(kept)
