"""`hobnob channels login`: show the code that links a channel with a phone, until it was scanned."""

from __future__ import annotations

from hobnob.cli import output, qr_codes
from hobnob.cli.connection import Connection, Payload
from hobnob.errors import HobnobError

_WAIT_MS = 20_000


async def link(gateway: Connection, channel: str, account: str | None) -> str:
    """Sign in. Returns a sentence on how it ended. Raises HobnobError if it failed."""
    out = output.console()
    place = {"channel": channel, "accountId": account}
    found = await gateway.call("web.login.start", **place)
    shown: str | None = None
    while found["state"] in ("starting", "scan"):
        if found.get("qr") not in (None, shown):
            shown = found["qr"]
            out.print(output.escape(found["message"]))
            qr_codes.show(out, found["qr"])
        found = await gateway.call("web.login.wait", **place, qr=shown, timeoutMs=_WAIT_MS)
    if not found["connected"]:
        raise HobnobError(_sentence(found), fix=f"Try again: hobnob channels login {channel}")
    return _sentence(found)


def _sentence(found: Payload) -> str:
    return str(found["message"])
