"""The members of a cluster: rows and advisory locks in PostgreSQL. All functions here block.

A gateway is alive as long as it holds its lock and its row has a recent beat. Both are made in one
transaction, so that nobody finds a row without its lock. The lock is free at once when the process dies; the
beat is for one that hangs or is cut off.
"""

from __future__ import annotations

import contextlib
import os
import socket
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import psycopg

from hobnob import __version__
from hobnob.cluster import GatewayInfo
from hobnob.processes.records import boot_id
from hobnob.records import Struct
from hobnob.store.engine import postgres_server as server
from hobnob.store.engine.postgres_sql import load
from hobnob.types import new_id, now_ms

DEAD_AFTER_S = 8.0  # without a beat, by the clock of the database
GRACE_S = 3.0  # after the database lost its connections, in which everybody takes their locks again
_LOCKS = 0x484F424D  # "HOBM": locks of members; "HOBR": of roles
_ROLES = 0x484F4252


class Member(Struct, frozen=True):
    """A gateway as the database knows it. `age_s` is the time since its last beat."""

    gateway_id: str
    instance: str
    name: str
    host: str
    machine: str
    pid: int
    url: str | None
    version: str
    started_at_ms: int
    beat_at: datetime
    draining: int
    files: str
    turns: int
    clients: str
    roles: str
    reloads: int
    age_s: float
    locked: bool
    server_up_s: float

    @property
    def described(self) -> str:
        return f"{self.name} (process {self.pid} on {self.host}, last heartbeat {self.age_s:.1f} s ago)"

    @property
    def info(self) -> GatewayInfo:
        return GatewayInfo(
            gateway_id=self.gateway_id,
            name=self.name,
            host=self.host,
            pid=self.pid,
            url=self.url,
            version=self.version,
            started_at_ms=self.started_at_ms,
            beat_at_ms=int(self.beat_at.timestamp() * 1000),
            age_s=self.age_s,
            locked=self.locked,
            draining=bool(self.draining),
            turns=self.turns,
            clients=len(orjson.loads(self.clients)),
            roles=orjson.loads(self.roles),
        )


class Beat(Struct, frozen=True):
    """What a gateway tells about itself with each beat. `clients` and `roles` are JSON."""

    turns: int = 0
    clients: str = "[]"
    roles: str = "[]"
    url: str | None = None
    reloads: int = 0


def is_dead(member: Member, connected_s: float, watched_s: float) -> bool:
    """Whether a gateway is dead, as seen by another one.

    That one has been connected for `connected_s`, and has looked for `watched_s` without a pause. When the
    server starts again or one of its processes crashes, all gateways lose their locks and cannot beat; when
    their machine stands still, none can either. Each gets the time to do so.
    """
    if not member.locked and has_ended(member):
        return True
    if min(member.server_up_s, connected_s) <= GRACE_S:
        return False
    return not member.locked or (member.age_s > DEAD_AFTER_S and watched_s > GRACE_S)


def has_ended(member: Member) -> bool:
    """Whether its process was one of this machine, and is gone."""
    if member.machine != _machine():
        return False
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        return False
    with contextlib.suppress(OSError):  # a zombie has ended, and nobody has asked for its exit code
        return Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


