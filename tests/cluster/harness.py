"""Several gateways as real processes on one PostgreSQL database, to be killed, stopped and cut off.

Each gateway has its own state directory and its own link to the database. The workspaces are on a disk that
they share.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import postgres
from tests.cluster.outside import Outside, open_outside
from tests.waiting import LIMIT_S, until

TOKEN = "the-token-of-these-gateways"
FULL = os.environ.get("HOBNOB_CLUSTER_FULL") == "1"
PROGRAMS = Path(__file__).parent.parent / "programs"


def size(everyday: int, full: int) -> int:
    """How many of something: the number of every day, or with HOBNOB_CLUSTER_FULL=1 the full number."""
    return full if FULL else everyday


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Link:
    """A TCP connection to the database that can be cut: a proxy in a process of its own."""

    def __init__(self, server: postgres.Server) -> None:
        self.port = free_port()
        self._socket = server.folder / ".s.PGSQL.5432"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, PROGRAMS / "tcp_proxy.py", str(self.port), self._socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def url(self, database: str) -> str:
        return f"postgresql://hobnob:not-asked-for@127.0.0.1:{self.port}/{database}"

    def cut(self) -> None:
        """Let nothing pass any more, without closing a connection."""
        self._process.send_signal(signal.SIGSTOP)

    def break_connections(self) -> None:
        """Lose all connections, with what is under way on them; new ones are possible at once."""
        self.close()
        self.open()

    def open(self) -> None:
        """Let connections pass again after `close`."""
        self._process = self._start()

    def mend(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Lose all connections; no new ones are possible."""
        self._process.kill()
        self._process.communicate()


class GatewayProcess:
    """One `hobnob serve`. Its port and state directory stay the same when it is started again."""

    def __init__(self, number: int, folder: Path, link: Link | None) -> None:
        self.number = number
        self.home = folder / f"gateway{number}"
        self.home.mkdir(mode=0o700)
        self.link = link
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self.log = self.home / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
        # Programs inherit TMPDIR: those of this test are known by it.
        self._env |= {"HOBNOB_HOME": str(self.home), "NO_COLOR": "1", "TMPDIR": str(folder / "tmp")}
        self._env |= {"HOBNOB_STORE_KEY": "the key of the secrets of these gateways"}
        self._env |= {"CLUSTER_EFFECTS": str(folder / "effects")}

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, *, crash_at: str | None = None, hang_at: str | None = None) -> None:
        """Start it and wait until it listens. It kills itself, or hangs, at that crash point."""
        assert not self.running
        points = {"HOBNOB_CRASH_AT": crash_at, "HOBNOB_HANG_AT": hang_at}
        env = self._env | {name: point for name, point in points.items() if point}
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "hobnob", "serve"], env=env, stdout=log, stderr=log
            )
        await until(lambda: "listens on" in self._logged(begin) or not self.running)
        if not self.running and not crash_at:
            raise AssertionError(f"gateway {self.number} did not start: {self._logged(begin)[-3000:]}")

    def _logged(self, begin: int) -> str:
        return self.log.read_bytes()[begin:].decode(errors="replace")

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait(LIMIT_S)

    async def died(self) -> None:
        """A gateway comes to a point of its turns more rarely the more of them wait."""
        await until(lambda: not self.running, limit_s=3 * LIMIT_S if FULL else LIMIT_S)

    def terminate(self) -> None:
        """SIGTERM: ask it to stop."""
        self.process.terminate()

    @property
    def hangs(self) -> bool:
        """Whether it is stopped, by itself or by `freeze`."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def freeze(self) -> None:
        """SIGSTOP: it hangs, with all its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """End it, in whatever state it is."""
        if self.running:
            self.thaw()
            self.terminate()
            with contextlib.suppress(TimeoutError):
                await until(lambda: not self.running, limit_s=15)
            if self.running:
                self.kill()


async def die_at(gateway: GatewayProcess, points: Iterator[str]) -> None:
    """Let a gateway kill itself at one point after the other, and start it without one at the end."""
    for point in points:
        await gateway.start(crash_at=point)
        try:
            await gateway.died()
        except TimeoutError:
            raise AssertionError(f"{point} was not reached") from None
        assert gateway.process.returncode == -9
    await gateway.start()


