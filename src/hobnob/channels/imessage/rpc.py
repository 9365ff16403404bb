"""The program `imsg rpc`: JSON-RPC, one object per line, over its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from hobnob import json_input
from hobnob.channels import Disconnected, LoginNeeded, Undeliverable
from hobnob.channels.http import Unanswered
from hobnob.config.channels.imessage import IMessageAccount

LINE_BYTES = 8 * 1024 * 1024
CALL_S = 45.0
_STOP_S = 3.0
_STDERR_BYTES = 2000
_WAITING = 1000  # messages that were read and not taken: then reading stops
_REFUSED = (-32600, -32601, -32602)
_log = logging.getLogger(__name__)


def argv(settings: IMessageAccount, *words: str) -> list[str]:
    """The command line of a program on the Mac: this machine, or one that is reached by `ssh`."""
    if settings.remote_host is None:
        return list(words)
    options = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ConnectTimeout=15"]
    return ["ssh", *options, settings.remote_host, shlex.join(words)]  # a shell reads it over there


def rpc_argv(settings: IMessageAccount) -> list[str]:
    words = [*shlex.split(settings.cli_path), "rpc"]
    return argv(settings, *words, *(["--db", settings.db_path] if settings.db_path else []))


class Rpc:
    """A running program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._stderr = b""
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_WAITING)
        self._reading = asyncio.ensure_future(self._read())
        self._reading.add_done_callback(lambda _: self._fail_calls())
        self._errors = asyncio.ensure_future(self._read_errors())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method. Raises Undeliverable if it was refused, Unanswered if its effect is not known."""
        if self._reading.done():
            raise Undeliverable("imsg is not running.", again=True)
        self._number += 1
        number = self._number
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        line = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(orjson.dumps(line) + b"\n")
            async with asyncio.timeout(CALL_S):
                await self._process.stdin.drain()
                result = await answer
        except (OSError, TimeoutError) as error:
            raise Unanswered(f"imsg did not answer: {error or type(error).__name__}.") from None
        finally:
            self._calls.pop(number, None)
        return result if isinstance(result, dict) else {}

    async def next_message(self) -> dict[str, Any]:
        """The next message that the program reports. Raises Disconnected when it has ended."""
        getting = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait({getting, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                self._reading.result()
                raise Disconnected("imsg ended.")
            return getting.result()
        finally:
            getting.cancel()

    async def _read(self) -> None:
        """Read what the program writes, until it ends. Raises Disconnected."""
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                try:
                    await self._take(json_input.loads(line))
                except (ValueError, TypeError, AttributeError):
                    _log.warning("a line of imsg was not understood and is skipped")
        except ValueError as error:
            raise Disconnected(f"imsg wrote a line that is too long: {error}") from None
        await self._process.wait()
        last = self._stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it gave no reason"]
        raise Disconnected(f"imsg ended with code {self._process.returncode}: {last[0][:300]}")

    async def _read_errors(self) -> None:
        """Keep the end of what the program writes to its standard error."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self._stderr = (self._stderr + piece)[-_STDERR_BYTES:]

    async def _take(self, line: Any) -> None:
        if isinstance(line.get("id"), int) and (call := self._calls.get(line["id"])) is not None:
            if call.done():
                return
            error = line.get("error")
            if not isinstance(error, dict):
                call.set_result(line.get("result"))
            elif error.get("code") in _REFUSED:
                call.set_exception(Undeliverable(f"imsg refused it: {_reason(error)}."))
            else:  # for example AppleScript: it may fail after the message went out
                call.set_exception(Unanswered(f"imsg reports: {_reason(error)}."))
        elif line.get("method") == "message" and isinstance(message := line["params"]["message"], dict):
            await self._messages.put(message)
        elif line.get("method") == "error":
            _log.warning("imsg reports: %s", str(line.get("params"))[:300])

    def _fail_calls(self) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Unanswered("imsg ended."))

    async def stop(self) -> None:
        """End the program: its input is closed, and after a while it is killed."""
        self._fail_calls()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        for task in (self._reading, self._errors):
            task.cancel()
        await asyncio.gather(self._reading, self._errors, return_exceptions=True)


@asynccontextmanager
async def open_rpc(settings: IMessageAccount) -> AsyncIterator[Rpc]:
    """Start the program, and end it afterwards. Raises LoginNeeded if it is not there."""
    command = rpc_argv(settings)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE_BYTES, start_new_session=True
        )
    except OSError as error:
        raise LoginNeeded(f"The program {command[0]} cannot be started: {error.strerror}.") from error
    rpc = Rpc(process)
    try:
        yield rpc
    finally:
        await rpc.stop()


def _reason(error: dict[str, Any]) -> str:
    data = error.get("data")
    text = f"{error.get('message') or 'no reason given'}{f' ({data})' if isinstance(data, str) else ''}"
    return text[:500]
