"""Checks of what acts: send, exchange, spawn, send policy, durability."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import Any

from hobnob.contract.checks import HELPER, OUTSIDER, by_key, visit
from hobnob.contract.client import Row, Unsupported
from hobnob.contract.registry import Gateway, check, require

WAIT_S = 60
_CHILD = re.compile(r"agent:helper:subagent:[0-9a-f-]{36}")


def word() -> str:
    """A word that no other check uses."""
    return f"pong{uuid.uuid4().hex[:8]}"


async def send(gateway: Gateway, text: str, session: str = "main", **more: Any) -> Row:
    arguments: dict[str, Any] = {"agentId": "helper", "timeoutSeconds": WAIT_S} | more
    return await gateway.client.use("sessions_send", session, message=text, **arguments)


async def texts(gateway: Gateway, key: str, session: str = "main", **more: Any) -> list[tuple[str, str]]:
    """Role and text of the newest messages of a session."""
    page = await gateway.client.use("sessions_history", session, sessionKey=key, **more)
    return [(message["role"], _text(message)) for message in page["messages"]]


def _text(message: Row) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict))


@check("sessions_send")
async def a_send_is_answered(gateway: Gateway) -> None:
    """A send that waits gets `ok`, the reply, a `runId` and the key of the session."""
    said = word()
    found = await send(gateway, f"say {said}")
    require(found.get("status") == "ok", "the status", found)
    require(said in found.get("reply", ""), "the reply", found)
    require(found.get("runId") and found.get("sessionKey") == HELPER, "runId and sessionKey", found)


@check("sessions_send")
async def a_reply_is_that_of_its_own_turn(gateway: Gateway) -> None:
    """Sends at the same time each get the reply of their own turn."""
    words = [word() for _ in range(4)]
    answers = await asyncio.gather(*(send(gateway, f"say {each}") for each in words))
    for said, answer in zip(words, answers, strict=True):
        require(said in answer.get("reply", ""), f"the reply to {said}", answer)
    require(len({answer["runId"] for answer in answers}) == len(words), "run ids are shared", answers)


@check("sessions_send")
async def without_waiting_a_send_is_accepted(gateway: Gateway) -> None:
    """With `timeoutSeconds: 0` the answer is `accepted` with a `runId`, and the turn runs."""
    said = word()
    found = await send(gateway, f"say {said}", timeoutSeconds=0)
    require(found.get("status") == "accepted" and found.get("runId"), "the answer", found)
    require("reply" not in found, "there is a reply already", found)
    await _until_said(gateway, said)


async def _until_said(gateway: Gateway, said: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            shown = await texts(gateway, HELPER)
            if any(role == "assistant" and said in text for role, text in shown):
                return
            await asyncio.sleep(0.2)


@check("sessions_send")
async def a_message_says_where_it_comes_from(gateway: Gateway) -> None:
    """The message in the target's transcript carries its provenance: kind, source session, tool."""
    said = word()
    await send(gateway, f"say {said}")
    page = await gateway.client.use("sessions_history", sessionKey=HELPER)
    inputs = [m for m in page["messages"] if m["role"] == "user" and said in _text(m)]
    require(len(inputs) == 1, "the message is in the transcript once", len(inputs))
    source = inputs[0].get("provenance") or {}
    require(source.get("kind") == "inter_session", "the kind of the provenance", source)
    require(source.get("sourceTool") == "sessions_send", "the tool of the provenance", source)
    require("main" in str(source.get("sourceSessionKey")), "the source of the provenance", source)


@check("sessions_send")
async def provenance_cannot_be_given(gateway: Gateway) -> None:
    """A caller cannot set provenance: an unknown parameter is refused."""
    found = await send(gateway, "say x", provenance={"kind": "person"})
    require(found.get("status") in ("error", "forbidden"), "provenance is accepted", found)


@check("sessions_send")
async def waiting_for_oneself_is_a_deadlock(gateway: Gateway) -> None:
    """A wait that would close a circle of waiting sessions is refused at once, with the code `deadlock`."""
    found = await send(gateway, "say x", agentId="main")
    require(found.get("status") == "forbidden", "the status", found)
    require(found.get("code") == "deadlock", "the code", found)


