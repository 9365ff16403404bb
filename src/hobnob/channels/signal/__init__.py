"""The channel `signal`: a client of `signal-cli`, which Hobnob runs itself or finds running.

Signal delivers a message to `signal-cli` once. What arrives while Hobnob does not run waits at Signal; what
`signal-cli` has passed on and Hobnob could not store before it was killed is lost. A message has no id that
the sender could choose, so a lost receipt leaves open whether it was sent, until the recipient confirms it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    LoginNeeded,
    NotNow,
    Outgoing,
    Undeliverable,
)
from hobnob.channels.http import Unanswered
from hobnob.channels.signal import envelopes
from hobnob.channels.signal.envelopes import GROUP
from hobnob.channels.signal.events import open_http
from hobnob.channels.signal.rpc import Json, Rpc, RpcError, open_child, open_socket
from hobnob.channels.text import plain_text
from hobnob.config.channels.signal import SignalAccount
from hobnob.inbound import Address, Media
from hobnob.records import Struct
from hobnob.types import now_ms

_SEND_S = 50.0
_LINK_S = 300.0
_TYPING_S = 10.0
_LIMIT_S = 60.0
_MOST_DOUBTFUL = 100
_MOST_KNOWN = 1_000
_MOST_REACTIONS = 500
_CLOCK_MS = 2_000
_log = logging.getLogger(__name__)
_REFUSED = {
    "UNREGISTERED_FAILURE": "the recipient has no Signal account",
    "IDENTITY_FAILURE": "the safety number of the recipient has changed: trust it with signal-cli first",
}


class _Doubtful(Struct, frozen=True):
    """A part whose receipt was lost, and when it may have been sent."""

    key: str
    to: str
    from_ms: int
    until_ms: int


def measure(text: str) -> int:
    """The bytes of a message: a longer one would be sent as a file."""
    return len(plain_text(text).encode("utf-8", "replace"))


class Signal(Channel):
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        text_limit=2000,
        measure=measure,
        reactions=True,
        typing_every_s=_TYPING_S,
        media_in=True,
        media_out=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._rpc: Rpc | None = None
        self._linked: str | None = None  # the number of the phone, where no setting names it
        self._doubtful: list[_Doubtful] = []
        self._known: deque[int] = deque(maxlen=_MOST_KNOWN)
        self._reactions: dict[tuple[str, str], str] = {}

    @property
    def _settings(self) -> SignalAccount:
        settings: SignalAccount = self.account.settings
        return settings

    @property
    def _account(self) -> str | None:
        return self._settings.account or self._linked

    @property
    def _own(self) -> frozenset[str]:
        uuid = self._settings.account_uuid
        return frozenset(filter(None, (self._account, f"uuid:{uuid}" if uuid else None)))

    def _open(self) -> AbstractAsyncContextManager[Rpc]:
        transport = self._settings.transport
        if transport.kind == "managed-native":
            folder = Path(transport.config_path or self.account.folder / "signal-cli").expanduser()
            program = str(Path(transport.cli_path).expanduser())
            return open_child(program, folder, transport.startup_timeout_ms / 1000)
        if transport.socket_path:
            return open_socket(str(Path(transport.socket_path).expanduser()))
        if transport.url:
            return open_http(self.account.http(), transport.url)
        raise LoginNeeded("The setting transport.socketPath or transport.url is needed.")

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        try:
            async with self._open() as rpc:
                identity = await self._identify(rpc)
                await rpc.subscribe(identity.id)
                self._rpc = rpc
                ready(identity)
                while True:
                    await self._take(await rpc.received(), inbox)
        except (RpcError, Unanswered, Undeliverable) as error:
            raise Disconnected(f"signal-cli: {error}") from error
        finally:
            self._rpc = None

    async def _take(self, params: Json, inbox: Inbox) -> None:
        # With `subscribeReceive` the message is one level deeper.
        params = params["result"] if isinstance(params.get("result"), dict) else params
        envelope = params.get("envelope")
        if not isinstance(envelope, dict) or params.get("account", self._account) not in self._own:
            return
        try:
            people, stamps = envelopes.receipts(envelope)
            event = envelopes.inbound(envelope, self._own, with_files=not self._settings.ignore_attachments)
        except (KeyError, TypeError, ValueError, AttributeError):
            _log.warning("signal: malformed message skipped", exc_info=True)
            return
        if event is not None:
            await inbox.accept([event])
        for stamp in stamps:
            await self._proven(people, stamp, inbox)

    async def _proven(self, people: set[str], stamp: int, inbox: Inbox) -> None:
        """A receipt for a message that we do not know proves one whose receipt was lost."""
        if stamp in self._known:
            return
        addresses = {envelopes.bare(each) for each in people}
        for doubtful in self._doubtful:
            if doubtful.to in addresses and doubtful.from_ms - _CLOCK_MS <= stamp <= doubtful.until_ms:
                self._doubtful.remove(doubtful)
                self._known.append(stamp)
                await inbox.confirm(doubtful.key, envelopes.made_id(stamp, self._account or ""))
                return

    async def send(self, part: Outgoing) -> str:
        rpc, account = self._connected()
        params: Json = {**_target(part.address), "message": plain_text(part.text)}
        if part.reply_to and (quoted := envelopes.parts_of_id(part.reply_to)):
            params |= {"quoteTimestamp": quoted[0], "quoteAuthor": quoted[1], "quoteMessage": ""}
        if part.file is not None:
            params["attachments"] = [await _data_uri(part)]
        began = now_ms()
        try:
            result = await rpc.call("send", _SEND_S, account=account, **params)
        except RpcError as error:
            raise _refusal(error) from error
        except Undeliverable:  # it never left
            raise
        except BaseException:
            doubtful = _Doubtful(part.key, str(envelopes.bare(part.address.to)), began, now_ms() + _CLOCK_MS)
            self._doubtful = [*self._doubtful, doubtful][-_MOST_DOUBTFUL:]
            raise
        stamp = _checked(result)
        self._known.append(stamp)
        return envelopes.made_id(stamp, account)

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        rpc, account = self._connected()
        parts = envelopes.parts_of_id(message_id)
        shown = emoji or self._reactions.get((address.to, message_id))
        if parts is None or shown is None:
            return
        params = {**_target(address), "emoji": shown, "targetAuthor": parts[1], "targetTimestamp": parts[0]}
        if emoji is None:
            params["remove"] = True
        await self._best_effort(rpc, "sendReaction", account=account, **params)
        self._reactions[address.to, message_id] = shown
        while len(self._reactions) > _MOST_REACTIONS:
            del self._reactions[next(iter(self._reactions))]

    async def typing(self, address: Address) -> None:
        rpc, account = self._connected()
        await self._best_effort(rpc, "sendTyping", account=account, **_target(address))

    async def _best_effort(self, rpc: Rpc, method: str, **params: Any) -> None:
        try:
            await rpc.call(method, **params)
        except RpcError as error:
            raise _refusal(error) from error

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        rpc, account = self._connected()
        if (media.size or 0) > limit:
            raise Undeliverable(f"The file is larger than {limit:,} bytes.")
        try:
            found = await rpc.call("getAttachment", _SEND_S, account=account, **orjson.loads(media.ref))
        except (RpcError, Unanswered) as error:
            raise Undeliverable(f"signal-cli does not give the file: {error}") from error
        encoded = found.get("data") if isinstance(found, dict) else found
        try:
            content = base64.b64decode(encoded or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Undeliverable("The file that signal-cli gives cannot be decoded.") from None
        if len(content) > limit:
            raise Undeliverable(f"The file is larger than {limit:,} bytes.")
        yield content

    async def probe(self) -> Identity:
        try:
            if self._rpc is not None:
                return await self._identify(self._rpc)
            async with self._open() as rpc:
                return await self._identify(rpc)
        except (RpcError, Unanswered, Undeliverable) as error:
            raise Disconnected(f"signal-cli: {error}") from error

    async def login(self, show: Callable[[str], None]) -> Identity:
        """Link this machine as a device of a phone, which scans the code that is shown."""
        try:
            async with self._open() as rpc:
                found = await rpc.call("startLink")
                uri = str(found.get("deviceLinkUri") or "") if isinstance(found, dict) else ""
                if not uri.startswith("sgnl://"):
                    raise Disconnected("signal-cli gave no code to scan.")
                show(uri)
                done = await rpc.call("finishLink", _LINK_S, deviceLinkUri=uri, deviceName="Hobnob")
                number = done.get("number") if isinstance(done, dict) else None
                number = str(number) if number else (await self._identify(rpc)).id
        except (RpcError, Unanswered, Undeliverable) as error:
            raise Disconnected(f"signal-cli could not link the device: {error}") from error
        if self._settings.account not in (None, number):
            raise LoginNeeded(f"The phone {number} was linked, and the setting account names another one.")
        return Identity(number, number)

    async def logout(self) -> None:
        if self._settings.transport.kind != "managed-native":
            return
        try:
            async with self._open() as rpc:
                account = (await self._identify(rpc)).id
                await rpc.call("deleteLocalAccountData", account=account, ignoreRegistered=True)
        except LoginNeeded:
            return  # nothing is linked
        except (RpcError, Unanswered, Undeliverable) as error:
            raise Disconnected(f"signal-cli: {error}") from error

    async def _identify(self, rpc: Rpc) -> Identity:
        account, numbers = self._settings.account, await _accounts(rpc)
        if account is None and len(numbers) > 1:
            raise LoginNeeded("signal-cli has several accounts: set channels.signal.account to one of them.")
        if account is None and not numbers:
            raise LoginNeeded("No phone is linked yet: hobnob channels login signal")
        if account is not None and account not in numbers:
            raise LoginNeeded(f"signal-cli has no account {account}. Link it: hobnob channels login signal")
        found = account or numbers[0]
        self._linked = found
        return Identity(found, found)

    def _connected(self) -> tuple[Rpc, str]:
        if self._rpc is None or self._account is None:
            raise NotNow("not connected yet", 1.0, scope="account")
        return self._rpc, self._account


async def _accounts(rpc: Rpc) -> list[str]:
    found = await rpc.call("listAccounts")
    rows = found if isinstance(found, list) else []
    return [str(row["number"]) for row in rows if isinstance(row, dict) and row.get("number")]


def _target(address: Address) -> Json:
    to = envelopes.bare(address.to.strip())
    if to.startswith(GROUP):
        return {"groupId": to.removeprefix(GROUP)}
    if not to:
        raise Undeliverable("There is no recipient.")
    return {"recipient": [to]}


async def _data_uri(part: Outgoing) -> str:
    assert part.file is not None
    content = await asyncio.to_thread(part.file.path.read_bytes)
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in part.file.name)[:100]
    return f"data:{part.file.mime_type};filename={name};base64,{base64.b64encode(content).decode()}"


def _checked(result: Any) -> int:
    """The time of a message that was sent. A message to a group counts if it reached anybody."""
    rows = result.get("results") if isinstance(result, dict) else None
    types = [str(row.get("type")) for row in rows or [] if isinstance(row, dict)]
    if not isinstance(result, dict) or not isinstance(result.get("timestamp"), int):
        raise Unanswered("signal-cli gave no receipt.")
    if not types or "SUCCESS" in types:
        return int(result["timestamp"])
    if "RATE_LIMIT_FAILURE" in types:
        raise NotNow("Signal limits how much the bot may send", _after_s(rows))
    if types[0] == "NETWORK_FAILURE":
        raise Undeliverable("signal-cli could not reach Signal.", again=True)
    raise Undeliverable(f"The message was not sent: {_REFUSED.get(types[0], types[0])}.")


def _after_s(rows: Any) -> float:
    """How long Signal wants us to wait."""
    found = [row.get("retryAfterSeconds") for row in rows or [] if isinstance(row, dict)]
    return max((float(each) for each in found if isinstance(each, (int, float))), default=_LIMIT_S)


def _refusal(error: RpcError) -> Exception:
    if error.code == -5:
        failed = error.data.get("response")
        rows = failed.get("results") if isinstance(failed, dict) else None
        return NotNow("Signal limits how much the bot may send", _after_s(rows))
    if error.code == -3:  # the connection to Signal failed: it may have been sent
        return Unanswered(f"signal-cli: {error}")
    return Undeliverable(f"signal-cli refused it: {error}")


def channel(account: Account) -> Channel:
    return Signal(account)
