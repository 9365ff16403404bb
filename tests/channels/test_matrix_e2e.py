"""Encrypted rooms of Matrix: a real gateway, Synapse, and a person with a client that encrypts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.channels.matrix_platform import CLIENT, MatrixPlatform, escaped
from tests.channels.test_matrix import MAIN, channel_of, connected, delivered
from tests.integration.helpers import texts
from tests.waiting import LIMIT_S

from hobnob.channels import Outgoing, OutgoingFile, Undeliverable
from hobnob.inbound import Address

nio = pytest.importorskip("nio", reason="matrix-nio is not installed: pip install 'hobnob[matrix-e2e]'")
pytest.importorskip("vodozemac", reason="matrix-nio is installed without e2e")
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of libraries of matrix-nio
]


class Person:
    """Ann, with a client that encrypts, in an encrypted room with the bot."""

    def __init__(self, matrix: MatrixPlatform, folder: Path) -> None:
        self.matrix = matrix
        self.room = ""
        self.heard: list[Any] = []
        self._folder = folder

    async def start(self) -> None:
        matrix = self.matrix
        self._folder.mkdir()
        config = nio.AsyncClientConfig(encryption_enabled=True, store_sync_tokens=False)
        self.client = nio.AsyncClient(
            matrix.server.url, matrix.user_id("ann"), store_path=str(self._folder), config=config
        )
        assert isinstance(await self.client.login("password"), nio.LoginResponse)
        await self._sync(0)
        algorithm = {"algorithm": "m.megolm.v1.aes-sha2"}
        encryption = {"type": "m.room.encryption", "state_key": "", "content": algorithm}
        self.room = await matrix.new_room(
            "ann", invite=[matrix.user_id("bot")], is_direct=True, initial_state=[encryption]
        )

    async def until(self, condition: Any) -> None:
        """Receive until a condition holds."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                sync = await self._sync(2000)
                joined = sync.rooms.join.get(self.room)
                for event in joined.timeline.events if joined else []:
                    if event.sender == self.matrix.user_id("bot") and isinstance(event, nio.RoomMessage):
                        self.heard.append(event)

    async def _sync(self, timeout: int) -> Any:
        client = self.client
        sync = await client.sync(timeout=timeout)
        if client.should_upload_keys:
            await client.keys_upload()
        if client.should_query_keys:
            await client.keys_query()
        if client.should_claim_keys:
            await client.keys_claim(client.get_users_for_key_claiming())
        await client.send_to_device_messages()
        return sync

    async def sees_bot(self) -> None:
        bot = self.matrix.user_id("bot")

        def known() -> bool:
            room = self.client.rooms.get(self.room)
            return room is not None and bot in room.users and not room.users[bot].invited

        await self.until(known)

    async def say(self, text: str) -> str:
        content = {"msgtype": "m.text", "body": text}
        sent = await self.client.room_send(
            self.room, "m.room.message", content, ignore_unverified_devices=True
        )
        assert isinstance(sent, nio.RoomSendResponse), sent
        event_id: str = sent.event_id
        return event_id

    async def texts(self, count: int) -> list[str]:
        await self.until(lambda: len(self.heard) >= count)
        return [event.body for event in self.heard]


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[Person]:
    matrix = MatrixPlatform()
    await matrix.start()
    person = Person(matrix, tmp_path / "ann")
    await person.start()
    yield person
    await person.client.close()
    await matrix.stop()


async def test_a_message_in_an_encrypted_room_is_answered_encrypted(ann: Person, tmp_path: Path) -> None:
    async with connected(ann.matrix, tmp_path, "A secret answer.", encryption=True) as gateway:
        await ann.sees_bot()
        await ann.say("a secret question")
        assert await ann.texts(1) == ["A secret answer."]
        assert all(event.decrypted for event in ann.heard)
        assert await texts(gateway, MAIN, "user") == ["a secret question"]
        path = f"{CLIENT}/rooms/{escaped(ann.room)}/messages"
        stored = await ann.matrix.call("ann", "GET", path, dir="b", limit="100")
        assert "secret" not in str(stored)


async def test_what_was_said_without_the_gateway_is_read_with_kept_keys(ann: Person, tmp_path: Path) -> None:
    async with connected(ann.matrix, tmp_path, "One.", encryption=True):
        await ann.sees_bot()
        await ann.say("first")
        await ann.texts(1)
    await ann.say("second")
    async with connected(ann.matrix, tmp_path, "Two.", encryption=True) as gateway:
        await ann.texts(2)
        assert await texts(gateway, MAIN, "user") == ["first", "second"]


async def test_the_same_part_sent_again_is_one_encrypted_message(ann: Person, tmp_path: Path) -> None:
    async with connected(ann.matrix, tmp_path, encryption=True) as gateway:
        await ann.sees_bot()
        part = Outgoing(key="1", address=Address(ann.room), text="once")
        assert await channel_of(gateway).send(part) == await channel_of(gateway).send(part)
        assert await ann.texts(1) == ["once"]


async def test_files_are_encrypted_in_both_directions(ann: Person, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_bytes(b"from the bot")
    async with connected(ann.matrix, tmp_path, encryption=True) as gateway:
        await ann.sees_bot()
        file = OutgoingFile(path=tmp_path / "out.txt", name="out.txt", mime_type="text/plain")
        await channel_of(gateway).send(Outgoing(key="1", address=Address(ann.room), file=file))
        await ann.texts(1)
        received = ann.heard[0]
        raw = await ann.matrix._download(received.url)
        assert raw != b"from the bot"
        attachments = nio.crypto.attachments
        key, digest, iv = received.key["k"], received.hashes["sha256"], received.iv
        assert attachments.decrypt_attachment(raw, key, digest, iv) == b"from the bot"

        data, keys = attachments.encrypt_attachment(b"from ann")
        sent = await ann.matrix.call("ann", "POST", "/_matrix/media/v3/upload", data)
        content = {"msgtype": "m.file", "body": "notes.txt", "file": {**keys, "url": sent["content_uri"]}}
        await ann.client.room_send(ann.room, "m.room.message", content, ignore_unverified_devices=True)
        await ann.texts(2)
        [saved] = [path for path in tmp_path.rglob("*notes*") if path.is_file()]
        assert saved.read_bytes() == b"from ann"
        assert (await delivered(gateway, MAIN)).state == "delivered"


@pytest.mark.promise("matrix.nothing_in_clear")
async def test_nothing_is_sent_in_clear_to_an_encrypted_room(ann: Person, tmp_path: Path) -> None:
    async with connected(ann.matrix, tmp_path) as gateway:
        await ann.sees_bot()
        with pytest.raises(Undeliverable, match="encrypted"):
            await channel_of(gateway).send(Outgoing(key="1", address=Address(ann.room), text="hello"))
