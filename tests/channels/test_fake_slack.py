"""The fake of Slack is honest: Slack's own library works with it as with Slack."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.async_app import AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.web.async_client import AsyncWebClient
from tests.channels.fake_slack import APP_TOKEN, BOT_ID, BOT_TOKEN, BOT_USER, ROOM, FakeSlack

ANN = "U0ANN"


@pytest.fixture
async def slack() -> AsyncIterator[FakeSlack]:
    fake = FakeSlack()
    fake.add_user(ANN, "ann")
    await fake.start()
    yield fake
    await fake.stop()


def web(slack: FakeSlack) -> AsyncWebClient:
    return AsyncWebClient(BOT_TOKEN, base_url=slack.api_url, retry_handlers=[])


@asynccontextmanager
async def listening(
    slack: FakeSlack, on_event: Callable[[dict[str, Any]], Awaitable[bool]]
) -> AsyncIterator[SocketModeClient]:
    """Slack's client of Socket Mode. An event is acknowledged if `on_event` says so."""
    client = SocketModeClient(APP_TOKEN, web_client=web(slack), ping_interval=0.2)

    async def on_request(_: Any, request: SocketModeRequest) -> None:
        if await on_event(request.payload["event"]):
            await client.send_socket_mode_response({"envelope_id": request.envelope_id})

    client.socket_mode_request_listeners.append(on_request)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def collect(events: list[dict[str, Any]], event: dict[str, Any]) -> bool:
    events.append(event)
    return True


async def test_a_message_arrives_and_is_acknowledged(slack: FakeSlack) -> None:
    events: list[dict[str, Any]] = []
    async with listening(slack, lambda event: collect(events, event)):
        ts = await slack.post(slack.dm_of(ANN), "hello", user=ANN)
        await slack.until(lambda: not slack.unanswered)
    [event] = events
    assert (event["type"], event["channel_type"], event["text"], event["ts"]) == (
        "message",
        "im",
        "hello",
        ts,
    )


async def test_a_mention_in_a_channel_comes_as_two_events(slack: FakeSlack) -> None:
    events: list[dict[str, Any]] = []
    async with listening(slack, lambda event: collect(events, event)):
        await slack.post(ROOM, f"<@{BOT_USER}> hello", user=ANN)
        await slack.until(lambda: not slack.unanswered)
    assert [event["type"] for event in events] == ["message", "app_mention"]
    assert events[0]["ts"] == events[1]["ts"]


async def test_an_envelope_that_is_not_acknowledged_comes_again(slack: FakeSlack) -> None:
    slack.resend_after_s = 0.05
    events: list[dict[str, Any]] = []

    async def second_time(event: dict[str, Any]) -> bool:
        events.append(event)
        return len(events) == 2

    await slack.stop()
    await slack.start()  # with the shorter time
    async with listening(slack, second_time):
        await slack.post(slack.dm_of(ANN), "hello", user=ANN)
        await slack.until(lambda: not slack.unanswered)
    assert [event["text"] for event in events] == ["hello", "hello"]


async def test_a_reply_is_posted_in_its_thread_and_found_by_its_metadata(slack: FakeSlack) -> None:
    root = await slack.post(ROOM, "question", user=ANN)
    metadata = {"event_type": "mark", "event_payload": {"key": "7"}}
    answer = await web(slack).chat_postMessage(channel=ROOM, text="answer", thread_ts=root, metadata=metadata)
    assert answer["ok"] and answer["ts"] == slack.sent(ROOM)[0]["ts"]

    replies = await web(slack).conversations_replies(channel=ROOM, ts=root, include_all_metadata=True)
    [_, reply] = replies["messages"]
    assert (reply["bot_id"], reply["thread_ts"], reply["metadata"]) == (BOT_ID, root, metadata)
    history = await web(slack).conversations_history(channel=ROOM, include_all_metadata=True)
    assert [m["text"] for m in history["messages"]] == ["question"]


async def test_metadata_is_not_shown_unless_it_is_asked_for(slack: FakeSlack) -> None:
    metadata = {"event_type": "mark", "event_payload": {"key": "7"}}
    await web(slack).chat_postMessage(channel=ROOM, text="answer", metadata=metadata)
    [message] = (await web(slack).conversations_history(channel=ROOM))["messages"]
    assert "metadata" not in message


async def test_history_comes_in_pages_newest_first(slack: FakeSlack) -> None:
    for number in range(5):
        await slack.post(ROOM, str(number), user=ANN)
    history = await web(slack).conversations_history(channel=ROOM, limit=2)
    pages = [[m["text"] for m in page["messages"]] async for page in history]
    assert pages == [["4", "3"], ["2", "1"], ["0"]]


async def test_a_message_to_a_person_goes_to_the_direct_conversation(slack: FakeSlack) -> None:
    opened = await web(slack).conversations_open(users=ANN)
    await web(slack).chat_postMessage(channel=opened["channel"]["id"], text="hello")
    assert [m["text"] for m in slack.sent(slack.dm_of(ANN))] == ["hello"]


