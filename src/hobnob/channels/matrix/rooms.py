"""Rooms of a Matrix account: their names and members, which ones are direct chats, and invitations."""

from __future__ import annotations

import logging
from typing import Any

from hobnob.channels import NotNow, Undeliverable
from hobnob.channels.http import Unanswered
from hobnob.channels.matrix.api import CLIENT, Api, Refused
from hobnob.channels.matrix.events import Room

_MOST_ROOMS = 200
_JOIN_S = 60.0
_log = logging.getLogger(__name__)


class Rooms:
    """What is known about rooms, until an event says that it changed."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, Room] = {}
        self._direct: dict[str, list[str]] = {}
        self._invited: dict[str, tuple[str, bool]] = {}

    async def get(self, room_id: str) -> Room:
        """A room with its members. If the homeserver does not tell, it counts as a group."""
        if (room := self._known.get(room_id)) is None:
            room = await self._load(room_id)
            self._known[room_id] = room
            while len(self._known) > _MOST_ROOMS:
                del self._known[next(iter(self._known))]
        marked = any(room_id in rooms for rooms in self._direct.values())
        is_small = 1 <= len(room.members) <= 2
        room.is_direct = is_small and (marked or room_id not in self._api.settings.groups)
        return room

    def forget(self, room_id: str) -> None:
        self._known.pop(room_id, None)

    async def _load(self, room_id: str) -> Room:
        room = Room(room_id)
        try:
            found = await self._api.call("GET", CLIENT, "rooms", room_id, "joined_members")
            joined = found.get("joined")
            for user, member in joined.items() if isinstance(joined, dict) else ():
                room.members[user] = str((member or {}).get("display_name") or "")
        except Refused as error:
            _log.info("Matrix room %s: members unknown: %s", room_id, error)
            return room
        room.name = str((await self._state(room_id, "m.room.name") or {}).get("name", ""))
        room.is_encrypted = await self._state(room_id, "m.room.encryption") is not None
        return room

    async def _state(self, room_id: str, kind: str) -> dict[str, Any] | None:
        try:
            return await self._api.call("GET", CLIENT, "rooms", room_id, "state", kind, "")
        except Refused:
            return None

    def received(self, sync: dict[str, Any]) -> None:
        """Note direct rooms and invitations of a sync."""
        for event in (sync.get("account_data") or {}).get("events") or []:
            if event.get("type") == "m.direct" and isinstance(event.get("content"), dict):
                content = event["content"].items()
                self._direct = {user: list(rooms) for user, rooms in content if isinstance(rooms, list)}
        rooms = sync.get("rooms") or {}
        for room_id, data in (rooms.get("invite") or {}).items():
            for event in (data.get("invite_state") or {}).get("events") or []:
                if event.get("type") == "m.room.member" and event.get("state_key") == self._api.me.user_id:
                    is_direct = (event.get("content") or {}).get("is_direct") is True
                    self._invited[room_id] = (str(event.get("sender")), is_direct)
        for room_id in [*(rooms.get("leave") or {}), *(rooms.get("join") or {})]:
            self._invited.pop(room_id, None)

    async def accept_invitations(self) -> None:
        """Join rooms we are invited to, as far as `autoJoin` says so. A failure is tried again next time."""
        for room_id, (inviter, is_direct) in [*self._invited.items()]:
            settings = self._api.settings
            listed = {room_id, inviter} & set(settings.auto_join_allowlist)
            if settings.auto_join == "off" or (settings.auto_join == "allowlist" and not listed):
                _log.info("Matrix: %s invited the bot to %s; autoJoin does not accept it", inviter, room_id)
                del self._invited[room_id]
                continue
            try:
                await self._api.call("POST", CLIENT, "join", room_id, json={}, timeout_s=_JOIN_S)
                if is_direct:
                    await self._mark_direct(room_id, inviter)
            except Refused as error:
                _log.warning("Matrix: invitation of %s to %s not accepted: %s", inviter, room_id, error)
            except (NotNow, Undeliverable, Unanswered) as error:
                _log.info("Matrix: invitation to %s is tried again: %s", room_id, error)
                continue
            self._invited.pop(room_id, None)

    async def _mark_direct(self, room_id: str, user_id: str) -> None:
        """Record that a room is a direct chat, where other clients of the account see it too."""
        rooms = self._direct.setdefault(user_id, [])
        if room_id not in rooms:
            rooms.append(room_id)
            me = self._api.me.user_id
            await self._api.call("PUT", CLIENT, "user", me, "account_data", "m.direct", json=self._direct)