@cache
def _machine() -> str:
    """Identifies the machine since its boot, and which of its containers: process ids are unique in it."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        namespace = ""
    return f"{boot_id() or socket.gethostname()} {namespace}"


def application(instance: str) -> str:
    """The name of all connections of a gateway."""
    return f"hobnob {instance}"


def join(
    connection: server.Connection,
    instance: str,
    name: str,
    url: str | None,
    *,
    files: str,
    earlier: str | None = None,
    draining: bool = False,
    hung: bool = False,
) -> str:
    """Become a member, as long as the connection lives. Returns the id of this membership.

    One that joins again had an `earlier` id. It is drained as it was: joining does not undo what an operator
    asked for. No crash is counted against its turns unless they were why it was silent (`hung`).
    """
    gateway_id = new_id()
    row = {
        "gateway_id": gateway_id,
        "instance": instance,
        "name": name,
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "url": url,
        "version": __version__,
        "started_at_ms": now_ms(),
        "draining": int(draining),
        "files": files,
    }
    with server.transaction(connection):
        if earlier is not None:
            for (asked_for,) in _execute(connection, "gateway_was_drained", gateway_id=earlier):
                row["draining"] = asked_for
        if earlier is not None and not hung:
            _execute(connection, "gateway_give_up_turns", gateway_id=earlier)
            _execute(connection, "gateway_take_back_crashes", gateway_id=earlier)
        _execute(connection, "gateway_forget_instance", instance=instance)
        _execute(connection, "gateways_forget_removed")
        ((number,),) = _execute(connection, "gateway_join", **row)
        connection.execute("select pg_advisory_lock(%s::int4, %s::int4)", (_LOCKS, number))
    return gateway_id


def message_key(connection: server.Connection) -> bytes:
    """The key of the messages between gateways."""
    ((key,),) = _rows(connection.execute("select key from message_key"))
    return bytes(key)


def lock_again(connection: server.Connection, gateway_id: str, old_backend: int) -> None:
    """Take the lock of a member on a new connection, if it still is one. The old connection is ended."""
    server.end_backend(connection, old_backend)
    with server.transaction(connection):
        for (number,) in _execute(connection, "gateway_number", gateway_id=gateway_id):
            connection.execute("select pg_advisory_lock(%s::int4, %s::int4)", (_LOCKS, number))


def beat(connection: server.Connection, gateway_id: str, news: Beat) -> tuple[bool, float] | None:
    """Tell that this gateway is alive.

    Returns whether it is to drain, and the time of the database; None when it is no member any more.
    """
    params = {name: getattr(news, name) for name in news.__struct_fields__}
    found = _execute(connection, "gateway_beat", gateway_id=gateway_id, **params)
    return (bool(found[0][0]), float(found[0][1])) if found else None


def listed(connection: server.Connection) -> list[Member]:
    return [Member(*row) for row in _execute(connection, "gateways_listed", lock_class=_LOCKS)]


def read_all(url: str) -> list[GatewayInfo]:
    """The gateways of a database, read without being one. Raises StoreError."""
    with contextlib.closing(server.connect(url)) as connection, server.translate_errors(url):
        (known,) = _rows(connection.execute("select to_regclass('gateways') is not null"))
        return [member.info for member in listed(connection)] if known[0] else []


def remove_dead(connection: server.Connection, member: Member) -> bool:
    """Remove a member that is dead and end its connections. False if it was not, or somebody else did it."""
    row = {
        "gateway_id": member.gateway_id,
        "beat_at": member.beat_at,
        "may_send_s": 0.0 if has_ended(member) else DEAD_AFTER_S,
    }
    try:
        removed = _execute(connection, "gateway_remove", **row)
        locked = False
    except psycopg.errors.LockNotAvailable:  # perhaps by a connection of its own that was cut
        removed, locked = [], True
    if removed or locked:
        _execute(connection, "gateway_disconnect", application=application(member.instance))
    return bool(removed)


def leave(connection: server.Connection, gateway_id: str) -> None:
    _execute(connection, "gateway_leave", gateway_id=gateway_id)


def drain(connection: server.Connection, gateway_id: str, *, on: bool) -> None:
    _execute(connection, "gateway_drain", gateway_id=gateway_id, draining=int(on))


def take_role(connection: server.Connection, role: str) -> bool:
    """Take a role if no other gateway has it."""
    query = "select pg_try_advisory_lock(%s::int4, hashtext(%s::text))"
    return bool(_rows(connection.execute(query, (_ROLES, role)))[0][0])


def give_up_role(connection: server.Connection, role: str) -> None:
    connection.execute("select pg_advisory_unlock(%s::int4, hashtext(%s::text))", (_ROLES, role))


def _execute(connection: server.Connection, query: str, **params: Any) -> list[tuple[Any, ...]]:
    return _rows(connection.execute(load(writing=True).sql[query].encode(), params))


def _rows(cursor: Any) -> list[tuple[Any, ...]]:
    return list(cursor.fetchall()) if cursor.description else []