@check("sessions_send")
async def a_send_needs_a_message_and_a_recipient(gateway: Gateway) -> None:
    """A send without a message, or without a recipient, is refused."""
    for arguments in ({"agentId": "helper"}, {"message": "x"}, {"agentId": "helper", "message": "  "}):
        found = await gateway.client.use("sessions_send", **arguments)
        require(found.get("status") == "error", f"{arguments} is accepted", found)


@check("Visibility")
async def nobody_sends_to_whom_they_may_not_reach(gateway: Gateway) -> None:
    """A send to an agent that may not be reached is forbidden, and nothing is written there."""
    await visit(gateway, OUTSIDER)
    said = word()
    found = await send(gateway, f"say {said}", agentId="outsider")
    require(found.get("status") == "forbidden", "the status", found)
    written = await texts(gateway, "main", OUTSIDER)
    require(not any(said in text for _, text in written), "the message was written", written)


@check("Visibility")
async def search_shows_only_what_is_visible(gateway: Gateway) -> None:
    """Search finds what was said in visible sessions, and nothing of others."""
    said = word()
    await send(gateway, f"say {said}")
    seen = await gateway.client.use("sessions_search", query=said)
    require(seen.get("results"), "a visible message is found", seen)
    others = await gateway.client.use("sessions_search", OUTSIDER, query=said)
    require(not others.get("results"), "an invisible message is found", others)


@check("Send policy")
async def a_denied_session_takes_no_message(gateway: Gateway) -> None:
    """A session that the send policy denies takes no message, with the code `send_policy.denied`."""
    await visit(gateway, "agent:mute:main")
    said = word()
    found = await send(gateway, f"say {said}", agentId="mute")
    require(found.get("status") == "forbidden", "the status", found)
    require(found.get("code") == "send_policy.denied", "the code", found)
    written = await texts(gateway, "main", "agent:mute:main")
    require(not any(said in text for _, text in written), "the message was written", written)


@check("sessions_history")
async def messages_come_oldest_first_and_page_backward(gateway: Gateway) -> None:
    """The newest page comes first, oldest message first in it, and `nextCursor` pages backward."""
    words = [word() for _ in range(3)]
    for each in words:
        await send(gateway, f"say {each}")
    # Pages of two may separate every message from its reply, so the order is also looked at in a long one.
    long = await gateway.client.use("sessions_history", sessionKey=HELPER, limit=50)
    _require_order(long["messages"], words)
    page = await gateway.client.use("sessions_history", sessionKey=HELPER, limit=2)
    require(len(page["messages"]) == 2, "two messages", len(page["messages"]))
    messages = page["messages"]
    while not any(words[0] in _text(message) for message in messages if message["role"] == "user"):
        require(page.get("nextCursor"), "there is an older page", page)
        page = await gateway.client.use(
            "sessions_history", sessionKey=HELPER, limit=2, cursor=page["nextCursor"]
        )
        messages = page["messages"] + messages
    _require_order(messages, words)


def _require_order(messages: list[Row], words: list[str]) -> None:
    places = [_first(messages, role, each) for each in words for role in ("user", "assistant")]
    in_order = -1 not in places and places == sorted(set(places))
    require(in_order, "each message stands before its reply and the next one", places)


def _first(messages: list[Row], role: str, said: str) -> int:
    """The place of the first message of a role that contains a word, or -1."""
    return next((n for n, each in enumerate(messages) if each["role"] == role and said in _text(each)), -1)


@check("sessions_history")
async def tool_results_only_when_asked_for(gateway: Gateway) -> None:
    """Tool results are shown with `includeTools` only."""
    await send(gateway, "call agents_list {}")
    whole = await texts(gateway, HELPER, includeTools=True)
    if not any(role == "toolResult" for role, _ in whole):
        raise Unsupported("the model of the gateway called no tool")
    plain = await texts(gateway, HELPER)
    require(not any(role == "toolResult" for role, _ in plain), "a tool result is shown", plain[-3:])


