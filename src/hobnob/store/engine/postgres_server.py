"""Connections to PostgreSQL: open, lock and migrate the database; translate its errors.

The password of a URL is never part of a message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from hobnob.errors import (
    BadInput,
    HobnobError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreUnwritable,
)
from hobnob.store.engine import postgres_sql, statements
from hobnob.types import now_ms

try:
    import psycopg
    from psycopg import adapt, conninfo
    from psycopg.types.numeric import Int8Dumper
except ImportError as error:
    raise BadInput(
        "store.url names a PostgreSQL database, and the package psycopg is not installed.",
        fix="pip install 'hobnob[postgres]'",
    ) from error

Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S = 10
UNANSWERED_MS = 10_000  # what was sent and not acknowledged for so long ends the connection
LOCK_TIMEOUT_MS = 400  # then the transaction runs again: sooner than PostgreSQL looks for a deadlock
_LOCKS = 0x484F424E  # "HOBN": the class of our session locks
_GATEWAY, _MIGRATION = 1, 2
_LOCK_ATTEMPTS, _LOCK_PAUSE_S = 25, 0.04  # the connection of a killed process is noticed within moments
STRANGERS_FIX = "Run: revoke create on schema public from public; revoke all on database … from public."
_log = logging.getLogger(__name__)
_LOST = "Check that PostgreSQL is running and can be reached. A gateway that runs goes on by itself."
_REFUSED = "Check user, password and database in store.url, and what the server allows (pg_hba.conf)."
_PASSING = ("starting up", "shutting down", "not yet", "terminating", "recovery", "too many", "slots")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process whose gateway uses a database. `pid` is None for one on another machine."""

    pid: int | None
    place: str


@dataclass(frozen=True, slots=True)
class Stranger:
    """Another user of the server. `may_create`: functions or schemas in the database."""

    name: str
    may_create: bool


