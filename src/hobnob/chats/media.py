"""Files of chat messages: those that come, for the workspace and for models, and copies of those that go."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hobnob import attachments, keys, policy
from hobnob.attachments import Attachment
from hobnob.briefings import quoted
from hobnob.channels import Channel, OutgoingFile, Undeliverable
from hobnob.config import Config
from hobnob.config.channels import account_of
from hobnob.errors import HobnobError
from hobnob.inbound import Media
from hobnob.records import Struct
from hobnob.types import Session, new_id
from hobnob.workspaces.service import Workspaces

FETCH_TIMEOUT_S = 60.0
MAX_FILES = 10  # of one turn
_DEFAULT_MB = {"telegram": 20.0, "discord": 25.0, "signal": 8.0, "imessage": 16.0}
_OTHER_MB = 20.0
_IMAGE_BYTES = 4 * 1024 * 1024  # larger images are files only: providers refuse them
_IMAGES_BYTES = 8 * 1024 * 1024  # of all images of one turn: they are part of the transcript
_FETCHING_AT_A_TIME = 4
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._ ()-]+")
# The first bytes decide what a file is, not what its sender claims.
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_log = logging.getLogger(__name__)


class FetchedMedia(Struct, frozen=True):
    """What a turn gets of the files of its messages: images as parts of the input, a note on each file.

    `stored`: whether files are in the workspace of this gateway.
    """

    images: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    stored: bool = False


def limit_bytes(config: Config, channel: str, account_id: str) -> int:
    """Largest file that is received or sent on an account."""
    root = config.settings.channels.configured.get(channel)
    chosen = account_of(root, account_id).media_max_mb if root else None
    return int((chosen or _DEFAULT_MB.get(channel, _OTHER_MB)) * 1024 * 1024)


class MediaFetcher:
    def __init__(self, config: Config, workspaces: Workspaces) -> None:
        self._config = config
        self._workspaces = workspaces
        self._slots = asyncio.Semaphore(_FETCHING_AT_A_TIME)

    async def fetch(
        self,
        channel: Channel | None,
        channel_name: str,
        account_id: str,
        session_key: str,
        media: Sequence[Media],
        *,
        elsewhere: str | None = None,
    ) -> FetchedMedia:
        """Fetch files and write them into the workspace of the session's agent. Never fails as a whole.

        `elsewhere` is the gateway that has the workspace, if it is another one: then no file is written.
        """
        async with self._slots:
            return await self._fetch(channel, channel_name, account_id, session_key, media, elsewhere)

    async def _fetch(
        self,
        channel: Channel | None,
        channel_name: str,
        account_id: str,
        session_key: str,
        media: Sequence[Media],
        elsewhere: str | None,
    ) -> FetchedMedia:
        limit = limit_bytes(self._config, channel_name, account_id)
        notes: list[str] = []
        files: list[Attachment] = []
        for number, item in enumerate(media[:MAX_FILES], 1):
            name = file_name(item, number)
            try:
                content = await self._content(channel, item, limit)
            except (TimeoutError, Exception) as error:  # whatever the channel raises: the turn runs
                _log.warning("file of a message on %s not fetched: %s", channel_name, error)
                notes.append(f"media unavailable: {item.kind} {quoted(name)}: {quoted(_reason(error))}")
                continue
            files.append(Attachment(_unique(name, files), content))
        if len(media) > MAX_FILES:
            notes.append(f"media unavailable: {len(media) - MAX_FILES} more files")
        folder, problem = "", f"media unavailable: your workspace is on the gateway {elsewhere}"
        if elsewhere is None:
            folder, problem = await self._write(session_key, files)
        images, shown = [], 0
        for file in files:
            kind = image_type(file.content)
            where = f"{folder}/{file.name}" if folder else file.name
            notes.append(f"media: {kind or 'file'} {quoted(where)} in your workspace" if folder else problem)
            shown += len(file.content)
            if kind and len(file.content) <= _IMAGE_BYTES and shown <= _IMAGES_BYTES:
                data = base64.b64encode(file.content).decode()
                images.append({"type": "image", "data": data, "mimeType": kind})
        return FetchedMedia(tuple(images), tuple(notes), stored=bool(folder))

    async def _content(self, channel: Channel | None, media: Media, limit: int) -> bytes:
        if channel is None:
            raise ValueError("the channel is not connected")
        if media.size is not None and media.size > limit:
            raise ValueError(f"it has {media.size:,} bytes; the limit is {limit:,}")
        pieces: list[bytes] = []
        size = 0
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            async for piece in channel.fetch(media, limit):
                if (size := size + len(piece)) > limit:
                    raise ValueError(f"it is larger than {limit:,} bytes")
                pieces.append(piece)
        return b"".join(pieces)

    async def _write(self, session_key: str, files: list[Attachment]) -> tuple[str, str]:
        """The folder in the workspace that has the files; without one, why."""
        if not files:
            return "", ""
        session = Session.of(keys.parse(session_key))
        confinement = policy.confinement(self._config.settings, session)
        receipt = await asyncio.to_thread(attachments.receipt_for, files, new_id())
        job = await asyncio.to_thread(attachments.write_job, receipt, files)
        try:
            place = policy.Confinement(confinement.sandboxed, "rw")
            await self._workspaces.run_job(session.agent_id, place, job)
        except (HobnobError, OSError) as error:
            _log.error("files of a message not written to the workspace: %s", error)
            return "", "media unavailable: the files could not be written to the workspace"
        return receipt.rel_dir, ""


def file_name(media: Media, number: int) -> str:
    """A name for a file in plain characters; its sender chose the original."""
    plain = _NOT_PLAIN.sub("_", media.name.rpartition("/")[2]).strip(" .")[:80]
    return plain or f"{media.kind}-{number}"


def image_type(content: bytes) -> str | None:
    """The type of an image that models can read; None for any other file."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES.items() if content.startswith(start)), None)


def _unique(name: str, files: Sequence[Attachment]) -> str:
    taken = {file.name.casefold() for file in files}
    return name if name.casefold() not in taken else f"{len(files) + 1}-{name}"


def _reason(error: BaseException) -> str:
    return "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def outgoing_file(raw: dict[str, str] | None, outgoing: Path) -> OutgoingFile | None:
    """The copy of a file that is to be sent. Raises Undeliverable when only another gateway has it."""
    if raw is None:
        return None
    path = Path(raw["path"])
    if not path.exists():  # another gateway made it; its state directory may have another path
        path = outgoing / path.name
    if not path.exists():
        raise Undeliverable(
            f"The file {raw['name']} is not on the gateway that sends to this chat. Several gateways need the"
            " folder outgoing of their state directories on one disk."
        )
    return OutgoingFile(path=path, name=raw["name"], mime_type=raw["mimeType"])
