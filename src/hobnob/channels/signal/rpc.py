"""JSON-RPC with `signal-cli`: with a child process over its pipes, or with a daemon over its socket.

A child ends when its input ends, so none is left behind when the gateway is killed, and there is no port that
other users of the machine could reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from hobnob import json_input
from hobnob.channels import Disconnected, LoginNeeded
from hobnob.channels.http import Unanswered

CALL_S = 30.0
_LINE_BYTES = 64 * 1024 * 1024  # files come in one line
_CHUNK = 256 * 1024
_MAX_WAITING = 200  # messages that are not accepted yet; then nothing more is read
_STDERR_LINES = 5
_END_S = 5.0
_log = logging.getLogger(__name__)

Json = dict[str, Any]


class RpcError(Exception):
    """`signal-cli` refused a call."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data: Json = data if isinstance(data, dict) else {}

    @classmethod
    def of(cls, error: Json) -> RpcError:
        code = error.get("code")
        text = str(error.get("message", ""))[:300]
        return cls(code if isinstance(code, int) else 0, text, error.get("data"))


class Rpc(ABC):
    """A connection to `signal-cli`. `serve` must run for messages to be received."""

    def __init__(self) -> None:
        self._received: asyncio.Queue[Json] = asyncio.Queue(_MAX_WAITING)
        self._ended = ""

    @abstractmethod
    async def call(self, method: str, timeout_s: float = CALL_S, **params: Any) -> Any:
        """The result of a call. Raises RpcError, or Unanswered if the connection ended meanwhile."""

    @abstractmethod
    async def subscribe(self, account: str) -> None:
        """Begin to receive the messages of an account."""

    @abstractmethod
    async def serve(self) -> None:
        """Read until the connection ends."""

    async def received(self) -> Json:
        """The next message that was received. Raises Disconnected when the connection has ended."""
        while True:
            if self._received.empty() and self._ended:
                raise Disconnected(self._ended)
            message = await self._received.get()
            if message:
                return message

    def _end(self, why: str) -> None:
        self._ended = why
        with contextlib.suppress(asyncio.QueueFull):
            self._received.put_nowait({})  # wakes `received`


class StreamRpc(Rpc):
    """JSON-RPC in lines, in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def subscribe(self, account: str) -> None:
        await self.call("subscribeReceive", account=account)

    async def call(self, method: str, timeout_s: float = CALL_S, **params: Any) -> Any:
        if self._ended:
            raise Unanswered(self._ended)
        number = next(self._ids)
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(orjson.dumps(request) + b"\n")
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                return await answer
        except (OSError, TimeoutError) as error:
            raise Unanswered(f"signal-cli did not answer: {type(error).__name__}.") from error
        finally:
            self._waiting.pop(number, None)

    async def serve(self) -> None:
        why = "signal-cli ended the connection."
        try:
            buffer, searched = bytearray(), 0
            while data := await self._reader.read(_CHUNK):
                buffer += data
                while (end := buffer.find(b"\n", searched)) >= 0:
                    line, searched = bytes(buffer[:end]), 0
                    del buffer[: end + 1]
                    await self._take(line)
                searched = len(buffer)
                if searched > _LINE_BYTES:
                    raise Disconnected("signal-cli sends a line without an end.")
        except (OSError, Disconnected) as error:
            why = str(error) or type(error).__name__
        finally:
            self._end(why)

    async def _take(self, line: bytes) -> None:
        try:
            message = json_input.loads(line)
        except ValueError:
            _log.warning("signal: a line that is no JSON was skipped")
            return
        match message:
            case {"method": "receive", "params": dict(params)}:
                await self._received.put(params)
            case {"id": int(number), "error": dict(error)} if answer := self._waiting.get(number):
                if not answer.done():
                    answer.set_exception(RpcError.of(error))
            case {"id": int(number), "result": result} if answer := self._waiting.get(number):
                if not answer.done():
                    answer.set_result(result)
            case _:
                _log.debug("signal: unknown message skipped")

    def _end(self, why: str) -> None:
        super()._end(why)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unanswered(why))


@asynccontextmanager
async def serving(rpc: Rpc) -> AsyncIterator[Rpc]:
    """A connection whose answers are read while the block runs."""
    reading = asyncio.create_task(rpc.serve(), name="signal-cli")
    try:
        yield rpc
    finally:
        reading.cancel()
        await asyncio.wait([reading])


@asynccontextmanager
async def open_child(program: str, folder: Path, startup_s: float) -> AsyncIterator[Rpc]:
    """`signal-cli` as a child process. Raises LoginNeeded if it cannot be run, Disconnected if it ends."""
    words = ["--config", str(folder), "jsonRpc", "--receive-mode", "manual", "--ignore-stories"]
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(program, *words, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise LoginNeeded(
            f"The program {program!r} cannot be run: {error.strerror}. Install signal-cli, or set"
            " channels.signal.transport.cliPath."
        ) from None
    assert process.stdin and process.stdout and process.stderr
    tail: deque[str] = deque(maxlen=_STDERR_LINES)
    errors = asyncio.create_task(_read_errors(process.stderr, tail), name="signal-cli stderr")
    try:
        async with serving(StreamRpc(process.stdout, process.stdin)) as rpc:
            try:
                await rpc.call("version", timeout_s=startup_s)
            except (RpcError, Unanswered) as error:
                why = tail[-1] if tail else str(error)
                raise Disconnected(f"signal-cli did not start: {why}") from error
            yield rpc
    finally:
        process.stdin.close()  # it ends with its input
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        finally:
            if process.returncode is None:  # cancelled while waiting
                process.kill()
        errors.cancel()


@asynccontextmanager
async def open_socket(path: str) -> AsyncIterator[Rpc]:
    """A daemon that the user runs."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise Disconnected(f"The socket {path} of signal-cli cannot be reached: {error.strerror}.") from error
    try:
        async with serving(StreamRpc(reader, writer)) as rpc:
            yield rpc
    finally:
        writer.close()


async def _read_errors(stream: asyncio.StreamReader, tail: deque[str]) -> None:
    """Keep the last lines of stderr. They may name people: they are logged for debugging only."""
    with contextlib.suppress(OSError, ValueError):
        while raw := await stream.readline():
            line = raw.decode("utf-8", "replace").strip()[:300]
            tail.append(line)
            _log.debug("signal-cli: %s", line)