async def test_a_file_is_uploaded_and_downloaded(slack: FakeSlack) -> None:
    done = await web(slack).files_upload_v2(
        channel=ROOM, content=b"content", filename="notes.txt", initial_comment="Here"
    )
    [message] = slack.sent(ROOM)
    assert message["text"] == "Here" and message["files"][0]["name"] == "notes.txt"
    assert done["files"][0]["id"] == message["files"][0]["id"]

    url = message["files"][0]["url_private_download"]
    async with aiohttp.ClientSession() as http:
        async with http.get(url, headers={"Authorization": f"Bearer {BOT_TOKEN}"}) as answer:
            assert await answer.read() == b"content"
        async with http.get(url) as answer:
            assert answer.content_type == "text/html"  # the sign-in page


async def test_a_rate_limit_has_a_status_and_a_time(slack: FakeSlack) -> None:
    slack.limit_next("chat.postMessage", 7)
    with pytest.raises(SlackApiError) as refused:
        await web(slack).chat_postMessage(channel=ROOM, text="hello")
    response = refused.value.response
    assert (response.status_code, response.headers["Retry-After"]) == (429, "7")
    assert response["error"] == "ratelimited"


async def test_an_error_is_an_answer_that_is_not_ok(slack: FakeSlack) -> None:
    slack.scopes.discard("chat:write")
    with pytest.raises(SlackApiError) as refused:
        await web(slack).chat_postMessage(channel=ROOM, text="hello")
    response = refused.value.response
    assert (response.status_code, response["error"], response["needed"]) == (
        200,
        "missing_scope",
        "chat:write",
    )


async def test_each_token_is_for_its_own_methods(slack: FakeSlack) -> None:
    with pytest.raises(SlackApiError, match="not_allowed_token_type"):
        await web(slack).apps_connections_open(app_token=BOT_TOKEN)
    with pytest.raises(SlackApiError, match="invalid_auth"):
        await AsyncWebClient("xoxb-other", base_url=slack.api_url).auth_test()


async def test_messages_are_changed_deleted_and_reacted_to(slack: FakeSlack) -> None:
    client = web(slack)
    ts = (await client.chat_postMessage(channel=ROOM, text="draft"))["ts"]
    await client.chat_update(channel=ROOM, ts=ts, text="final")
    await client.reactions_add(channel=ROOM, timestamp=ts, name="eyes")
    found = await client.reactions_get(channel=ROOM, timestamp=ts)
    assert found["message"]["text"] == "final"
    assert found["message"]["reactions"] == [{"name": "eyes", "users": [BOT_USER], "count": 1}]
    await client.chat_delete(channel=ROOM, ts=ts)
    with pytest.raises(SlackApiError, match="message_not_found"):
        await client.chat_update(channel=ROOM, ts=ts, text="late")


async def test_people_and_conversations_have_names(slack: FakeSlack) -> None:
    person = await web(slack).users_info(user=ANN)
    room = await web(slack).conversations_info(channel=ROOM)
    assert person["user"]["profile"]["display_name"] == "Ann"
    assert room["channel"]["name"] == "room"


@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_a_client_opens_a_new_connection_when_it_is_asked_to(slack: FakeSlack, reason: str) -> None:
    events: list[dict[str, Any]] = []
    async with listening(slack, lambda event: collect(events, event)):
        await slack.ask_to_reconnect(reason)
        await slack.until(lambda: slack.opened == 2)
        await slack.post(slack.dm_of(ANN), "after", user=ANN)
        await slack.until(lambda: not slack.unanswered)
    assert [event["text"] for event in events] == ["after"]


async def test_a_message_from_the_time_without_a_connection_arrives_after_it(slack: FakeSlack) -> None:
    events: list[dict[str, Any]] = []
    async with listening(slack, lambda event: collect(events, event)):
        await slack.stop()
        await slack.post(slack.dm_of(ANN), "meanwhile", user=ANN)
        await slack.start()
        await slack.until(lambda: not slack.unanswered)
    assert [event["text"] for event in events] == ["meanwhile"]


async def test_an_address_of_socket_mode_works_once(slack: FakeSlack) -> None:
    url = (await web(slack).apps_connections_open(app_token=APP_TOKEN))["url"]
    async with aiohttp.ClientSession() as http:
        async with http.ws_connect(url) as socket:
            async with asyncio.timeout(60):
                assert (await socket.receive_json())["type"] == "hello"
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await http.ws_connect(url)


async def test_an_app_of_bolt_answers_in_a_thread(slack: FakeSlack) -> None:
    app = AsyncApp(client=web(slack), token=BOT_TOKEN)

    @app.event("app_mention")
    async def answer(event: dict[str, Any], say: Any) -> None:
        await say(text="Here I am", thread_ts=event["ts"])

    @app.event("message")
    async def ignore() -> None: ...

    handler = AsyncSocketModeHandler(app, APP_TOKEN, web_client=web(slack), ping_interval=0.2)
    await handler.connect_async()
    try:
        ts = await slack.post(ROOM, f"<@{BOT_USER}> hello", user=ANN)
        await slack.until(lambda: slack.sent(ROOM) and not slack.unanswered)
    finally:
        await handler.close_async()
    [reply] = slack.sent(ROOM)
    assert (reply["text"], reply["thread_ts"]) == ("Here I am", ts)
