"""`hobnob channels` and `hobnob pairing`: set up chat channels, see how they are doing, let people in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob import redact
from hobnob.cli import config_edit, connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.config.channels import DEFAULT_ACCOUNT, account_ids
from hobnob.config.channels.chats import PLATFORMS
from hobnob.errors import BadInput, HobnobError
from hobnob.records import Struct

app = typer.Typer(help="Chat channels: set up, state, messages.", no_args_is_help=True)
pairing = typer.Typer(help="Senders who ask to write to the bot.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="CHANNEL", help=f"One of {', '.join(PLATFORMS)}, or your own.")]
Account = Annotated[str | None, typer.Option("--account", help="The account; by default the default one.")]


class Question(Struct, frozen=True):
    """What `channels add` asks for."""

    setting: str
    text: str
    secret: bool = False
    default: str | None = None
    when: tuple[str, str] | None = None
    """An earlier answer, with which it is asked."""


LINKED = ("signal", "whatsapp")
"""Channels that need no setting: they are linked with a phone."""
CLOUD, IMSG, BLUEBUBBLES = ("transport", "cloud"), ("transport", "imsg"), ("transport", "bluebubbles")
WEBHOOK_QUESTION = "The address at which the server reaches this gateway; empty if it does not"
QUESTIONS: dict[str, list[Question]] = {
    "telegram": [Question("botToken", "The token that @BotFather gave you", secret=True)],
    "discord": [Question("token", "The bot's token (Developer Portal, Bot, Reset Token)", secret=True)],
    "slack": [
        Question("botToken", "The bot token, xoxb-… (OAuth & Permissions)", secret=True),
        Question("appToken", "The app token, xapp-… (Basic Information, App-Level Tokens)", secret=True),
    ],
    "matrix": [
        Question("homeserver", "The address of the homeserver", default="https://matrix.org"),
        Question("userId", "The bot's user id, such as @bot:matrix.org"),
        Question("password", "The bot's password", secret=True),
    ],
    "irc": [
        Question("host", "The name of the server", default="irc.libera.chat"),
        Question("nick", "The bot's nick", default="hobnob"),
        Question("channels", "Rooms to join, separated by commas", default=""),
    ],
    "signal": [Question("account", "The bot's number at signal-cli; empty to link a phone", default="")],
    "email": [
        Question("address", "The bot's mail address"),
        Question("password", "Its password, where possible one for this program alone", secret=True),
        Question("imap.host", "The server that mails are read from, such as imap.gmail.com"),
        Question("smtp.host", "The server that mails are sent through, such as smtp.gmail.com"),
        Question("authservId", "The name in Authentication-Results of received mails", default=""),
    ],
    "imessage": [
        Question("transport", "imsg (a program on a Mac) or bluebubbles (a server on a Mac)", default="imsg"),
        Question("cliPath", "The program imsg", default="imsg", when=IMSG),
        Question("remoteHost", "The Mac for ssh; empty if it is this one", default="", when=IMSG),
        Question("bluebubbles.serverUrl", "The address of the server", when=BLUEBUBBLES),
        Question("bluebubbles.password", "The password of the server", secret=True, when=BLUEBUBBLES),
        Question("bluebubbles.webhookUrl", WEBHOOK_QUESTION, default="", when=BLUEBUBBLES),
    ],
    "whatsapp": [
        Question("transport", "web (linked device of a phone) or cloud (business account)", default="web"),
        Question("cloud.phoneNumberId", "The phone number id (WhatsApp, API Setup)", when=CLOUD),
        Question("cloud.accessToken", "The access token of a system user", secret=True, when=CLOUD),
        Question("cloud.appSecret", "The app secret (App settings, Basic)", secret=True, when=CLOUD),
        Question("cloud.verifyToken", "A verify token: any word, for the webhook", secret=True, when=CLOUD),
    ],
}


@app.command()
@uses_gateway
def add(
    endpoint: Endpoint,
    channel: Name,
    account: Account = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SETTING=VALUE", help="Answer a question in advance; repeatable."),
    ] = None,
    test: Annotated[bool, typer.Option(help="Ask the platform whether it accepts the account.")] = True,
) -> None:
    """Set up a channel: ask for what it needs, test it, and write it to the configuration file."""
    if channel not in QUESTIONS and not any(each.startswith("module=") for each in values or ()):
        known = ", ".join(QUESTIONS)
        raise BadInput(
            f"There is no channel {channel!r} to set up. Known: {known}.",
            fix="A channel of your own: hobnob channels add NAME --set module=my_channel.py",
        )
    answers = _answers(channel, values or [])
    path = f"channels.{channel}" + (f".accounts.{account}" if account else "")
    pairs = [(f"{path}.{name}", _written(name, value)) for name, value in answers.items()]
    out = output.console()
    is_linked = (channel == "whatsapp" and answers.get("transport") == "web") or (
        channel == "signal" and "account" not in answers
    )  # by a phone, later
    pairs = pairs or [(f"{path}.enabled", "true")]
    if test and not is_linked:
        with out.status("Asking the platform…"):
            identity = _tested(endpoint.file, channel, account or DEFAULT_ACCOUNT, pairs)
        out.print(output.escape(f"The platform knows the bot as {identity}."))
    edited = config_edit.set_values(endpoint.file, pairs)
    out.print(output.escape(f"Written to {edited.file}."))
    if connection.locate(endpoint) is not None:
        connection.call(endpoint, "config.reload")
        out.print("The running gateway uses it now.")
    else:
        out.print("Start the gateway: hobnob serve")
    if is_linked:
        out.print(f"Link the phone: hobnob channels login {channel}", markup=False)
    out.print("Then write to the bot. It answers with a code; let yourself in with:")
    out.print(f"  hobnob pairing approve {channel} CODE", markup=False)


@app.command("list")
@uses_gateway
def list_(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the channels that are set up."""
    _print_status(connection.call(endpoint, "channels.status"), as_json)


