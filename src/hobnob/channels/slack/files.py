"""Files: upload them, prove an upload whose answer was lost, and download those of messages."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hobnob.channels import Account, Outgoing, OutgoingFile, Undeliverable, http
from hobnob.channels.http import Unanswered
from hobnob.channels.slack.web_api import Refused, WebApi
from hobnob.inbound import Media

MAX_RECORDS = 200
_HTML = (b"<!doctype html", b"<html")


class Files:
    """Uploads and downloads of one account.

    Slack shows a file when its upload is completed, and messages with files carry no metadata. So the id that
    Slack gave to a file is written down before its upload is completed: with it, Slack can be asked whether
    the file was shown.
    """

    def __init__(self, account: Account, api: WebApi) -> None:
        self._account = account
        self._api = api
        self._folder = account.folder / "uploads"

    async def send(
        self, part: Outgoing, file: OutgoingFile, channel: str, thread: str | None, text: str
    ) -> str:
        """Upload a file and show it in a conversation. Returns the id of the message, else of the file."""
        try:
            content = await asyncio.to_thread(file.path.read_bytes)
        except OSError as error:
            raise Undeliverable(f"The file {file.name} cannot be read: {error.strerror}.") from error
        if not content:
            raise Undeliverable(f"The file {file.name} is empty, and Slack takes no empty files.")
        made = await self._api.call("files.getUploadURLExternal", filename=file.name, length=len(content))
        file_id, url = str(made.get("file_id") or ""), str(made.get("upload_url") or "")
        await self._api.upload(url, content)
        await asyncio.to_thread(self._record, part.key, file_id)
        done = await self._api.call(
            "files.completeUploadExternal",
            files=[{"id": file_id, "title": file.name}],
            channel_id=channel,
            thread_ts=thread,
            initial_comment=text or None,
        )
        shown = done.get("files")
        first = shown[0] if isinstance(shown, list) and shown and isinstance(shown[0], dict) else {}
        return _shared_at(first, channel) or file_id  # Slack may share it a moment later

    async def find(self, part: Outgoing, channel: str) -> str | None:
        """The message that shows a file. Without a record, the upload was never completed.

        Slack shows a file some time after its upload is completed: until then nothing is known.
        """
        file_id = await asyncio.to_thread(self._recorded, part.key)
        if file_id is None:
            return None
        try:
            answer = await self._api.call("files.info", file=file_id)
        except Refused as refused:
            if refused.code in ("file_not_found", "file_deleted"):
                return None
            raise
        found = answer.get("file")
        if shown := _shared_at(found if isinstance(found, dict) else {}, channel):
            return shown
        raise Unanswered("Slack has the file, but has not shown it yet.")

    async def content(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        """The content of a file of a message. Raises Undeliverable."""
        url = media.ref
        if "://" not in url:
            answer = await self._api.call("files.info", file=media.ref)
            found = answer.get("file")
            url = str(found.get("url_private") or "") if isinstance(found, dict) else ""
        if not self._is_slacks(url):
            raise Undeliverable("The address of the file is not one of Slack: the token is not sent there.")
        headers = {"Authorization": f"Bearer {self._api.bot_token}"}
        first = True
        async for piece in http.download(self._account.http(), url, limit, headers=headers):
            if first and piece[:20].lower().startswith(_HTML) and "html" not in media.mime_type:
                raise Undeliverable("Slack did not give the file out: the app needs the scope files:read.")
            first = False
            yield piece

    def _is_slacks(self, url: str) -> bool:
        asked, own = urlsplit(url), urlsplit(self._api.settings.api_url)
        if (asked.scheme, asked.netloc) == (own.scheme, own.netloc):
            return True
        host = asked.hostname or ""
        return asked.scheme == "https" and (host == "slack.com" or host.endswith(".slack.com"))

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _record(self, key: str, file_id: str) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        records = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in records[: -MAX_RECORDS + 1]:
            old.unlink(missing_ok=True)
        with self._path(key).open("w") as file:
            file.write(file_id)
            file.flush()
            os.fsync(file.fileno())

    def _recorded(self, key: str) -> str | None:
        try:
            return self._path(key).read_text() or None
        except FileNotFoundError:
            return None


def _shared_at(file: dict[str, Any], channel: str) -> str | None:
    """The time stamp of the message that shows a file in a conversation."""
    shares = file.get("shares")
    for chats in shares.values() if isinstance(shares, dict) else ():
        messages = chats.get(channel) if isinstance(chats, dict) else None
        if isinstance(messages, list) and messages and isinstance(messages[0], dict):
            return str(messages[0].get("ts") or "") or None
    return None
