"""Calls of Slack's Web API, and what its errors mean for the caller."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from hobnob.channels import Account, LoginNeeded, NotNow, Undeliverable, http
from hobnob.channels.http import Unanswered
from hobnob.config.channels import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from hobnob.config.channels.slack import SlackAccount

_DEFAULT_WAIT_S = 1.0  # of a rate limit without a time
_MAX_WAIT_S = 3600.0
_LIMITED = {"ratelimited", "rate_limited"}
_LOGIN = {
    "invalid_auth": "Slack does not know this token: copy it again",
    "not_authed": "no token was sent: set it",
    "account_inactive": "the app was removed from the workspace: install it again and copy the new token",
    "token_revoked": "the token was revoked: install the app again and copy the new token",
    "token_expired": "the token has expired: switch off token rotation and copy the new token",
    "not_allowed_token_type": "the token is of another kind: botToken begins with xoxb-, appToken with xapp-",
    "org_login_required": "the workspace is moving to another organisation: install the app there",
    "team_access_not_granted": "the app is not installed in this workspace: install it",
    "forbidden_team": "the workspace does not admit this app: ask its administrators",
}
_UNCERTAIN = {"internal_error", "fatal_error", "request_timeout", "service_unavailable"}
_MEANINGS = {
    "channel_not_found": "the conversation does not exist, or the bot is not in it: invite it with /invite",
    "not_in_channel": "the bot is not in this channel: invite it with /invite",
    "is_archived": "the channel is archived",
    "restricted_action": "the workspace does not let apps post here",
    "restricted_action_read_only_channel": "the channel is read-only",
    "user_not_found": "there is no such user",
    "user_disabled": "the user's account is deactivated",
    "cannot_dm_bot": "bots cannot have a direct conversation with each other",
    "msg_too_long": "the message is longer than Slack accepts",
    "no_text": "the message is empty",
    "message_not_found": "the message no longer exists",
    "cant_update_message": "only messages of this bot can be changed",
    "cant_delete_message": "only messages of this bot can be deleted",
    "edit_window_closed": "the workspace does not let messages be changed this late",
    "thread_not_found": "the thread no longer exists",
    "invalid_name": "Slack has no emoji of this name",
    "too_many_reactions": "the message has as many reactions as Slack allows",
    "message_limit_exceeded": "the workspace has reached the number of messages of its plan",
    "storage_limit_reached": "the workspace has no room for more files",
    "file_uploads_disabled": "the workspace does not admit uploads",
    "ekm_access_denied": "the workspace's administrators have suspended posting",
}


class Refused(Undeliverable):
    """Slack answered with `ok: false`. `code` is its error."""

    def __init__(self, why: str, code: str) -> None:
        super().__init__(why)
        self.code = code


class WebApi:
    """The Web API with the tokens of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def call(self, method: str, *, timeout_s: float = 30.0, **arguments: Any) -> dict[str, Any]:
        """Call a method with the bot token. Returns its answer, which is `ok`.

        Raises Refused, NotNow, LoginNeeded; Undeliverable(again) if the request never left; Unanswered if it
        is not known whether it had an effect.
        """
        return await self._call(method, self.bot_token, arguments, timeout_s)

    async def open_connection(self) -> str:
        """A new address for Socket Mode. It can be used once."""
        try:
            answer = await self._call("apps.connections.open", self._token("app_token"), {}, 15.0)
        except Refused as refused:
            if refused.code == "missing_scope":
                why = "the app token lacks the scope connections:write: generate one that has it"
                raise LoginNeeded(self._login_text("appToken", why)) from refused
            raise
        return str(answer.get("url") or "")

    async def upload(self, url: str, content: bytes) -> None:
        """Send the bytes of a file to the address that Slack gave for it."""
        answer = await http.call(self._account.http(), "POST", url, data=content, timeout_s=60.0)
        if answer.status >= 500:
            raise Unanswered(f"Slack did not take the file: status {answer.status}.")
        if answer.status != 200:
            raise Undeliverable(f"Slack did not take the file: status {answer.status}.")

    @property
    def bot_token(self) -> str:
        return self._token("bot_token")

    @property
    def settings(self) -> SlackAccount:
        settings: SlackAccount = self._account.settings
        return settings

    def _token(self, name: str) -> str:
        """A token from the settings; of the default account also from the environment."""
        secret = getattr(self.settings, name)
        if secret is not None:
            return str(secret.get_secret_value()).strip()
        variable = f"SLACK_{name.upper()}"
        if self._account.account_id == DEFAULT_ACCOUNT and (found := os.environ.get(variable, "").strip()):
            return found
        raise LoginNeeded(self._login_text(_camel(name), f"neither it nor ${variable} is set"))

    async def _call(
        self, method: str, token: str, arguments: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        # As a form: Slack ignores JSON in calls that read, such as conversations.history.
        form = {name: _form_value(value) for name, value in arguments.items() if value is not None}
        answer = await http.call(
            self._account.http(),
            "POST",
            self.settings.api_url.rstrip("/") + "/" + method,
            data=urlencode(form).encode(),
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/x-www-form-urlencoded",
            },
            timeout_s=timeout_s,
        )
        body = answer.body if isinstance(answer.body, dict) else {}
        if answer.status == 429 or body.get("error") in _LIMITED:
            raise NotNow(f"Slack limits the rate of {method}.", _wait_s(answer.header("retry-after")))
        if answer.status >= 500 or not isinstance(body.get("ok"), bool):
            raise Unanswered(f"Slack gave no usable answer to {method}: status {answer.status}.")
        if not body["ok"]:
            raise self._problem(method, body)
        return body

    def _problem(self, method: str, body: dict[str, Any]) -> Exception:
        code = str(body.get("error") or "unknown_error")[:100]
        if code in _LOGIN:
            setting = "appToken" if method == "apps.connections.open" else "botToken"
            return LoginNeeded(self._login_text(setting, f"{_LOGIN[code]} ({code})"))
        if code in _UNCERTAIN:
            return Unanswered(f"Slack failed in {method}: {code}.")
        if code == "missing_scope":
            scope = str(body.get("needed") or "it needs")[:100]
            why = f"the app lacks the scope {scope}: add it under OAuth & Permissions and reinstall the app"
        else:
            why = _MEANINGS.get(code, "Slack gives no more explanation")
        return Refused(f"Slack refused {method}: {why} ({code}).", code)

    def _login_text(self, setting: str, why: str) -> str:
        own = self._account.account_id
        path = "channels.slack" if own == DEFAULT_ACCOUNT else f"channels.slack.accounts.{own}"
        return f"{path}.{setting}: {why}."


def messages_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of an answer that has a list of them."""
    found = answer.get("messages")
    return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []


def _form_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return orjson.dumps(value).decode() if isinstance(value, dict | list) else str(value)


def _wait_s(header: str | None) -> float:
    try:
        return min(max(float(header or ""), 0.0), _MAX_WAIT_S)
    except ValueError:
        return _DEFAULT_WAIT_S


def _camel(name: str) -> str:
    first, _, rest = name.partition("_")
    return first + rest.capitalize()
