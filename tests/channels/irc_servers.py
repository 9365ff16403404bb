"""Real IRC servers of Debian, run by the tests: ngIRCd and InspIRCd on a port of the loopback interface."""

import asyncio
import contextlib
import os
import shutil
import socket
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

NAMES = ("ngircd", "inspircd")

NGIRCD = """
[Global]
  Name = irc.example.net
  Info = Tests
  AdminInfo1 = Tests
  AdminEMail = nobody@example.net
  Listen = 127.0.0.1
  Ports = {port}
  MotdPhrase = Hello
  ServerUID = {uid}
  ServerGID = {gid}
  {password}
[Limits]
  MaxConnectionsIP = 0
  MaxNickLength = 20
  PingTimeout = 120
[Options]
  DNS = no
  Ident = no
  PAM = no
  Syslog = no
[SSL]
  {tls}
"""

INSPIRCD = """
<server name="irc.example.net" description="Tests" network="Tests" id="97K">
<admin name="Tests" nick="tests" email="nobody@example.net">
<bind address="127.0.0.1" port="{port}" type="clients"{tls}>
<connect name="main" allow="*" timeout="60" pingfreq="120" hardsendq="1M" softsendq="8192" recvq="8K"
  threshold="10" commandrate="1000" fakelag="no" localmax="100" globalmax="100" useident="no"
  resolvehostnames="no" {password}>
<options defaultmodes="nt" syntaxhints="no">
<performance quietbursts="yes">
<security hidemodes="" maxtargets="20">
<path configdir="{folder}" datadir="{folder}" logdir="{folder}" moduledir="/usr/lib/inspircd/modules">
<pid file="{folder}/inspircd.pid">
<log method="file" type="*" level="normal" target="{folder}/server.log">
<class name="none" commands="" privs="">
{modules}
"""
MODULES = (
    "ircv3 ircv3_accounttag ircv3_batch ircv3_chghost ircv3_ctctags ircv3_echomessage ircv3_labeledresponse "
    "ircv3_msgid ircv3_servertime cap services_account"
)


def need(name: str) -> None:
    """Skip the test where the server is not installed; fail where it has to be."""
    if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        if os.environ.get("HOBNOB_REQUIRE_CHAT_SERVERS"):
            pytest.fail(f"{name} is not installed: apt-get install {name}")
        pytest.skip(f"{name} is not installed: apt-get install {name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class IrcServer:
    """A server that can be stopped and started again on the same port."""

    def __init__(
        self, name: str, folder: Path, *, password: str = "", tls: tuple[Path, Path] | None = None
    ) -> None:
        need(name)
        self.name = name
        self.port = free_port()
        self._folder = folder
        self._password = password
        self._tls = tls
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "IrcServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = self._ngircd() if self.name == "ngircd" else self._inspircd()
        with (self._folder / "output.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                assert self._process.returncode is None, (self._folder / "output.log").read_text()
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _ngircd(self) -> list[str]:
        cert = (
            f"CertFile = {self._tls[0]}\n  KeyFile = {self._tls[1]}\n  Ports = {self.port}"
            if self._tls
            else ""
        )
        text = NGIRCD.format(
            port=free_port() if self._tls else self.port,
            uid=os.getuid(),
            gid=os.getgid(),
            password=f"Password = {self._password}" if self._password else "",
            tls=cert,
        )
        config = self._folder / "ngircd.conf"
        config.write_text(text)
        return ["/usr/sbin/ngircd", "--nodaemon", "--config", str(config)]

    def _inspircd(self) -> list[str]:
        modules = [*MODULES.split(), *(["ssl_gnutls"] if self._tls else [])]
        lines = [f'<module name="{module}">' for module in modules]
        if self._tls:
            cert, key = self._tls
            lines.append(f'<sslprofile name="Clients" provider="gnutls" certfile="{cert}" keyfile="{key}">')
        text = INSPIRCD.format(
            port=self.port,
            folder=self._folder,
            password=f'password="{self._password}"' if self._password else "",
            tls=' sslprofile="Clients"' if self._tls else "",
            modules="\n".join(lines),
        )
        config = self._folder / "inspircd.conf"
        config.write_text(text)
        return ["/usr/sbin/inspircd", "--runasroot", "--nofork", "--nolog", f"--config={config}"]