class Cluster:
    def __init__(self, folder: Path, server: postgres.Server, database: str, outside: Outside) -> None:
        self.folder = folder
        self.server = server
        self.database = database
        self.outside = outside
        self.effects = folder / "effects"
        self.gateways: list[GatewayProcess] = []
        self.settings: dict[str, Any] = {}
        (folder / "tmp").mkdir()

    @property
    def url(self) -> str:
        """The database, without a link that can be cut."""
        return self.server.url(self.database)

    def add(self, *, linked: bool, **more: Any) -> GatewayProcess:
        """One more gateway, which is not started yet. `more` are sections of settings of its own."""
        gateway = GatewayProcess(len(self.gateways), self.folder, Link(self.server) if linked else None)
        url = gateway.link.url(self.database) if gateway.link else self.url
        own = {
            "gateway": {"port": gateway.port, "auth": {"token": TOKEN}},
            "store": {"url": url},
        }
        (gateway.home / "hobnob.json5").write_text(json.dumps(self.settings | own | more))
        self.gateways.append(gateway)
        return gateway

    async def start(self) -> None:
        async with asyncio.TaskGroup() as group:
            for gateway in self.gateways:
                if not gateway.running:
                    group.create_task(gateway.start())

    def rows(self, statement: str) -> list[Any]:
        """Rows of the database, read on a connection of its own."""
        return postgres.execute(self.url, statement)

    def claimed_by(self, turn_id: str) -> GatewayProcess | None:
        """The gateway that runs a turn."""
        found = self.rows(
            "select g.pid from turns t join gateways g on g.gateway_id = t.claimed_by"
            f" where t.turn_id = '{turn_id}' and t.status = 'running'"
        )
        pids = [int(row[0]) for row in found]
        return next((g for g in self.gateways if g.running and g.pid in pids), None)

    def cut_listening(self) -> int:
        """End the connections that listen for notifications, of all gateways. Returns their number."""
        return len(
            self.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query ilike 'listen %'"
            )
        )


def agents_on(outside: Outside, folder: Path) -> dict[str, Any]:
    """Settings: agents on the model of the test, with tools, a channel and everybody visible to everybody."""
    provider = {
        "baseUrl": f"{outside.url}/v1",
        "api": "openai-completions",
        "apiKey": "k",
        "models": [{"id": "m"}],
    }
    channel = {
        "module": str(PROGRAMS / "post_channel.py"),
        "options": {"url": f"{outside.url}/posts"},
        "dmPolicy": "open",
        "allowFrom": ["*"],
    }
    return {
        "agents": {
            "defaults": {"model": "outside/m", "workspace": str(folder / "workspace"), "maxConcurrent": 32},
            "list": [{"id": "main", "default": True}],
        },
        "models": {"providers": {"outside": provider}},
        "tools": {
            "sessions": {"visibility": "all"},
            "agentToAgent": {"enabled": True},
            "exec": {"host": "gateway"},
            "modules": [str(PROGRAMS / "cluster_tools.py")],
        },
        "channels": {"pager": channel},
        "cron": {"webhookSsrfPolicy": {"allowedHostnames": [urlsplit(outside.url).hostname]}},
        "session": {"agentToAgent": {"maxPingPongTurns": 1}, "dmScope": "per-channel-peer"},
    }


@asynccontextmanager
async def open_cluster(
    folder: Path,
    *,
    gateways: int = 3,
    linked: bool = False,
    server: postgres.Server | None = None,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """Running gateways on a new database. With `linked`, each reaches it by a link that can be cut."""
    running = server or postgres.require_server()
    database = urlsplit(postgres.new_database(on=running)).path.lstrip("/")
    async with AsyncExitStack() as stack:
        outside = await stack.enter_async_context(open_outside())
        cluster = Cluster(folder, running, database, outside)
        cluster.settings = agents_on(outside, folder) | settings
        try:
            for _ in range(gateways):
                cluster.add(linked=linked)
            await cluster.start()
            yield cluster
        finally:
            for gateway in cluster.gateways:
                if gateway.link:
                    gateway.link.mend()
            async with asyncio.TaskGroup() as group:
                for gateway in cluster.gateways:
                    group.create_task(gateway.end())
            for gateway in cluster.gateways:
                if gateway.link:
                    gateway.link.close()
            if server is None:
                running.execute(f"drop database if exists {database} with (force)")
