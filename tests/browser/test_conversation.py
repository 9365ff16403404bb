"""A conversation on the page: sending, streaming, stopping, scrolling, reconnecting."""

import re
from itertools import pairwise
from typing import Any

import pytest
from tests.browser.bulk_data import append_messages
from tests.browser.gateway_thread import READ_ONLY_TOKEN, StartGateway
from tests.browser.stepped_model import SteppedModel
from tests.browser.tab import HeldSocket, OpenTab, Tab
from tests.integration.helpers import ANN, BOB, Gate, create_sessions, three_agents, transcript
from tests.integration.helpers import append_messages as append_to_session

from hobnob.gateway import Gateway
from hobnob.store import sessions
from hobnob.testing import OWNER, calls, exchange_ended, say
from hobnob.types import text_of

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> **bold**"

MAIN = "agent:main:main"


def record_frames(tab: Tab, expression: str) -> None:
    """Record the value of an expression after each frame, so only painted states are seen."""
    tab.page.evaluate(f"""() => {{
        const box = document.querySelector('.scroller');
        window.seen = [];
        const record = () => {{
            window.seen.push({expression});
            requestAnimationFrame(() => setTimeout(record));
        }};
        record();
    }}""")


def is_answer(event: str, payload: Any) -> bool:
    return event == "session.message" and payload["message"]["role"] == "assistant"


def start_answer(tab: Tab, model: SteppedModel) -> None:
    """Open a session and let the agent stream the first word of its answer."""
    tab.server.run(lambda gateway: create_sessions(gateway, MAIN))
    tab.open_session(MAIN)
    tab.wait_for_text("No messages yet", ".messages")
    tab.send_message("Tell me a story.")
    tab.wait_for_text("Tell me a story.", ".messages .message.person")
    model.stream("Once")
    tab.wait_for_text("Once", ".streaming .message-text")
    tab.wait_for_text("running", ".conversation-head")


def test_a_message_is_answered_and_the_session_appears_in_the_list(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(three_agents()))
    tab.page.get_by_role("button", name="Write to ann").click()
    tab.send_message("what is 6 * 7?")
    tab.wait_for_text("6 * 7 = 42", ".conversation .messages")
    tab.wait_for_text("6 * 7 = 42", ".row")
    tab.wait_until(lambda: tab.page.locator(".message.pending").count() == 0)
    assert tab.page.locator(".message.person header b").inner_text() == "You"
    assert re.search(r"\d+ in · \d+ out · rehearsal", tab.page.locator(".message.agent .usage").inner_text())
    tab.wait_for_text("Sending into this session is allowed", ".composer")


def test_a_tool_call_is_folded_with_its_arguments_and_its_result(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents({ANN: [calls("sessions_list", kinds=["cron"]), "Nothing there."]}))
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.send_message("look")
    tab.wait_for_text("Nothing there.")
    fold = tab.page.locator(".tool details")
    assert fold.get_attribute("open") is None
    fold.locator("summary").click()
    tab.wait_for_text('"kinds": [', ".tool-content")
    tab.wait_for_text('"count": 0', ".tool-content")