@check("sessions_spawn")
async def a_spawn_is_accepted_with_a_receipt(gateway: Gateway) -> None:
    """A spawn answers at once with `accepted`, the run, and a key `agent:<id>:subagent:<uuid>`."""
    found = await gateway.client.use("sessions_spawn", task=f"say {word()}", agentId="helper")
    require(found.get("status") == "accepted", "the status", found)
    require(_CHILD.fullmatch(found.get("childSessionKey", "")), "the key of the child", found)
    require(found.get("runId") and found.get("model"), "runId and model", found)
    listed = by_key(await gateway.client.use("sessions_list", limit=200))
    require(found["childSessionKey"] in listed, "the child is listed under the same key", sorted(listed))


@check("sessions_spawn")
async def agents_list_is_what_spawn_accepts(gateway: Gateway) -> None:
    """`agents_list` names exactly the agents that `sessions_spawn` accepts."""
    found = await gateway.client.use("agents_list")
    ids = {row["id"] for row in found["agents"]}
    require(ids == {"main", "helper"}, "the ids", ids)
    refused = await gateway.client.use("sessions_spawn", task="say x", agentId="outsider")
    require(refused.get("status") == "forbidden", "a spawn of another agent", refused)
    require(refused.get("code") == "spawn.agent_not_allowed", "its code", refused)


@check("sessions_spawn")
async def a_result_is_reported_once(gateway: Gateway) -> None:
    """The result of a sub-agent is reported to its requester once, as Status, Result and Notes."""
    said = word()
    await gateway.client.use("sessions_spawn", task=f"say {said}", agentId="helper")
    reports: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while not reports:
            await asyncio.sleep(0.2)
            reports = [t for role, t in await texts(gateway, "main") if role == "user" and said in t]
    require(len(reports) == 1, "the number of reports", reports)
    for part in ("Status: completed", "Result:", "Notes:"):
        require(part in reports[0], f"{part} in the report", reports[0])


@check("sessions_spawn")
async def an_unknown_model_creates_nothing(gateway: Gateway) -> None:
    """A spawn with an unknown model is an error and creates no session."""
    before = set(by_key(await gateway.client.use("sessions_list", limit=200)))
    found = await gateway.client.use("sessions_spawn", task="say x", model="no-such/model-at-all")
    require(found.get("status") in ("error", "forbidden"), "the status", found)
    after = set(by_key(await gateway.client.use("sessions_list", limit=200)))
    require(after <= before, "a session was created", sorted(after - before))


@check("Durability")
async def the_same_key_has_one_effect(gateway: Gateway) -> None:
    """A send repeated with the same idempotency key has one effect and the same answer."""
    said, key = word(), str(uuid.uuid4())
    arguments: dict[str, Any] = {"agentId": "helper", "message": f"say {said}", "timeoutSeconds": WAIT_S}
    first = await gateway.client.use("sessions_send", key=key, **arguments)
    again = await gateway.client.use("sessions_send", key=key, **arguments)
    require(first.get("runId") and first["runId"] == again.get("runId"), "the run ids", [first, again])
    inputs = [t for role, t in await texts(gateway, HELPER) if role == "user" and said in t]
    require(len(inputs) == 1, "the message is in the transcript once", len(inputs))


@check("Durability")
async def what_was_accepted_survives_a_kill(gateway: Gateway) -> None:
    """Messages accepted before a kill are in the transcript once after it, and are answered."""
    words = [word() for _ in range(5)]
    keys = [str(uuid.uuid4()) for _ in words]

    async def tell(said: str, key: str) -> Row:
        arguments: dict[str, Any] = {"agentId": "helper", "message": f"say {said}", "timeoutSeconds": 0}
        return await gateway.client.use("sessions_send", key=key, **arguments)

    accepted = [await tell(said, key) for said, key in zip(words, keys, strict=True)]
    await gateway.restarted()
    again = [await tell(said, key) for said, key in zip(words, keys, strict=True)]
    require(
        [a.get("runId") for a in accepted] == [a.get("runId") for a in again], "run ids", [accepted, again]
    )
    await _until_said(gateway, words[-1])
    shown = await texts(gateway, HELPER)
    for said in words:
        inputs = [text for role, text in shown if role == "user" and said in text]
        require(len(inputs) == 1, f"{said} is in the transcript once", len(inputs))
