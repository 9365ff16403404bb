"""Methods that link a channel with a phone, by a QR code."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.chats.logins import Login
from hobnob.errors import BadInput, NotFound

TimeoutMs = Annotated[int, Field(ge=0, le=120_000)]


@method("web.login.start", scope="operator.admin")
async def web_login_start(
    call: Call, channel: str = "whatsapp", account_id: str | None = None, timeout_ms: TimeoutMs = 30_000
) -> Payload:
    """Link a channel with a phone. Returns the QR code to scan, as text, as rows of modules and as an image.

    The account is stopped meanwhile. `web.login.wait` tells when the code changes or was scanned.
    """
    call.require_all_agents()
    account, can = call.services.chats.login_account(channel, account_id)
    if not can:
        raise BadInput(
            f"The channel {channel} signs in with what is in the settings.",
            fix=f"hobnob channels add {channel}",
        )
    return _shown(await call.services.chats.logins.start(channel, account, timeout_ms / 1000))


@method("web.login.wait", scope="operator.admin")
async def web_login_wait(
    call: Call,
    channel: str = "whatsapp",
    account_id: str | None = None,
    qr: str | None = None,
    timeout_ms: TimeoutMs = 30_000,
) -> Payload:
    """Wait until a login has ended, or shows another code than `qr`."""
    call.require_all_agents()
    account, _ = call.services.chats.login_account(channel, account_id)
    found = await call.services.chats.logins.wait(channel, account, qr, timeout_ms / 1000)
    if found is None:
        raise NotFound(f"Nobody signs in to {channel}.", fix=f"hobnob channels login {channel}")
    return _shown(found)


def _shown(login: Login) -> Payload:
    messages = {
        "starting": "The channel connects.",
        "scan": "On the phone, open Settings, then Linked devices, and scan this code.",
        "connected": f"Linked as {login.identity.name if login.identity else 'unknown'}.",
        "failed": login.error or "The login failed.",
    }
    shown: Payload = {
        "state": login.state,
        "connected": login.state == "connected",
        "message": messages[login.state],
    }
    if login.code is not None:
        import segno

        code = segno.make(login.code, micro=False, error="l")
        rows = ["".join("1" if module else "0" for module in row) for row in code.matrix]
        shown |= {"qr": login.code, "qrModules": rows, "qrDataUrl": code.svg_data_uri(border=2)}
    return shown
