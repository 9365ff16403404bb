"""Encrypted rooms of Matrix, through the library matrix-nio (the extra `matrix-e2e`).

Only the cryptography is the library's: its keys are in a database in the folder of the account. Receiving,
positions and sending stay ours. Devices are not verified; keys are shared with all devices of all members.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hobnob.channels import LoginNeeded, Undeliverable
from hobnob.channels.matrix.api import Login

Json = dict[str, Any]
_REQUEST_S = 30.0
_log = logging.getLogger(__name__)


def _library() -> Any:
    try:
        importlib.import_module("vodozemac")
        return importlib.import_module("nio")
    except ImportError as error:
        raise LoginNeeded("Encrypted rooms need more packages: pip install 'hobnob[matrix-e2e]'.") from error


class Crypto:
    """The keys of one device."""

    def __init__(self, nio: Any, client: Any) -> None:
        self._nio = nio
        self._client = client
        self._sharing = asyncio.Lock()

    @classmethod
    async def open(cls, login: Login, folder: Path) -> Crypto:
        """Open the keys of a device, or make new ones, and upload them. Raises LoginNeeded."""
        nio = _library()
        if not login.device_id:
            raise LoginNeeded("Encryption needs an access token that belongs to a device.")
        config = nio.AsyncClientConfig(
            store_sync_tokens=False,
            encryption_enabled=True,
            max_limit_exceeded=1,
            max_timeouts=1,
            request_timeout=_REQUEST_S,
        )
        client = nio.AsyncClient(login.homeserver, login.user_id, login.device_id, str(folder), config)
        client.restore_login(login.user_id, login.device_id, login.access_token)
        crypto = cls(nio, client)
        try:
            await crypto._upkeep()
        except BaseException:
            await crypto.close()
            raise
        return crypto

    async def received(self, sync: Json) -> None:
        """Take the keys that a sync brings, and do what is due: upload, query and claim keys."""
        response = self._nio.SyncResponse.from_dict(
            {
                "next_batch": sync["next_batch"],
                "to_device": sync.get("to_device") or {"events": []},
                "device_lists": sync.get("device_lists") or {"changed": [], "left": []},
                "device_one_time_keys_count": sync.get("device_one_time_keys_count") or {},
                "rooms": {"join": {}, "invite": {}, "leave": {}},
                "presence": {"events": []},
            }
        )
        if not isinstance(response, self._nio.SyncResponse):
            _log.warning("Matrix: keys in a sync not understood: %s", response)
            return
        await self._client.receive_response(response)
        await self._upkeep()

    async def _upkeep(self) -> None:
        client = self._client
        if client.should_upload_keys:
            await self._done(client.keys_upload())
        if client.should_query_keys:
            await self._done(client.keys_query())
        if client.should_claim_keys:
            await self._done(client.keys_claim(client.get_users_for_key_claiming()))
        await client.send_to_device_messages()

    async def _done(self, request: Any) -> None:
        """Wait for a request about keys. Raises Undeliverable: nothing that depends on it was sent."""
        try:
            answer = await request
        except (OSError, TimeoutError, self._nio.LocalProtocolError) as error:
            raise Undeliverable(f"Keys were not exchanged: {type(error).__name__}.", again=True) from error
        if isinstance(answer, self._nio.ErrorResponse):
            raise Undeliverable(f"Keys were not exchanged: {answer.status_code}.", again=True)

    def decrypt(self, room_id: str, event: Json) -> Json | None:
        """An encrypted event in clear; None if its key is not known, or it is not valid."""
        try:
            parsed = self._nio.Event.parse_encrypted_event(event)
            if not isinstance(parsed, self._nio.MegolmEvent):
                return None
            parsed.room_id = room_id
            clear = self._client.decrypt_event(parsed)
        except self._nio.EncryptionError as error:
            _log.info("Matrix: message in %s not decrypted yet: %s", room_id, error)
            return None
        source: Json = clear.source
        sent = {name: event.get(name) for name in ("event_id", "sender", "origin_server_ts", "unsigned")}
        return {**source, **sent}

    async def encrypt(
        self, room_id: str, members: Iterable[str], kind: str, content: Json
    ) -> tuple[str, Json]:
        """An event for the devices of all members of a room. Raises Undeliverable."""
        async with self._sharing:
            client, olm = self._client, self._client.olm
            room = client.rooms.get(room_id)
            if room is None:
                room = client.rooms[room_id] = self._nio.MatrixRoom(room_id, client.user_id, encrypted=True)
            wanted = set(members)
            for user in set(room.users) - wanted:
                room.remove_member(user)
            for user in wanted - set(room.users):
                room.add_member(user, None, None)
            room.members_synced = True
            olm.update_tracked_users(room)
            if client.should_query_keys:
                await self._done(client.keys_query())
            if olm.should_share_group_session(room_id):
                await self._done(client.share_group_session(room_id, ignore_unverified_devices=True))
            encrypted: tuple[str, Json] = client.encrypt(room_id, kind, content)
            return encrypted

    def members_changed(self, room_id: str) -> None:
        """Use a new key from now on: who left must not read on."""
        if room_id in self._client.olm.outbound_group_sessions:
            self._client.invalidate_outbound_session(room_id)

    def encrypt_file(self, plain: bytes) -> tuple[bytes, Json]:
        attachments = importlib.import_module("nio.crypto.attachments")
        encrypted: tuple[bytes, Json] = attachments.encrypt_attachment(plain)
        return encrypted

    def decrypt_file(self, encrypted: bytes, file: Json) -> bytes:
        """Raises Undeliverable if the content was changed on the way."""
        attachments = importlib.import_module("nio.crypto.attachments")
        try:
            plain: bytes = attachments.decrypt_attachment(
                encrypted, file["key"]["k"], file["hashes"]["sha256"], file["iv"]
            )
        except (KeyError, TypeError, ValueError, self._nio.EncryptionError) as error:
            raise Undeliverable("The encrypted file is not valid.") from error
        return plain

    async def close(self) -> None:
        await self._client.close()
