"""Makes the mails of the bot. The key of a part is in the id of its mail, so that the mail can be found."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, formataddr

from hobnob.channels import Outgoing
from hobnob.channels.email.threads import Thread
from hobnob.channels.text import plain_text

_KEY = re.compile(r"[A-Za-z0-9-]{1,80}:\d{1,6}")
_OWN_ID = re.compile(r"hobnob\.([A-Za-z0-9-]{1,80})\.(\d{1,6})@")
_PREFIX = re.compile(r"\s*(re|aw|sv|antw|odp)\s*:", re.IGNORECASE)
_SUBJECT_CHARS = 70


def message_id(key: str, address: str) -> str:
    """The id of the mail of a part, the same on every attempt."""
    name = (
        key.replace(":", ".") if _KEY.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:40] + ".0"
    )
    return f"hobnob.{name}@{address.rpartition('@')[2]}"


def key_of(message_id: str) -> str | None:
    """The key of the part that a mail of the bot belongs to."""
    found = _OWN_ID.match(message_id)
    return f"{found[1]}:{found[2]}" if found else None


def subject(part: Outgoing, thread: Thread | None) -> str:
    """The subject of a mail: that of its thread, else its first words."""
    if thread is not None and thread.subject:
        return thread.subject if _PREFIX.match(thread.subject) else f"Re: {thread.subject}"
    if thread is not None:
        return "Re: your mail"
    line = next((line.strip() for line in plain_text(part.text).splitlines() if line.strip()), "")
    line = line or (part.file.name if part.file else "") or "A message"
    return line if len(line) <= _SUBJECT_CHARS else f"{line[: _SUBJECT_CHARS - 1].rstrip()}…"


def mail(
    part: Outgoing, content: bytes | None, *, address: str, name: str, title: str, thread: Thread | None
) -> bytes:
    """The mail of a part, as it is sent. `content` is that of its file."""
    made = EmailMessage(policy=SMTP)
    made["From"] = formataddr((_one_line(name), address)) if name else address
    made["To"] = part.address.to
    made["Subject"] = _one_line(title)
    made["Date"] = format_datetime(datetime.now(UTC))
    made["Auto-Submitted"] = "auto-replied" if thread else "auto-generated"
    made["X-Auto-Response-Suppress"] = "All"
    made.set_content(plain_text(part.text) + "\n" if part.text else "")
    if content is not None and part.file is not None:
        main, _, sub = part.file.mime_type.partition("/")
        made.add_attachment(
            content,
            maintype=main or "application",
            subtype=sub or "octet-stream",
            filename=_one_line(part.file.name),
        )
    # The standard library would encode long ids as if they were text.
    ids = [f"Message-ID: <{message_id(part.key, address)}>", *_thread_headers(part, thread)]
    return "".join(f"{line}\r\n" for line in ids).encode() + made.as_bytes()


def _thread_headers(part: Outgoing, thread: Thread | None) -> list[str]:
    known = [text for text in thread.message_ids if text.isascii()] if thread else []
    if not known:
        return []
    answered = part.reply_to if part.reply_to in known else known[-1]
    before = [text for text in known if text != answered]
    chain = "\r\n ".join(f"<{text}>" for text in [*before, answered])
    return [f"In-Reply-To: <{answered}>", f"References: {chain}"]


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))
