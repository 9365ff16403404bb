"""The connection of a node to its gateway: sign in, wait for approval, run commands, connect again.

A client in Python to copy: `Link(url, token, identity, …).run()` until it is cancelled. Commands are async
functions from parameters to an answer; `Refused` is an error the caller reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from hobnob.errors import HobnobError, Unauthenticated
from hobnob.node_host.identity import Identity

MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
APPROVAL_PAUSE_S = 5.0
STABLE_S = 10.0  # a connection that lasted less long makes the next pause longer
NOT_A_GATEWAY = (ValueError, LookupError, TypeError, AttributeError)  # what its frames lead to
HANDSHAKE_S = 15.0
CHUNK_CHARS = 16_000
MAX_ANSWER_CHARS = 900_000  # below the limit of the gateway
MAX_COMMANDS = 64  # in flight
_log = logging.getLogger(__name__)

Progress = Callable[[str], Awaitable[None]]
Command = Callable[[dict[str, Any], Progress], Awaitable[Any]]


class Refused(Exception):
    """A command that is not run, or failed, with the code and message that the caller gets."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


class SignInRefused(Exception):
    """The gateway refused the connection. `waiting`: an owner has to approve the node first."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        details = error.get("details") or {}
        self.code = str(details.get("code", ""))
        self.message = str(error.get("message", "refused"))
        self.fix = str(details.get("fix", ""))
        self.waiting = error.get("code") == "NOT_PAIRED"
        self.final = self.code.startswith(("AUTH_TOKEN", "AUTH_PASSWORD", "DEVICE_AUTH"))
        super().__init__(self.message)


class Link:
    """One node at one gateway.

    `token` is asked before each attempt; `keep_token` gets the node's own token, which is good for nothing
    else. `say` tells a person what happens.
    """

    def __init__(
        self,
        url: str,
        identity: Identity,
        commands: Mapping[str, Command],
        *,
        client: Mapping[str, str],
        token: Callable[[], str],
        keep_token: Callable[[str | None], None] = lambda token: None,
        caps: Sequence[str] = ("system",),
        say: Callable[[str], None] = _log.info,
    ) -> None:
        self._url = url
        self._identity = identity
        self._commands = commands
        self._client = client
        self._token = token
        self._keep_token = keep_token
        self._caps = caps
        self._say = say
        self._socket: ClientConnection | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._requests = 0
        self._told = ""

    async def run(self) -> None:
        """Stay connected until cancelled. Raises Unauthenticated when the token is wrong."""
        pause = MIN_PAUSE_S
        while True:
            wait_s, began = pause, asyncio.get_running_loop().time()
            try:
                await self._live()
                if asyncio.get_running_loop().time() - began > STABLE_S:
                    pause = wait_s = MIN_PAUSE_S
            except SignInRefused as refusal:
                if refusal.waiting:
                    self._tell(f"Waiting for approval. {refusal.fix}")
                    wait_s = APPROVAL_PAUSE_S
                elif not refusal.final:
                    self._tell(f"The gateway refused: {refusal.message}")
                elif not self._forget_token():
                    raise Unauthenticated(
                        f"The gateway refused: {refusal.message}",
                        reason=refusal.code,
                        fix=refusal.fix or None,
                    ) from None
            except (OSError, TimeoutError, WebSocketException, *NOT_A_GATEWAY) as error:
                self._tell(f"No connection to {self._url}: {error or type(error).__name__}. Trying again.")
            # With jitter: the nodes of a gateway that restarts do not all come back at the same moment.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311 - not for secrets
            pause = min(2 * pause, MAX_PAUSE_S)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the gateway. Raises Refused, or ConnectionClosed."""
        if self._socket is None:
            raise Refused("NOT_CONNECTED", "The node is not connected.")
        self._requests += 1
        name = f"r{self._requests}"
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"type": "req", "id": name, "method": method, "params": params})
            frame = await answer
        finally:
            self._answers.pop(name, None)
        if not frame.get("ok"):
            error = frame.get("error") or {}
            raise Refused(str(error.get("code", "")), str(error.get("message", "refused")))
        found: dict[str, Any] = frame.get("payload") or {}
        return found

    # -- one connection

    async def _live(self) -> None:
        """Connect and serve until the connection is lost."""
        async with connect(self._url, compression=None, open_timeout=HANDSHAKE_S, max_size=2**23) as socket:
            await self._sign_in(socket)
            self._socket = socket
            try:
                async for text in socket:
                    self._dispatch(json.loads(text))
            except ConnectionClosed:
                pass  # said below
            finally:
                self._socket = None
                await self._stop_commands()
        self._tell(f"The connection was closed: {socket.close_reason or socket.close_code}. Trying again.")

    async def _sign_in(self, socket: ClientConnection) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            challenge = json.loads(await socket.recv())["payload"]
            params = self._identity.connect_params(
                challenge,
                self._token(),
                client=self._client,
                caps=self._caps,
                commands=sorted(self._commands),
            )
            await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
            answer = json.loads(await socket.recv())
        if not answer.get("ok"):
            raise SignInRefused(answer.get("error") or {})
        own = (answer["payload"].get("auth") or {}).get("deviceToken")
        if own:
            self._keep_token(own)
        self._tell(f"Connected to {self._url} as node {self._identity.node_id[:12]}.")

    def _dispatch(self, frame: dict[str, Any]) -> None:
        if frame.get("type") == "res":
            waiting = self._answers.get(str(frame.get("id")))
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
            return
        payload = frame.get("payload") or {}
        match frame.get("event"):
            case "node.invoke.request":
                self._start(payload)
            case "node.invoke.cancel":
                if task := self._running.get(str(payload.get("invokeId"))):
                    task.cancel()
            case "node.pair.resolved":
                self._say(f"An owner decided: {payload.get('decision')}.")

    # -- commands

    def _start(self, request: dict[str, Any]) -> None:
        """Begin a command in a task of its own. It ends with its answer, a cancel, or the connection."""
        name = str(request["id"])
        task = asyncio.create_task(self._run(name, request), name=f"command {name}")
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _run(self, name: str, request: dict[str, Any]) -> None:
        seq = 0

        async def progress(text: str) -> None:
            nonlocal seq
            for start in range(0, len(text), CHUNK_CHARS):
                chunk = text[start : start + CHUNK_CHARS]
                await self.call("node.invoke.progress", invokeId=name, seq=seq, chunk=chunk)
                seq += 1

        command, result = str(request.get("command")), dict[str, Any]()
        try:
            if len(self._running) > MAX_COMMANDS:
                raise Refused("BUSY", f"This node works on {MAX_COMMANDS} commands already.")
            if command not in self._commands:
                raise Refused("UNKNOWN_COMMAND", f"This node has no command {command[:100]!r}.")
            params = json.loads(request.get("paramsJSON") or "{}") or {}
            answer = json.dumps(await self._commands[command](params, progress))
            if len(answer) > MAX_ANSWER_CHARS:
                raise Refused("RESULT_TOO_LARGE", f"The answer has {len(answer):,} characters.")
            result = {"ok": True, "payloadJSON": answer}
        except Refused as refusal:
            result = {"ok": False, "error": {"code": refusal.code, "message": refusal.message}}
        except HobnobError as refusal:
            result = {"ok": False, "error": {"code": refusal.reported_code, "message": refusal.message}}
        except ConnectionClosed:
            return
        except Exception as fault:
            _log.exception("command %s failed", command)
            message = f"{command} failed: {type(fault).__name__}: {fault}"
            result = {"ok": False, "error": {"code": "FAILED", "message": message[:1000]}}
        with contextlib.suppress(ConnectionClosed, Refused):
            await self.call("node.invoke.result", id=name, nodeId=self._identity.node_id, **result)

    async def _stop_commands(self) -> None:
        """Nobody reads the answers any more, so the commands are stopped."""
        tasks = list(self._running.values())
        for waiting in self._answers.values():
            waiting.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, frame: dict[str, Any]) -> None:
        if self._socket is not None:
            await self._socket.send(json.dumps(frame))

    def _forget_token(self) -> bool:
        """Drop the node's own token, which was refused. False when another one was refused."""
        refused = self._token()
        self._keep_token(None)
        return self._token() != refused

    def _tell(self, text: str) -> None:
        """Say what happens, once while it stays the same."""
        if text != self._told:
            self._told = text
            self._say(text)