@app.command()
@uses_gateway
def status(
    endpoint: Endpoint,
    as_json: AsJson = False,
    probe: Annotated[bool, typer.Option("--probe", help="Ask each platform once.")] = False,
) -> None:
    """Show how each account of each channel is doing."""
    _print_status(connection.call(endpoint, "channels.status", probe=probe), as_json)


def _print_status(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.json(found)
        return
    rows = [
        (
            name,
            row["accountId"],
            row["state"],
            (row.get("identity") or {}).get("name", ""),
            output.ago(row["lastInboundAt"]) if "lastInboundAt" in row else "",
            str(found["channels"][name]["queued"] or ""),
            _problem(row),
        )
        for name, accounts in found["channelAccounts"].items()
        for row in accounts
    ]
    if not rows:
        output.note("No channel is set up. For example: hobnob channels add telegram")
        return
    output.table(("channel", "account", "state", "as", "last message", "queued", "problem"), rows)


@app.command()
@uses_gateway
def probe(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """Ask each platform whether it accepts the account."""
    _print_status(connection.call(endpoint, "channels.status", probe=True), as_json)


@app.command()
@uses_gateway
def capabilities(endpoint: Endpoint, channel: Name, account: Account = None, as_json: AsJson = False) -> None:
    """Show what a channel can do."""
    found = connection.call(endpoint, "channels.capabilities", channel=channel, accountId=account)
    if as_json:
        output.json(found)
    else:
        output.table(("capability", "value"), ((name, _shown(value)) for name, value in found.items()))


@app.command()
@uses_gateway
def login(endpoint: Endpoint, channel: Name, account: Account = None) -> None:
    """Link a channel with a phone: show a QR code until it was scanned."""
    from hobnob.cli import channel_login

    if channel in LINKED:
        _set_up(endpoint, channel, account)
    done = connection.run(endpoint, lambda gateway: channel_login.link(gateway, channel, account))
    output.console().print(output.escape(done))
    if connection.locate(endpoint) is None:
        output.console().print("Start the gateway: hobnob serve")


def _set_up(endpoint: Endpoint, channel: str, account: str | None) -> None:
    """Add an account that is not in the settings yet."""
    configured = settings.load(endpoint.file).settings.channels.configured.get(channel)
    if configured is not None and (account is None or account in account_ids(configured)):
        return
    place = f"channels.{channel}" + (f".accounts.{account}" if account else "")
    config_edit.set_values(endpoint.file, [(f"{place}.enabled", "true")])
    if connection.locate(endpoint) is not None:
        connection.call(endpoint, "config.reload")


@app.command()
@uses_gateway
def logout(endpoint: Endpoint, channel: Name, account: Account = None) -> None:
    """Stop an account and forget what a login obtained. Tokens in the settings stay."""
    connection.call(endpoint, "channels.logout", channel=channel, accountId=account)
    output.console().print(
        output.escape(f"Signed out of {channel}. Its settings stay: hobnob config unset channels.{channel}")
    )


@app.command()
@uses_gateway
def messages(
    endpoint: Endpoint,
    limit: Annotated[int, typer.Option("--limit", help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the newest messages from chats, and what became of each."""
    _print_messages(connection.call(endpoint, "channels.messages", limit=limit), as_json)


@app.command(context_settings={"ignore_unknown_options": True})  # ids of groups on Telegram begin with "-"
@uses_gateway
def explain(
    endpoint: Endpoint,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="As `channels messages` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Explain what became of a message from a chat, and what would change that."""
    found = connection.call(endpoint, "channels.messages", eventId=event)
    if as_json:
        output.json(found)
        return
    if not found["messages"]:
        raise BadInput(f"No message {event!r} has come in.", fix="`hobnob channels messages` lists them.")
    out = output.console()
    for row in found["messages"]:
        sender = row.get("senderName") or row["senderId"]
        where = f"{row['channel']}, chat {row['chatId']}, from {sender} ({row['senderId']})"
        out.print(output.escape(f"{where}: {row['state']} ({row['code']})"))
        out.print(output.escape(row["why"]))
        if "sessionKey" in row:
            out.print(output.escape(f"Session: {row['sessionKey']}"))
        if "fix" in row:
            out.print(output.escape(f"To change that: {row['fix']}"))


@pairing.command("list")
@uses_gateway
def pairing_list(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the senders who asked to be let in, and those who were."""
    found = connection.call(endpoint, "pairing.list")
    if as_json:
        output.json(found)
        return
    rows = [
        (
            state,
            row["channel"],
            row["accountId"],
            row["senderId"],
            row.get("senderName", "") + (" (owner)" if row["owner"] else ""),
            row.get("code", ""),
            output.ago(row["createdAt"]),
        )
        for state in ("pending", "approved")
        for row in found[state]
    ]
    if not rows:
        output.note("Nobody has asked to be let in.")
        return
    output.table(("state", "channel", "account", "sender", "name", "code", "since"), rows)


@pairing.command()
@uses_gateway
def approve(
    endpoint: Endpoint,
    words: Annotated[list[str], typer.Argument(metavar="[CHANNEL] CODE", help="As the sender was told.")],
    account: Account = None,
    notify: Annotated[bool, typer.Option(help="Tell the sender.")] = True,
    as_json: AsJson = False,
) -> None:
    """Let a sender in. The first one of a channel also becomes its owner, if it has none."""
    if len(words) > 2:
        raise BadInput("Give a channel and a code, or just the code.")
    channel = words[0].lower() if len(words) == 2 else None
    done = connection.call(
        endpoint,
        "pairing.approve",
        code=words[-1],
        channel=channel,
        accountId=account,
        owner=True,
        notify=notify,
    )
    if as_json:
        output.json(done)
        return
    sender = done["sender"]
    role = ", as owner" if sender["owner"] else ""
    name = sender.get("senderName") or sender["senderId"]
    output.console().print(output.escape(f"{name} may write to the bot on {sender['channel']} now{role}."))


@pairing.command()
@uses_gateway
def revoke(
    endpoint: Endpoint,
    channel: Name,
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="The sender's id.")],
    account: Account = None,
) -> None:
    """Remove a sender who was let in, or a request."""
    connection.call(
        endpoint,
        "pairing.revoke",
        channel=channel,
        senderId=sender,
        accountId=account or DEFAULT_ACCOUNT,
    )
    output.console().print(output.escape(f"{sender} may no longer write to the bot on {channel}."))


def _answers(channel: str, values: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for each in values:
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise BadInput(f"{each!r} is not SETTING=VALUE.")
        given[name] = value
    for question in QUESTIONS.get(channel, []):
        if question.when is not None and given.get(question.when[0]) != question.when[1]:
            continue
        if question.setting not in given:
            text = f"{question.text} (not shown as you type)" if question.secret else question.text
            given[question.setting] = typer.prompt(text, hide_input=question.secret, default=question.default)
    return {name: value for name, value in given.items() if value != ""}


def _written(name: str, value: str) -> str:
    """An answer as `config set` takes it: rooms and servers are a list, all else is a text."""
    if name in ("channels", "authservId"):
        return orjson.dumps([room.strip() for room in value.split(",") if room.strip()]).decode()
    return orjson.dumps(value).decode() if value[:1] not in "{[" else value


def _tested(file: Path | None, channel: str, account: str, pairs: list[tuple[str, str]]) -> str:
    """The bot's name on its platform. Raises HobnobError when the platform does not accept it."""
    loaded = settings.load(file, flags={path: orjson.loads(value) for path, value in pairs})
    try:
        return asyncio.run(ask_platform(loaded, channel, account))
    except HobnobError as error:
        fix = "Correct the values, or write them untested with --no-test."
        raise HobnobError(f"The platform does not accept the account: {error.message}", fix=fix) from None


async def ask_platform(loaded: settings.Config, channel: str, account: str) -> str:
    """The name of an account on its platform. Raises HobnobError when the platform does not accept it."""
    from hobnob.chats.accounts import Accounts

    accounts = Accounts(loaded)
    found = accounts.settings_of(channel, account)
    assert found is not None
    try:
        async with asyncio.timeout(30):
            identity = await accounts.make(channel, account, found).probe()
    except TimeoutError:
        raise HobnobError("It did not answer within 30 seconds.") from None
    except Exception as error:  # whatever the channel raises is the answer
        raise HobnobError(redact.text(str(error))[0] or type(error).__name__) from None
    finally:
        await accounts.close()
    hint = f" ({identity.detail})" if identity.detail else ""
    return f"{identity.name or identity.id}{hint}"


def _print_messages(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.json(found)
        return
    rows = [
        (
            row["eventId"],
            row["channel"],
            row.get("senderName") or row["senderId"],
            f"{row['state']} ({row['code']})" if row["state"] == "refused" else row["state"],
            row.get("sessionKey", ""),
            output.ago(row["at"]),
        )
        for row in found["messages"]
    ]
    if not rows:
        output.note("No message has come in from a chat yet.")
        return
    output.table(("event", "channel", "from", "became", "session", "when"), rows)
    if any(row["state"] == "refused" for row in found["messages"]):
        output.note("Why a message was refused and what would allow it: hobnob channels explain EVENT")


def _problem(row: dict[str, Any]) -> str:
    asked = row.get("probe")
    if asked is not None and asked["ok"]:
        hint = asked.get("identity", {}).get("detail")
        return f"works ({hint})" if hint else "works"
    if asked is not None:
        return f"probe failed: {asked['error']}"
    return str(row.get("lastError", ""))


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
