"""Sends a mail by SMTP, with errors that tell whether the server may have accepted it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hobnob.channels import Disconnected, LoginNeeded, NotNow, Undeliverable
from hobnob.config.channels.email import MailServer

if TYPE_CHECKING:
    import aiosmtplib

_STEP_S = 20.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 5.0, 900.0
_MAX_PAUSES = 1_000
_STATUS = re.compile(r"\A[245]\.\d{1,3}\.\d{1,3}\s+")


class Sender:
    """The outgoing side of an account. Each mail has a connection of its own, as mails are rare."""

    def __init__(self) -> None:
        self._pauses: dict[str, float] = {}

    async def send(
        self, server: MailServer, login: tuple[str, str], sender: str, recipients: list[str], mail: bytes
    ) -> None:
        """Send a mail. The first recipient must be accepted; the others get it if they are, too.

        Raises NotNow, Undeliverable or LoginNeeded if it was not sent. Any other error leaves that open.
        """
        import aiosmtplib

        client = _client(server, sender)
        try:
            try:
                await _sign_in(client, server, login)
                await client.mail(sender)
                await client.rcpt(recipients[0])
                for copy in recipients[1:]:
                    try:
                        await client.rcpt(copy)
                    except aiosmtplib.SMTPRecipientRefused:
                        continue  # it is a copy for ourselves
            except aiosmtplib.SMTPAuthenticationError as error:
                if 400 <= error.code < 500:
                    raise self._later(error.message, recipients[0], account=True) from None
                raise LoginNeeded(
                    f"The mail server does not accept the user name or password: {_shown(error.message)}"
                ) from None
            except aiosmtplib.SMTPResponseException as error:
                alone = isinstance(error, aiosmtplib.SMTPRecipientRefused)
                raise self._refused(error.code, error.message, recipients[0], account=not alone) from None
            except (aiosmtplib.SMTPException, OSError) as error:
                why = f"The mail server {server.host} cannot be used: {_shown(str(error))}"
                raise Undeliverable(why, again=True) from error
            try:
                await client.data(mail)
            except aiosmtplib.SMTPDataError as error:
                raise self._refused(error.code, error.message, recipients[0], account=False) from None
            self._pauses.pop(recipients[0], None)
        finally:
            client.close()

    async def probe(self, server: MailServer, login: tuple[str, str], sender: str) -> None:
        """Sign in. Raises Disconnected or LoginNeeded."""
        import aiosmtplib

        client = _client(server, sender)
        try:
            await _sign_in(client, server, login)
        except aiosmtplib.SMTPAuthenticationError as error:
            why = f"The mail server {server.host} does not accept the user name or password"
            raise LoginNeeded(f"{why}: {_shown(error.message)}") from None
        except (aiosmtplib.SMTPException, OSError) as error:
            raise Disconnected(
                f"The mail server {server.host} cannot be used: {_shown(str(error))}"
            ) from error
        finally:
            client.close()

    def _refused(self, code: int, why: str, recipient: str, *, account: bool) -> NotNow | Undeliverable:
        if 400 <= code < 500:
            return self._later(why, recipient, account=account)
        return Undeliverable(f"The mail server refused the mail: {code} {_shown(why)}")

    def _later(self, why: str, recipient: str, *, account: bool) -> NotNow:
        """Servers do not say how long to wait, so the pauses grow."""
        pause = self._pauses.get(recipient, _FIRST_PAUSE_S)
        self._pauses[recipient] = min(2 * pause, _MAX_PAUSE_S)
        while len(self._pauses) > _MAX_PAUSES:
            del self._pauses[next(iter(self._pauses))]
        return NotNow(
            f"the mail server wants us to wait: {_shown(why)}", pause, scope="account" if account else "chat"
        )


async def _sign_in(client: aiosmtplib.SMTP, server: MailServer, login: tuple[str, str]) -> None:
    await client.connect()
    await client.ehlo()
    if server.security != "none" or client.supports_extension("auth"):
        await client.login(*login)


def _client(server: MailServer, sender: str) -> aiosmtplib.SMTP:
    import aiosmtplib

    return aiosmtplib.SMTP(
        hostname=server.host,
        port=server.port or {"tls": 465, "starttls": 587, "none": 25}[server.security],
        local_hostname=sender.rpartition("@")[2],
        use_tls=server.security == "tls",
        start_tls=server.security == "starttls",
        timeout=_STEP_S,
    )


def _shown(text: str) -> str:
    return _STATUS.sub("", " ".join(text.split()))[:200]
