"""Names of people and conversations, kept for a while. A message does not wait long for a name."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from hobnob.channels import LoginNeeded, NotNow, Undeliverable
from hobnob.channels.http import Unanswered
from hobnob.channels.slack.events import Conversation, Names, Person
from hobnob.channels.slack.web_api import Refused, WebApi
from hobnob.keys import ChatType

MAX_KEPT = 2_000
KEPT_S = 3_600.0
_UNKNOWN_KEPT_S = 60.0
_LOOKUP_S = 2.0  # of the three seconds in which Slack expects an answer
_AT_ONCE = 8
_log = logging.getLogger(__name__)
Value = TypeVar("Value")


class _Kept(Generic[Value]):
    """Values with an expiry. When full, the oldest goes."""

    def __init__(self, look_up: Callable[[str], Awaitable[Value]], unknown: Value) -> None:
        self._look_up = look_up
        self._unknown = unknown
        self._values: dict[str, tuple[float, Value]] = {}
        self._paused_until = 0.0

    def get(self, key: str) -> Value:
        return self._values.get(key, (0.0, self._unknown))[1]

    def put(self, key: str, value: Value, kept_s: float) -> None:
        self._values.pop(key, None)
        self._values[key] = (time.monotonic() + kept_s, value)
        while len(self._values) > MAX_KEPT:
            del self._values[next(iter(self._values))]

    async def learn(self, keys: Iterable[str]) -> None:
        """Look up what is not known, several at once. What cannot be found stays nameless for a minute."""
        now = time.monotonic()
        missing = [key for key in dict.fromkeys(keys) if self._values.get(key, (0.0,))[0] < now]
        if not missing or now < self._paused_until:
            return
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(key: str) -> None:
            async with slots:
                if time.monotonic() >= self._paused_until:
                    await self._one(key)

        try:
            async with asyncio.timeout(_LOOKUP_S):
                await asyncio.gather(*map(one, missing))
        except TimeoutError:
            _log.info("names not found in time: messages are passed on without them")

    async def _one(self, key: str) -> None:
        try:
            value, kept_s = await self._look_up(key), KEPT_S
        except NotNow as limited:
            self._paused_until = time.monotonic() + limited.after_s
            return
        except (Undeliverable, Unanswered, LoginNeeded) as error:
            if isinstance(error, Refused) and error.code == "missing_scope":
                _log.warning("names stay unknown: %s", error)
                self._paused_until = time.monotonic() + KEPT_S
            value, kept_s = self.get(key), _UNKNOWN_KEPT_S
        self.put(key, value, kept_s)


class Directory:
    def __init__(self, api: WebApi) -> None:
        self._api = api
        self._people: _Kept[Person] = _Kept(self._person, Person())
        self._conversations: _Kept[Conversation] = _Kept(self._conversation, Conversation())
        self._direct: _Kept[str] = _Kept(self._direct_with, "")

    async def names(self, people: Iterable[str], conversations: Iterable[str]) -> Names:
        """What is known about these people and conversations, after looking up the rest."""
        people, conversations = set(people), set(conversations)
        await asyncio.gather(self._people.learn(people), self._conversations.learn(conversations))
        return Names(
            {user: self._people.get(user) for user in people},
            {channel: self._conversations.get(channel) for channel in conversations},
        )

    def remember_direct(self, user: str, channel: str) -> None:
        self._direct.put(user, channel, KEPT_S)

    async def direct_with(self, user: str) -> str:
        """The direct conversation with a person. Opens it if there is none."""
        if not (channel := self._direct.get(user)):
            channel = await self._direct_with(user)
            self.remember_direct(user, channel)
        return channel

    async def _person(self, user: str) -> Person:
        found = _part(await self._api.call("users.info", user=user, timeout_s=_LOOKUP_S), "user")
        profile = _part(found, "profile")
        names = (profile.get("display_name"), profile.get("real_name"), found.get("name"))
        name = next((n for n in names if isinstance(n, str) and n), "")
        is_bot = bool(found.get("is_bot")) or user == "USLACKBOT"
        return Person(name[:200], str(found.get("name") or "")[:200], is_bot)

    async def _conversation(self, channel: str) -> Conversation:
        answer = await self._api.call("conversations.info", channel=channel, timeout_s=_LOOKUP_S)
        found = _part(answer, "channel")
        kind: ChatType = "direct" if found.get("is_im") else "group" if found.get("is_mpim") else "channel"
        return Conversation(str(found.get("name") or "")[:200], kind)

    async def _direct_with(self, user: str) -> str:
        answer = await self._api.call("conversations.open", users=user)
        return str(_part(answer, "channel").get("id") or "")


def _part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}
