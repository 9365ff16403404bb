"""Hooks that answer into chats, wait, come signed, come twice, or bring a list."""

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import texts, wait_until_idle
from tests.integration.test_hooks import call, ended, hooks, refused
from tests.integration.web import Answered, Web, web_of

from hobnob.store import deliveries, turns
from hobnob.testing import say

ANN = "agent:ann:main"
SECRET = "the-secret-of-github"
SIGNED = {
    "match": {"path": "github"},
    "messageTemplate": "say {{action}} in {{headers.x-github-event}}",
    "verify": {"kind": "github", "secret": SECRET},
}


async def posted(web: Web, key: str) -> list[tuple[str, str, str]]:
    found = await web.gateway.store.read(deliveries.of_session, key)
    return [(d.channel, d.recipient, d.text) for d in found]


async def signed_call(web: Web, body: dict[str, Any], secret: str = SECRET, **headers: str) -> Answered:
    raw = json.dumps(body, separators=(",", ":")).encode()
    signature = hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
    sent = {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Event": "issues", **headers}
    return await web.ask("POST", "/hooks/github", token=None, data=raw, headers=sent)


@pytest.mark.promise("hooks.answers")
async def test_an_answer_is_posted_to_the_chat_that_the_call_names(tmp_path: Path) -> None:
    async with web_of(tmp_path, hooks()) as web:
        body = {"message": "say hi", "channel": "webchat", "to": "someone"}
        answer = await call(web, "/hooks/agent", body)
        assert await ended(web, answer) == "hi"
        assert await posted(web, answer.json["sessionKey"]) == [("webchat", "someone", "hi")]


@pytest.mark.promise("hooks.answers")
async def test_with_deliver_alone_it_goes_to_where_people_last_wrote(tmp_path: Path) -> None:
    async with web_of(tmp_path, hooks()) as web:
        await say(web.gateway, "Hello.", ANN)
        answer = await call(web, "/hooks/agent", {"message": "say hi", "deliver": True})
        await ended(web, answer)
        await wait_until_idle(web.gateway, ANN)
        assert await posted(web, ANN) == [("webchat", ANN, "hi")]
        assert (await texts(web.gateway, ANN, "user"))[-1] == "hi"


@pytest.mark.promise("hooks.answers")
@pytest.mark.parametrize(
    "body",
    [
        {"message": "say hi"},
        {"message": "say NO_REPLY", "deliver": True},
        {"message": "say hi", "channel": "webchat", "to": "x", "deliver": False},
    ],
)
async def test_otherwise_nothing_is_posted(tmp_path: Path, body: dict[str, Any]) -> None:
    async with web_of(tmp_path, hooks()) as web:
        answer = await call(web, "/hooks/agent", body)
        await ended(web, answer)
        assert await posted(web, ANN) == await posted(web, answer.json["sessionKey"]) == []


@pytest.mark.parametrize(
    "target",
    [{"channel": "webchat"}, {"to": "x"}, {"channel": "pigeon", "to": "x"}, {"channel": "last", "to": "x"}],
)
async def test_half_an_address_is_refused_before_anything_starts(
    tmp_path: Path, target: dict[str, str]
) -> None:
    async with web_of(tmp_path, hooks()) as web:
        assert refused(await call(web, "/hooks/agent", {"message": "x"} | target))[0] == 400
        assert await web.gateway.store.read(turns.open_turns) == []


async def test_a_call_can_wait_for_the_end_and_learns_no_text(tmp_path: Path) -> None:
    async with web_of(tmp_path, hooks()) as web:
        body = {"message": "say secret words", "waitForCompletion": True}
        answer = await call(web, "/hooks/agent", body)
        assert answer.json["completion"] == {
            "status": "ok",
            "replyDisposition": "visible",
            "deliveryAttempted": False,
        }
        assert "secret words" not in json.dumps(answer.json)


async def test_wake_can_name_an_agent(tmp_path: Path) -> None:
    async with web_of(tmp_path, hooks()) as web:
        answer = await call(web, "/hooks/wake", {"text": "say hi", "agentId": "bob"})
        assert answer.json["sessionKey"] == "agent:bob:main" and await ended(web, answer) == "hi"


@pytest.mark.promise("hooks.signatures")
async def test_a_signed_call_needs_no_token(tmp_path: Path) -> None:
    async with web_of(tmp_path, hooks(mappings=[SIGNED])) as web:
        answer = await signed_call(web, {"action": "opened"})
        assert await ended(web, answer) == "opened in issues"


@pytest.mark.promise("hooks.signatures")
async def test_a_call_that_is_signed_wrong_or_not_at_all_starts_nothing(tmp_path: Path) -> None:
    other = {"match": {"path": "github", "payload": {"open": True}}, "messageTemplate": "x"}
    async with web_of(tmp_path, hooks(mappings=[other, SIGNED])) as web:
        wrong = [
            await signed_call(web, {"action": "opened"}, "another-secret"),
            await web.ask("POST", "/hooks/github", {"action": "opened"}, token=None),
            await web.ask("POST", "/hooks/github", {"open": True}, token=None),
            await call(
                web, "/hooks/github", {"action": "opened"}
            ),  # the token does not replace the signature
            await web.ask("POST", "/hooks/agent", {"message": "x"}, token=None),
        ]
        assert [answer.status for answer in wrong] == [401] * 5
        assert await web.gateway.store.read(turns.open_turns) == []


@pytest.mark.promise("hooks.repeats")
async def test_a_repeated_delivery_starts_no_second_turn(tmp_path: Path) -> None:
    async with web_of(tmp_path, hooks(mappings=[SIGNED])) as web:
        delivery = {"X-GitHub-Delivery": "72d3162e"}
        first, again = [await signed_call(web, {"action": "opened"}, **delivery) for _ in range(2)]
        other = await signed_call(web, {"action": "opened"}, **{"X-GitHub-Delivery": "other"})
        assert first.json["runId"] == again.json["runId"] != other.json["runId"]


async def test_for_each_item_of_a_list_there_is_a_message(tmp_path: Path) -> None:
    mapping = {
        "match": {"path": "mail", "source": "gmail"},
        "messageTemplate": "say {{messages[0].subject}} for {{query.who}}",
        "forEach": "messages",
    }
    async with web_of(tmp_path, hooks(mappings=[mapping])) as web:
        body = {"source": "gmail", "messages": [{"subject": "One"}, {"subject": "Two"}]}
        answer = await call(web, "/hooks/mail?who=ann", body)
        assert answer.json["dispatched"] == 2
        replies = [(await web.gateway.sessions.wait(r, 60)).reply for r in answer.json["runIds"]]
        assert replies == ["One for ann", "Two for ann"]
        assert (await call(web, "/hooks/mail", {"source": "other", "messages": []})).status == 204
        many = {"source": "gmail", "messages": [{}] * 201}
        assert refused(await call(web, "/hooks/mail", many))[0] == 400


@pytest.mark.promise("hooks.signatures")
async def test_a_call_that_was_signed_too_long_ago_starts_nothing(tmp_path: Path) -> None:
    mapping = {
        "match": {"path": "slack"},
        "messageTemplate": "say {{text}}",
        "verify": {"kind": "slack", "secret": SECRET},
    }
    raw = b'{"text":"hi"}'

    async def ask(web: Web, at: int) -> Answered:
        signature = hmac.new(SECRET.encode(), b"v0:%d:" % at + raw, hashlib.sha256).hexdigest()
        sent = {"X-Slack-Request-Timestamp": str(at), "X-Slack-Signature": f"v0={signature}"}
        return await web.ask("POST", "/hooks/slack", token=None, data=raw, headers=sent)

    async with web_of(tmp_path, hooks(mappings=[mapping])) as web:
        now = int(time.time())
        assert (await ask(web, now - 3_600)).status == 401
        assert await web.gateway.store.read(turns.open_turns) == []
        assert await ended(web, await ask(web, now)) == "hi"
