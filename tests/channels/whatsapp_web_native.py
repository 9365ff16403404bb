"""A stand-in for the native part of neonize: its functions become calls to the server of `fake_whatsapp_web`.

The part of the library that is written in Python stays the real one. As with the real native part, `Neonize`
runs in a thread until the client is stopped, a lost connection is reported and made again,
and a message is confirmed to WhatsApp as soon as it was handed over.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import itertools
import json
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

_DISCONNECTED = 12
_PAUSE_S = 0.05  # between attempts to connect again
_NOT_CONNECTED = "failed to send message node: websocket not connected"
_LOST = "websocket disconnected before message send returned response"
_RETURNED = {
    "SendMessage": "SendMessageReturnFunction",
    "Upload": "UploadReturnFunction",
    "DownloadAny": "DownloadReturnFunction",
    "GetGroupInfo": "GetGroupInfoReturnFunction",
    "BuildReaction": "BuildMessageReturnFunction",
    "GetMe": "Device",
}
"""What a function returns; all others return a text, which is empty unless they failed."""


class Native:
    """`gocode` of neonize. `declared` is the real one: it says of which types arguments must be."""

    def __init__(self, path: str, declared: Any = None) -> None:
        self._path = path
        self._declared = declared
        self._clients: dict[bytes, _Client] = {}

    def Neonize(
        self,
        name: bytes,
        uuid: bytes,
        jid: bytes,
        jid_size: int,
        new_device: int,
        log_level: bytes,
        on_qr: Any,
        on_login: Any,
        on_event: Any,
        *more: Any,
    ) -> bytes:
        client = self._clients[uuid] = _Client(self._path, uuid, on_qr, on_event)
        return client.run()

    def Stop(self, uuid: bytes) -> bytes:
        if client := self._clients.pop(uuid, None):
            client.stop()
        return b""

    def __getattr__(self, name: str) -> Callable[..., bytes]:
        def call(uuid: bytes, *arguments: Any) -> bytes:
            if self._declared is not None:
                for each, kind in zip(
                    (uuid, *arguments), getattr(self._declared, name).argtypes, strict=True
                ):
                    kind.from_param(each)
            client = self._clients.get(uuid)
            return client.call(name, arguments) if client else _failed(name, _NOT_CONNECTED)

        return call


class _Client:
    def __init__(self, path: str, uuid: bytes, on_qr: Any, on_event: Any) -> None:
        self._path = path
        self._uuid = uuid
        self._on_qr = on_qr
        self._on_event = on_event
        self._socket: socket.socket | None = None
        self._waiting: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self) -> bytes:
        """Be connected until stopped. Returns why that failed, or nothing."""
        was_connected = False
        while not self._stopped.is_set():
            peer = socket.socket(socket.AF_UNIX)
            with peer:
                try:
                    peer.connect(self._path)
                except OSError as error:
                    if not was_connected:
                        return f"failed to dial whatsapp web websocket: {error}".encode()
                    self._stopped.wait(_PAUSE_S)
                    continue
                was_connected = True
                if (why := self._read(peer)) is not None:
                    return why.encode()
            if not self._stopped.is_set():
                self._on_event(self._uuid, None, 0, _DISCONNECTED)
        return b""

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def call(self, name: str, arguments: tuple[Any, ...]) -> bytes:
        answer: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        packed = [_packed(each) for each in arguments]
        with self._lock:
            if self._socket is None:
                return _failed(name, _NOT_CONNECTED)
            number = next(self._numbers)
            self._waiting[number] = answer
            try:
                self._send({"id": number, "call": name, "arguments": packed})
            except OSError:
                return _failed(name, _LOST)
        result = answer.get()
        return _failed(name, _LOST) if result is None else result

    def _read(self, peer: socket.socket) -> str | None:
        """Pass on what the server sends. Returns why the client has to end, or nothing."""
        with self._lock:
            self._socket = peer
            if self._stopped.is_set():
                peer.shutdown(socket.SHUT_RDWR)
        try:
            with peer.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    if "end" in message:
                        return str(message["end"])
                    self._take(message)
        except OSError:
            pass
        finally:
            with self._lock:
                self._socket = None
                while self._waiting:
                    self._waiting.popitem()[1].put(None)
        return None

    def _take(self, message: dict[str, Any]) -> None:
        if "qr" in message:
            code = ctypes.create_string_buffer(message["qr"].encode())
            self._on_qr(None, ctypes.addressof(code))
        elif "event" in message:
            data = base64.b64decode(message["data"])
            self._on_event(self._uuid, ctypes.cast(data, ctypes.c_void_p), len(data), message["event"])
            with self._lock:
                self._send({"received": message["number"]})
        elif answer := self._waiting.pop(message["id"], None):
            answer.put(base64.b64decode(message["result"]))

    def _send(self, message: dict[str, Any]) -> None:
        assert self._socket is not None
        self._socket.sendall(json.dumps(message).encode() + b"\n")


def _packed(argument: Any) -> Any:
    return {"bytes": base64.b64encode(argument).decode()} if isinstance(argument, bytes) else argument


def _failed(name: str, why: str) -> bytes:
    if name not in _RETURNED:
        return why.encode()
    kind = getattr(importlib.import_module("neonize.proto.Neonize_pb2"), _RETURNED[name])
    return serialized(kind() if name == "GetMe" else kind(Error=why))


def serialized(message: Any) -> bytes:
    """A message of the library as bytes. Required fields that are not set have their default, as in Go."""
    while missing := message.FindInitializationErrors():
        for path in missing:
            *parents, name = path.split(".")
            place = message
            for parent in parents:
                place = getattr(place, parent)
            field = place.DESCRIPTOR.fields_by_name[name]
            if field.message_type is None:
                setattr(place, name, field.default_value)
            else:
                getattr(place, name).SetInParent()
    data: bytes = message.SerializeToString()
    return data