class _BoolDumper(adapt.Dumper):
    """Booleans are 0 and 1, as in SQLite."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


class _NumberLoader(adapt.Loader):
    """A sum of integers is an integer."""

    def load(self, data: Any) -> int | float:
        text = bytes(data).decode()
        return float(text) if "." in text or "N" in text else int(text)


@cache
def _adapters() -> adapt.AdaptersMap:
    adapters = adapt.AdaptersMap(psycopg.adapters)
    adapters.register_dumper(bool, _BoolDumper)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_loader("numeric", _NumberLoader)
    return adapters


def shown(url: str) -> str:
    """A URL without user, password and options."""
    try:
        known = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "postgresql://…"
    host = str(known.get("host") or known.get("hostaddr") or "")
    port = f":{known['port']}" if known.get("port") else ""
    return f"postgresql://{'' if host.startswith('/') else host + port}/{known.get('dbname') or ''}"


def connect(url: str, *, read_only: bool = False, name: str = "hobnob") -> Connection:
    """A connection with our settings. Raises StoreError, BadInput."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise BadInput(
            "store.url is not a valid PostgreSQL URL.",
            fix="Write postgresql://USER:PASSWORD@HOST:5432/DATABASE; escape special characters with %.",
        ) from (None if urlsplit(url).password else error)
    with translate_errors(url):
        connection = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name=name,
            context=_Context(),
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=UNANSWERED_MS,
        )
        connection.prepare_threshold = 0
        connection.prepared_max = 1_000
        mode = "repeatable read, read only" if read_only else "read committed, read write"
        try:
            connection.execute(f"set session characteristics as transaction isolation level {mode}")
            connection.execute("set jit = off")
            # Planning took a third of the server's time for a turn. No statement needs a plan for its values,
            # nor for the size of its table: a plan made while it was small would read all of it later.
            connection.execute("set plan_cache_mode = force_generic_plan")
            connection.execute("set enable_seqscan = off")
            connection.execute(f"set lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
            connection.execute(
                "select set_config('synchronous_commit', 'on', false)"
                " where current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            connection.close()
            raise
    return connection


class _Context:
    """What psycopg takes the conversions of values from."""

    connection = None

    @property
    def adapters(self) -> adapt.AdaptersMap:
        return _adapters()


def end_backend(connection: Connection, pid: int) -> None:
    """End the server's process of an earlier connection of the same name, if it is still there."""
    query = "select pg_terminate_backend(pid) from pg_stat_activity where pid = %s and application_name = %s"
    connection.execute(query, (pid, connection.info.get_parameters()["application_name"]))


def cut(connection: Connection) -> None:
    """End a connection that another thread may be waiting on."""
    with contextlib.suppress(OSError, psycopg.Error):
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


def use(url: str, connection: Connection, *, exclusively: bool = False) -> None:
    """Use this database as a gateway, or keep all gateways out, as long as the connection lives.

    Raises StoreInUse when the other is the case already.
    """
    function = "pg_try_advisory_lock" if exclusively else "pg_try_advisory_lock_shared"
    for attempt in range(_LOCK_ATTEMPTS):
        row = connection.execute(f"select {function}(%s::int4, %s::int4)", (_LOCKS, _GATEWAY)).fetchone()
        if row and row[0]:
            return
        if attempt + 1 < _LOCK_ATTEMPTS:
            time.sleep(_LOCK_PAUSE_S)
    first, *others = _holders(connection) or [Holder(None, " of a gateway")]
    listed = "".join(f", process {each.pid or 'unknown'}{each.place}" for each in others)
    problem = StoreInUse(shown(url), first.pid, first.place + listed)
    if exclusively:
        problem.fix = "Stop all gateways that use it; `hobnob nodes list` shows where they run."
    raise problem


def gateway_name() -> str:
    """The name of a gateway's connection, which tells others who has the database."""
    return f"hobnob gateway {os.getpid()} {socket.gethostname()}"[:63]


def holders(url: str) -> list[Holder]:
    """The gateways that use a database. Raises StoreError."""
    with contextlib.closing(connect(url, read_only=True)) as connection, translate_errors(url):
        return _holders(connection)


def strangers(url: str) -> list[Stranger]:
    """Other users of the server that may connect to a database. Raises StoreError."""
    with contextlib.closing(connect(url, read_only=True)) as connection, translate_errors(url):
        return _strangers(connection)


def _strangers(connection: Connection) -> list[Stranger]:
    """Those who have no rights of ours; superusers have all."""
    rows = connection.execute(
        "select rolname, has_schema_privilege(oid, current_schema(), 'create')"
        "   or has_database_privilege(oid, current_database(), 'create')"
        " from pg_roles where rolcanlogin and not rolsuper and rolname <> current_user"
        "   and has_database_privilege(oid, current_database(), 'connect')"
        "   and not pg_has_role(oid, current_user, 'usage')"
        " order by rolname"
    ).fetchall()
    return [Stranger(str(name), bool(may_create)) for name, may_create in rows]


def warn_of_strangers(connection: Connection) -> None:
    """Log who could act as this gateway: a function of theirs may be called in place of one of PostgreSQL."""
    if found := [each.name for each in _strangers(connection) if each.may_create]:
        _log.warning(
            "other users of the database server may create functions in this database, and so read and"
            " change all of it: %s. %s",
            ", ".join(found),
            STRANGERS_FIX,
        )


def _holders(connection: Connection) -> list[Holder]:
    """The gateways that use a database, those of this machine first."""
    rows = connection.execute(
        "select a.application_name from pg_locks l left join pg_stat_activity a on a.pid = l.pid"
        " where l.locktype = 'advisory' and l.granted and l.classid = %s and l.objid = %s and l.objsubid = 2"
        " and l.database = (select oid from pg_database where datname = current_database())",
        (_LOCKS, _GATEWAY),
    ).fetchall()
    return sorted((_named(str(row[0] or "")) for row in rows), key=lambda found: found.pid is None)


def _named(application: str) -> Holder:
    *_, pid, host = ("", "", *application.removeprefix("hobnob gateway ").split(" ", 1))[-2:]
    if pid.isdigit() and host == socket.gethostname()[: len(host)] and host:
        return Holder(int(pid), "")
    return Holder(None, f" on {host}" if host else "")


def migrate(url: str, connection: Connection) -> None:
    """Bring the schema up to date. Raises StoreTooNew, StoreError."""
    sql = postgres_sql.load(writing=True).sql
    with translate_errors(url), transaction(connection):
        connection.execute("set local lock_timeout = 0")
        connection.execute("select pg_advisory_xact_lock(%s::int4, %s::int4)", (_LOCKS, _MIGRATION))
        connection.execute(sql["migrations_table"])
        for number, name, text, sha in statements.missing("postgres", _applied(connection), shown(url)):
            connection.execute(text.encode(), prepare=False)
            row = {"number": number, "name": name, "sha256": sha, "now_ms": now_ms()}
            connection.execute(sql["migration_insert"], row)
        (restored,) = connection.execute(sql["restored"]).fetchone() or (False,)
        if restored:
            connection.execute(sql["restored_entries"])
            connection.execute(sql["restored_followers"])


def applied(url: str) -> set[int]:
    """The numbers of the migrations that a database has; none for an empty one. Raises StoreTooNew."""
    with contextlib.closing(connect(url, read_only=True)) as connection, translate_errors(url):
        row = connection.execute("select to_regclass('migrations')").fetchone()
        found = _applied(connection) if row and row[0] else {}
    statements.missing("postgres", found, shown(url))
    return set(found)


def _applied(connection: Connection) -> dict[int, tuple[str, str]]:
    rows = connection.execute(postgres_sql.load(writing=True).sql["migrations_applied"]).fetchall()
    return {number: (name, sha) for number, name, sha in rows}


@contextlib.contextmanager
def transaction(connection: Connection, mode: str = "") -> Iterator[None]:
    connection.execute(f"begin {mode}".encode())
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if not connection.closed:
            connection.execute("rollback")
        raise


@contextlib.contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Raise PostgreSQL's errors as store errors."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, url) from error


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, or the server ends it."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return error.sqlstate is None or error.sqlstate[:2] == "08" or error.sqlstate[:3] == "57P"
    return False


def translate(error: psycopg.Error, url: str) -> HobnobError:
    text = (error.diag.message_primary or str(error).partition("\n")[0]).strip().rstrip(".")
    state, store = error.sqlstate or "", shown(url)
    if state == "57P01":  # it says "due to administrator command", also when a gateway ended it
        text = "the server ended the connection"
    if "FATAL" in text and not any(word in text for word in _PASSING):
        return StoreUnwritable(f"{store} refuses the connection: {text}.", fix=_REFUSED)
    if state == "53100":
        return StoreFull(f"The disk of {store} is full.", fix="Free some space; no restart is needed.")
    if state in ("XX001", "XX002"):
        return StoreCorrupt(f"{store} is damaged: {text}.", fix="Restore the database from a backup.")
    if state in ("25006", "42501", "28000", "28P01"):
        return StoreUnwritable(
            f"{store} cannot be used: {text}.",
            fix="Check user and password in store.url. The user needs to own the tables, or the right to"
            " create them, and the server has to be a primary.",
        )
    if is_lost(error):
        return StoreError(f"{store} cannot be reached: {text}.", fix=_LOST)
    return StoreError(f"{store}: {text}.")
