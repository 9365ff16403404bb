"""From a mail that was read to a message for the inbox. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hobnob.channels.email.verification import own_results, proves, why_unverified
from hobnob.inbound import Address, Inbound, Media, MediaKind, Sender
from hobnob.records import Struct

ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?", re.ASCII
)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.){0,500}"')
_COMMENT = re.compile(r"\([^()]{0,500}\)")
_MESSAGE_ID = re.compile(r"<([^<>\s]{1,500})>")
_LIST_ID = re.compile(r"<([A-Za-z0-9._-]{1,250})>\s*\Z")
_ROBOTS = re.compile(
    r"(mailer-daemon|postmaster|no-?reply|do-?not-?reply|bounces?)([+.-].*)?@", re.IGNORECASE
)
_MAX_REFERENCES = 100


class Mail(Struct, frozen=True):
    """The headers, the text and the files of a mail, as far as they are read."""

    headers: dict[str, list[str]]
    text: str
    files: list[dict[str, Any]]

    @classmethod
    def of(cls, row: dict[str, Any]) -> Mail:
        return cls(row["headers"], row["text"], row["files"])

    def header(self, name: str) -> str:
        values = self.headers.get(name) or [""]
        return values[0]

    @property
    def sender(self) -> tuple[str, str]:
        """Address and name of the sender; empty if the mail does not name exactly one."""
        values = self.headers.get("from") or []
        return one_address(values[0]) if len(values) == 1 else ("", "")

    @property
    def message_id(self) -> str:
        found = _MESSAGE_ID.search(self.header("message-id"))
        return found[1] if found else ""

    @property
    def references(self) -> list[str]:
        """The mails before this one in its thread, oldest first."""
        found = _MESSAGE_ID.findall(self.header("references"))
        found += _MESSAGE_ID.findall(self.header("in-reply-to"))[:1]
        return list(dict.fromkeys([*found[:1], *found[-_MAX_REFERENCES:]]))

    @property
    def subject(self) -> str:
        return self.header("subject")[:300]

    @property
    def is_automatic(self) -> bool:
        """Whether a program sent it: to answer it could go on for ever."""
        submitted = self.header("auto-submitted").partition(";")[0].strip().lower()
        bulk = self.headers.get("list-id") or self.header("precedence").lower() in ("bulk", "list")
        return (
            submitted not in ("", "no")
            or (bool(bulk) and not list_of(self))
            or self.header("precedence").lower() in ("junk", "auto_reply")
            or any(self.headers.get(name) for name in ("x-autoreply", "x-autorespond"))
            or _ROBOTS.match(self.sender[0]) is not None
        )

    @property
    def is_bounce(self) -> bool:
        """Whether it reports on a mail that was not delivered. Such a mail is never answered."""
        no_return = self.headers.get("return-path") and self.header("return-path").strip() in ("<>", "")
        return bool(no_return) or bool(self.headers.get("x-failed-recipients"))


def inbound(
    mail: Mail, *, own: str, trusted: list[str], believe_all: bool, thread_id: str, ref: str, at_ms: int
) -> Inbound:
    """The message of a mail. `ref` is what the channel needs to fetch its files."""
    address, name = mail.sender
    unverified = "" if believe_all else unverified_reason(mail, trusted)
    list_id = list_of(mail)
    if list_id:
        unverified = "" if believe_all else _unverified_list(mail, list_id, trusted)
        if not believe_all and not unverified and unverified_reason(mail, trusted):
            address = f"unverified:{address}"  # the list let it pass, but nothing proves who wrote it
    return Inbound(
        event_id=event_id(mail),
        message_id=mail.message_id,
        sender=Sender(id=address or "unknown", name=name, is_bot=mail.is_automatic),
        chat_id=list_id or address or "unknown",
        chat_type="group" if list_id else "direct",
        chat_name=list_id,
        thread_id=thread_id,
        address=Address(answer_address(mail), thread_id),
        mentioned=own in addresses(mail) if list_id else None,
        text=text_of(mail),
        media=tuple(_media(file, f"{ref}:{number}") for number, file in enumerate(mail.files)),
        at_ms=at_ms,
        unverified=unverified,
    )


def unverified_reason(mail: Mail, trusted: list[str]) -> str:
    address, _ = mail.sender
    if not address:
        return "the mail does not name exactly one sender"
    return why_unverified(address, mail.headers.get("authentication-results") or [], trusted)


def _unverified_list(mail: Mail, list_id: str, trusted: list[str]) -> str:
    """A mailing list is proven by the domain of its server: anybody can name a list."""
    results = own_results(mail.headers.get("authentication-results") or [], trusted)
    domain = answer_address(mail).rpartition("@")[2]
    if results is None or not proves(domain, results):
        return f"no result of your mail server proves that the mail came through the list {list_id}"
    return ""


def list_of(mail: Mail) -> str:
    """The id of the mailing list that a mail came through; empty if none, or if it takes no posts."""
    found = _LIST_ID.search(mail.header("list-id").strip())
    list_id = found[1].lower() if found else ""
    post = _list_address(mail)
    domain = post.rpartition("@")[2]
    return list_id if post and (list_id == domain or list_id.endswith(f".{domain}")) else ""


def answer_address(mail: Mail) -> str:
    """Where the answer goes: to the list, else to the sender alone. `Reply-To` is not proven by anything."""
    return _list_address(mail) if list_of(mail) else mail.sender[0]


def _list_address(mail: Mail) -> str:
    found = re.search(r"<mailto:([^>?]{1,320})", mail.header("list-post"), re.IGNORECASE)
    return found[1].lower() if found and ADDRESS.fullmatch(found[1]) else ""


def addresses(mail: Mail) -> set[str]:
    """Everybody the mail is addressed to."""
    texts = [*(mail.headers.get("to") or []), *(mail.headers.get("cc") or [])]
    return {found.lower() for text in texts for found in ADDRESS.findall(text)}


def one_address(text: str) -> tuple[str, str]:
    """Address and name of a header with one address; empty if it may be read in more than one way."""
    bare = _COMMENT.sub("", _QUOTED.sub("", text)).strip()
    found = re.fullmatch(r"[^<>@,;:]*<\s*([^<>\s]+)\s*>", bare) or re.fullmatch(r"([^<>\s,;:]+)", bare)
    if found is None or not ADDRESS.fullmatch(found[1]):
        return "", ""
    name = text.partition("<")[0].strip().strip('"').strip() if "<" in bare else ""
    return found[1].lower(), name[:120]


def text_of(mail: Mail) -> str:
    """What the sender wrote, with the subject in front where a thread begins."""
    text = mail.text.strip()
    if not mail.subject or text.startswith("/") or (mail.references and text):
        return text
    return f"Subject: {mail.subject}\n\n{text}".strip()


def event_id(mail: Mail) -> str:
    """An id of the mail that stays when a server numbers its mails anew."""
    parts = [mail.message_id or repr((mail.subject, mail.text, mail.files)), mail.header("from")]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def _media(file: dict[str, Any], ref: str) -> Media:
    kinds: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
    kind = kinds.get(file["type"].partition("/")[0], "file")
    return Media(ref=ref, kind=kind, name=file["name"], mime_type=file["type"], size=file["size"])