def test_a_running_turn_can_be_stopped(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gate = Gate()
    tab = open_tab(start_gateway(three_agents({ANN: [calls("hold"), "never"]}), tools=[gate.tool]))
    tab.open_session(ANN)
    assert tab.page.get_by_role("button", name="Stop").count() == 0
    tab.send_message("go")
    tab.wait_for_text("running", ".row")
    tab.page.get_by_role("button", name="Stop").click()
    tab.wait_for_text("stopped", ".conversation-head")
    tab.page.get_by_role("button", name="Stop").wait_for(state="detached")


@pytest.mark.promise("page.streams")
def test_an_answer_streams_without_layout_shifts(
    start_gateway: StartGateway, open_tab: OpenTab, model: SteppedModel
) -> None:
    tab = open_tab(start_gateway(model.settings()))
    start_answer(tab, model)
    record_frames(tab, "[box.scrollHeight, box.scrollHeight - box.clientHeight - box.scrollTop]")
    model.stream(*(f" word{n}" for n in range(400)))
    tab.wait_for_text("word399", ".streaming")
    model.finish()
    tab.wait_for_text("word399", ".messages")
    tab.wait_for_text("idle", ".conversation-head")
    heights = tab.page.evaluate("window.seen")
    assert all(after[0] >= before[0] - 1 for before, after in pairwise(heights)), heights
    assert all(below <= 1 for _, below in heights), heights
    assert heights[-1][0] > heights[0][0] + 100


@pytest.mark.promise("page.streams")
def test_the_final_answer_replaces_the_streamed_text_in_one_frame(
    start_gateway: StartGateway, open_tab: OpenTab, model: SteppedModel
) -> None:
    tab = open_tab(start_gateway(model.settings()))
    held = HeldSocket(tab, hold_after=is_answer)
    start_answer(tab, model)
    record_frames(tab, "[...box.querySelectorAll('.message.agent .message-text')].map((el) => el.innerText)")
    model.stream(" there was an end.")
    model.finish()
    tab.wait_for_text("an end.", ".messages")
    tab.page.locator(".streaming").wait_for(state="detached")
    held.release()
    tab.wait_for_text("idle", ".conversation-head")
    seen = tab.page.evaluate("window.seen")
    pieces = [["Once"], ["Once there was an end."]]
    assert [texts for texts in seen if texts not in pieces] == []
    assert seen[-1] == pieces[-1]


def test_opening_a_session_during_a_turn_shows_it_running(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    gate = Gate()
    server = start_gateway(three_agents({ANN: [calls("hold"), "Held."]}), tools=[gate.tool])

    async def start_turn(gateway: Gateway) -> None:
        await gateway.sessions.send(OWNER, ANN, "go")
        await gate.reached.wait()

    server.run(start_turn)
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.wait_for_text("running…", ".tool")
    tab.page.locator(".streaming .dots").wait_for()

    async def release(gateway: Gateway) -> None:
        gate.open.set()

    server.run(release)
    tab.wait_for_text("Held.", ".messages")
    tab.wait_for_text("done", ".tool")
    tab.page.locator(".streaming").wait_for(state="detached")


@pytest.mark.promise("page.streams")
def test_growing_content_keeps_the_view_at_the_end(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(three_agents()))
    tab.open_session(ANN)
    tab.send_message("say hi")
    tab.wait_for_text("hi", ".message.agent")
    below = tab.page.evaluate("""async () => {
        const box = document.querySelector('.scroller');
        const tall = document.createElement('div');
        tall.style.height = '3000px';
        document.querySelector('.tail').append(tall);
        box.dispatchEvent(new Event('scroll'));
        for (let frames = 0; frames < 3; frames++) await new Promise(requestAnimationFrame);
        return box.scrollHeight - box.clientHeight - box.scrollTop;
    }""")
    assert below <= 1


@pytest.mark.promise("page.text_is_text")
def test_script_in_a_message_is_shown_as_text(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(three_agents({ANN: [f"You said: {HOSTILE}"]})))
    tab.open_session(ANN)
    tab.send_message(HOSTILE)
    tab.wait_for_text("You said: <img src=x", ".messages")
    tab.wait_for_text("<script>document.title", ".messages")
    assert tab.page.locator(".messages img, .messages script").count() == 0
    assert "taken" not in tab.page.title()
    assert tab.page.locator(".messages strong").first.inner_text() == "bold"


@pytest.mark.promise("page.provenance_is_shown")
def test_messages_of_other_agents_and_gateway_steps_show_their_provenance(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(
        three_agents(
            {
                BOB: ["Dry.", "Bye.", "We agreed."],
                ANN: [
                    calls("sessions_send", sessionKey=BOB, message="Is it dry?"),
                    "It is dry.",
                    "Thanks.",
                    "REPLY_SKIP",
                ],
            }
        )
    )
    tab = open_tab(server)
    tab.open_session(BOB)

    async def talk(gateway: Gateway) -> None:
        await say(gateway, "ask bob", ANN)
        page = await gateway.sessions.queries.exchanges(OWNER)
        await exchange_ended(gateway, page["exchanges"][0]["id"])

    server.run(talk)
    sent = tab.page.locator(".message.peer").first
    assert "from session ann" in sent.inner_text()
    assert "send" in sent.locator(".badge").inner_text()
    assert tab.page.locator(".message.peer .badge").nth(1).inner_text() == "reply-back 2"
    tab.wait_for_text("Announce step", ".message.step")
    assert tab.page.locator(".message.person").count() == 0
    sent.get_by_role("link", name="ann").click()
    tab.wait_for_text("ask bob", ".message.person")
    tab.wait_for_text("had nothing to add", ".message.step")


@pytest.mark.promise("page.survives_restarts")
def test_the_page_reconnects_after_a_gateway_restart(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(three_agents())
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.send_message("say before")
    tab.wait_for_text("before", ".message.agent")
    server.stop()
    tab.wait_for_text("reconnecting…", ".bar")
    tab.send_message("say after the restart")
    tab.wait_for_text("sending…", ".message.pending")
    server.start()
    tab.wait_for_text("after the restart", ".message.agent")
    tab.page.wait_for_selector(".connection-state.live")
    tab.wait_until(lambda: tab.page.locator(".message.agent").count() == 2)
    assert tab.page.locator(".message.person").count() == 2
    server.run(lambda gateway: say(gateway, "say more", ANN))
    tab.wait_for_text("more", ".message.agent")


def test_a_refused_message_shows_the_reason_and_stays_in_the_composer(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(three_agents(session={"sendPolicy": {"default": "deny"}})))
    tab.open_session(ANN)
    tab.wait_for_text("session.sendPolicy.default is deny", ".composer")
    tab.wait_for_text('session.sendPolicy.default = "allow"', ".composer")
    tab.send_message("hello")
    tab.wait_for_text("send_policy.denied", ".notice")
    assert tab.page.locator(".composer textarea").input_value() == "hello"
    assert tab.page.locator(".message.person").count() == 0


def test_commands_are_completed_while_typing(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(three_agents()))
    tab.open_session(ANN)
    box = tab.page.locator(".composer textarea")
    box.press_sequentially("/se")
    assert (
        tab.page.locator(".commands")
        .get_by_role("option")
        .all_inner_texts()[0]
        .startswith("/send on|off|inherit")
    )
    box.press("Tab")
    assert box.input_value() == "/send "
    box.press_sequentially("off")
    box.press("Enter")
    tab.wait_for_text("This session now takes no messages", ".messages")
    tab.wait_for_text("Sending into this session is denied", ".composer")


@pytest.mark.promise("page.failures")
def test_the_reason_of_a_failed_turn_stays_and_the_turn_can_be_retried(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    long = f"go on with {'this ' * 1_500}end"  # the page shows only its beginning
    server = start_gateway(three_agents({ANN: [{"error": "the model is gone", "times": 3}, "Here I am."]}))
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.send_message(long)
    tab.wait_for_text("the model is gone", ".messages .failure")
    tab.wait_for_text("the model is gone", ".row-last")
    assert tab.page.locator(".notice").is_hidden()
    tab.page.reload()
    tab.wait_for_text("the model is gone", ".messages .failure")
    tab.page.get_by_role("button", name="Retry").click()
    tab.wait_for_text("Here I am.", ".messages")
    assert tab.page.get_by_role("button", name="Retry").count() == 0

    async def inputs(gateway: Gateway) -> list[str]:
        found = await transcript(gateway, ANN)
        return [text_of(message) for message in found if message["role"] == "user"]

    assert server.run(inputs) == [long, long]


@pytest.mark.promise("page.failures", "page.offers_what_is_allowed")
def test_a_read_only_token_sees_why_a_turn_failed_without_a_retry(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents({ANN: [{"error": "the model is gone"}]}))
    server.run(lambda gateway: gateway.sessions.send(OWNER, ANN, "go"))
    tab = open_tab(server, token=READ_ONLY_TOKEN)
    tab.open_session(ANN)
    tab.wait_for_text("the model is gone", ".messages .failure")
    assert tab.page.get_by_role("button", name="Retry").count() == 0


@pytest.mark.promise("page.offers_what_is_allowed")
def test_a_read_only_token_disables_the_composer_and_the_actions(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    server.run(lambda gateway: say(gateway, "say hi", ANN))
    tab = open_tab(server, token=READ_ONLY_TOKEN)
    tab.open_session(ANN)
    tab.wait_for_text("hi", ".messages")
    assert tab.page.locator(".composer textarea").is_disabled()
    tab.page.get_by_role("button", name="More actions").click()
    assert tab.page.get_by_role("menuitem").all_inner_texts() == ["Tools"]


async def _create_long_transcript(gateway: Gateway) -> None:
    await create_sessions(gateway, ANN)
    await append_messages(gateway, ANN, range(1, 20_001), text="message number {}", per_write=20_000)


def visible_numbers(tab: Tab) -> list[int]:
    texts = tab.page.locator(".message .message-text").all_inner_texts()
    return [int(text.rsplit(" ", 1)[1]) for text in texts]


def scroll_to_top(tab: Tab) -> None:
    first = visible_numbers(tab)[0]
    tab.page.locator(".scroller").evaluate("(box) => { box.scrollTop = 0 }")
    tab.wait_until(lambda: visible_numbers(tab)[0] < first)


@pytest.mark.promise("page.any_place")
def test_any_message_of_a_long_transcript_is_reached_without_loading_all(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    server.run(_create_long_transcript)
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.wait_for_text("message number 20000", ".messages")
    tab.wait_for_text("20,000 / 20,000", ".transcript")
    slider = tab.page.get_by_label("Jump to a message")
    slider.evaluate("(slider) => { slider.value = 10000; slider.dispatchEvent(new Event('change')) }")
    tab.wait_for_text("message number 10000", ".messages")
    while visible_numbers(tab)[0] >= 9_700:
        scroll_to_top(tab)
    numbers = visible_numbers(tab)
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert len(numbers) <= 240
    tab.page.get_by_role("button", name="Newest").click()
    tab.wait_for_text("message number 20000", ".messages")


def test_new_messages_do_not_move_a_reader_who_scrolled_up(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    server.run(_create_long_transcript)
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.wait_for_text("message number 20000", ".messages")
    tab.page.locator(".scroller").evaluate("(box) => { box.scrollTop -= 900 }")
    tab.wait_for_text("Newest", ".transcript")
    before = tab.page.locator(".scroller").evaluate("(box) => box.scrollTop")

    async def append_two(gateway: Gateway) -> None:
        session: Any = await gateway.store.read(sessions.get, ANN)
        await append_to_session(gateway, session, "late one", "late two")

    server.run(append_two)
    tab.wait_for_text("2 new messages", ".transcript")
    assert tab.page.locator(".scroller").evaluate("(box) => box.scrollTop") == before
    tab.page.get_by_role("button", name="2 new messages").click()
    tab.wait_for_text("late two", ".messages")


def test_after_a_reset_the_old_transcript_is_readable_by_its_id(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    old = server.run(lambda gateway: say(gateway, "say old words", ANN)).session_id
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.wait_for_text("old words", ".messages")
    server.run(lambda gateway: gateway.sessions.reset(OWNER, ANN))
    tab.wait_for_text("No messages yet", ".messages")
    server.run(lambda gateway: say(gateway, "say new words", ANN))
    tab.wait_for_text("new words", ".messages")
    tab.navigate(f"#/s/agent%3Aann%3Amain/1/{old}")
    tab.wait_for_text("An earlier transcript of this session", ".notice")
    tab.wait_for_text("old words", ".messages")
    assert tab.page.locator(".composer").count() == 0
