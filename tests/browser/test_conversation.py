"""Talking to an agent on the page: it streams, stops, and goes on after a restart."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.browser.house import READER, House, Line, Visit
from tests.browser.many import say_many
from tests.browser.speaker import Speaker
from tests.integration.team import ANN, BOB, Gate, made, put, team

from hobnob.gateway import Gateway
from hobnob.store import sessions
from hobnob.testing import OWNER, calls, exchange_ended, say

Make = Callable[..., House]
Enter = Callable[..., Visit]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> **bold**"

MAIN = "agent:main:main"


def watch(one: Visit, what: str) -> None:
    """After each frame, note what an expression gives: what was painted, not what was on its way."""
    one.tab.evaluate(f"""() => {{
        const box = document.querySelector('.scroller');
        window.seen = [];
        const look = () => {{
            window.seen.push({what});
            requestAnimationFrame(() => setTimeout(look));
        }};
        look();
    }}""")


def answered(event: str, told: Any) -> bool:
    return event == "session.message" and told["message"]["role"] == "assistant"


def listen(one: Visit, speaker: Speaker) -> None:
    """Open a conversation and have the agent begin to answer. It goes on when the speaker does."""
    one.house.do(lambda inside: made(inside, MAIN))
    one.open(MAIN)
    one.see("Nothing said yet", ".messages")
    one.write("Tell me a story.")
    one.see("Tell me a story.", ".messages .message.person")
    speaker.says("Once")
    one.see("Once", ".streaming .words")
    one.see("running", ".conversation-head")


def test_what_one_writes_is_answered_and_both_stand_in_the_list(house: Make, visit: Enter) -> None:
    one = visit(house(team()))
    one.tab.get_by_role("button", name="Write to ann").click()
    one.write("what is 6 * 7?")
    one.see("6 * 7 = 42", ".conversation .messages")
    one.see("6 * 7 = 42", ".row")
    one.until(lambda: one.tab.locator(".message.pending").count() == 0)
    assert re.search(r"\d+ in · \d+ out · rehearsal", one.tab.locator(".message.agent .used").inner_text())
    one.see("Sending into this session is allowed", ".composer")


def test_a_tool_call_is_folded_with_its_arguments_and_its_result(house: Make, visit: Enter) -> None:
    gateway = house(team({ANN: [calls("sessions_list", kinds=["cron"]), "Nothing there."]}))
    one = visit(gateway)
    one.open(ANN)
    one.write("look")
    one.see("Nothing there.")
    fold = one.tab.locator(".tool details")
    assert fold.get_attribute("open") is None
    fold.locator("summary").click()
    one.see('"kinds": [', ".tool-inside")
    one.see('"count": 0', ".tool-inside")


def test_a_running_turn_can_be_stopped(house: Make, visit: Enter) -> None:
    gate = Gate()
    one = visit(house(team({ANN: [calls("hold"), "never"]}), tools=[gate.tool]))
    one.open(ANN)
    assert one.tab.get_by_role("button", name="Stop").count() == 0
    one.write("go")
    one.see("running", ".row")
    one.tab.get_by_role("button", name="Stop").click()
    one.see("stopped", ".conversation-head")
    one.tab.get_by_role("button", name="Stop").wait_for(state="detached")


@pytest.mark.promise("page.streams")
def test_an_answer_is_drawn_as_it_comes_and_nothing_above_it_moves(
    house: Make, visit: Enter, speaker: Speaker
) -> None:
    one = visit(house(speaker.settings()))
    listen(one, speaker)
    watch(one, "[box.scrollHeight, box.scrollHeight - box.clientHeight - box.scrollTop]")
    speaker.says(*(f" word{n}" for n in range(400)))
    one.see("word399", ".streaming")
    speaker.ends()
    one.see("word399", ".messages")
    one.see("idle", ".conversation-head")
    heights = one.tab.evaluate("window.seen")
    assert all(after[0] >= before[0] - 1 for before, after in pairwise(heights)), heights
    assert all(below <= 1 for _, below in heights), heights
    assert heights[-1][0] > heights[0][0] + 100


@pytest.mark.promise("page.streams")
def test_an_answer_takes_the_place_of_what_was_drawn_of_it_at_once(
    house: Make, visit: Enter, speaker: Speaker
) -> None:
    one = visit(house(speaker.settings()))
    line = Line(one, stop_after=answered)
    listen(one, speaker)
    watch(one, "[...box.querySelectorAll('.message.agent .words')].map((words) => words.innerText)")
    speaker.says(" there was an end.")
    speaker.ends()
    one.see("an end.", ".messages")
    one.tab.locator(".streaming").wait_for(state="detached")
    line.go_on()
    one.see("idle", ".conversation-head")
    seen = one.tab.evaluate("window.seen")
    pieces = [["Once"], ["Once there was an end."]]
    assert [words for words in seen if words not in pieces] == []
    assert seen[-1] == pieces[-1]


def test_whoever_comes_while_a_turn_runs_sees_that_it_does(house: Make, visit: Enter) -> None:
    gate = Gate()
    gateway = house(team({ANN: [calls("hold"), "Held."]}), tools=[gate.tool])

    async def begun(inside: Gateway) -> None:
        await inside.sessions.send(OWNER, ANN, "go")
        await gate.reached.wait()

    gateway.do(begun)
    one = visit(gateway)
    one.open(ANN)
    one.see("running…", ".tool")
    one.tab.locator(".streaming .dots").wait_for()

    async def let(inside: Gateway) -> None:
        gate.open.set()

    gateway.do(let)
    one.see("Held.", ".messages")
    one.see("done", ".tool")
    one.tab.locator(".streaming").wait_for(state="detached")


@pytest.mark.promise("page.streams")
def test_what_grows_below_does_not_leave_the_reader_behind(house: Make, visit: Enter) -> None:
    one = visit(house(team()))
    one.open(ANN)
    one.write("say hi")
    one.see("hi", ".message.agent")
    below = one.tab.evaluate("""async () => {
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
def test_script_in_a_message_is_text(house: Make, visit: Enter) -> None:
    one = visit(house(team({ANN: [f"You said: {HOSTILE}"]})))
    one.open(ANN)
    one.write(HOSTILE)
    one.see("You said: <img src=x", ".messages")
    one.see("<script>document.title", ".messages")
    assert one.tab.locator(".messages img, .messages script").count() == 0
    assert "taken" not in one.tab.title()
    assert one.tab.locator(".messages strong").first.inner_text() == "bold"


@pytest.mark.promise("page.provenance_is_shown")
def test_what_another_agent_wrote_says_from_which_session_and_steps_are_told_apart(
    house: Make, visit: Enter
) -> None:
    gateway = house(
        team(
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
    one = visit(gateway)
    one.open(BOB)

    async def talk(inside: Gateway) -> None:
        await say(inside, "ask bob", ANN)
        page = await inside.sessions.queries.exchanges(OWNER)
        await exchange_ended(inside, page["exchanges"][0]["id"])

    gateway.do(talk)
    sent = one.tab.locator(".message.peer").first
    assert "from session ann" in sent.inner_text()
    assert "send" in sent.locator(".badge").inner_text()
    assert one.tab.locator(".message.peer .badge").nth(1).inner_text() == "reply-back 2"
    one.see("Announce step", ".message.step")
    assert one.tab.locator(".message.person").count() == 0
    sent.get_by_role("link", name="ann").click()
    one.see("ask bob", ".message.person")
    one.see("had nothing to add", ".message.step")


@pytest.mark.promise("page.survives_restarts")
def test_the_page_goes_on_after_the_gateway_was_restarted(house: Make, visit: Enter) -> None:
    gateway = house(team())
    one = visit(gateway)
    one.open(ANN)
    one.write("say before")
    one.see("before", ".message.agent")
    gateway.stop()
    one.see("reconnecting…", ".bar")
    one.write("say after the restart")
    one.see("sending…", ".message.pending")
    gateway.start()
    one.see("after the restart", ".message.agent")
    one.tab.wait_for_selector(".light.live")
    one.until(lambda: one.tab.locator(".message.agent").count() == 2)
    assert one.tab.locator(".message.person").count() == 2
    gateway.do(lambda inside: say(inside, "say more", ANN))
    one.see("more", ".message.agent")


def test_a_refused_message_says_why_and_stays_in_the_box(house: Make, visit: Enter) -> None:
    one = visit(house(team(session={"sendPolicy": {"default": "deny"}})))
    one.open(ANN)
    one.see("session.sendPolicy.default is deny", ".composer")
    one.see('session.sendPolicy.default = "allow"', ".composer")
    one.write("hello")
    one.see("send_policy.denied", ".notice")
    assert one.tab.locator(".composer textarea").input_value() == "hello"
    assert one.tab.locator(".message.person").count() == 0


def test_commands_are_explained_while_one_types(house: Make, visit: Enter) -> None:
    one = visit(house(team()))
    one.open(ANN)
    box = one.tab.locator(".composer textarea")
    box.press_sequentially("/se")
    assert (
        one.tab.locator(".commands")
        .get_by_role("option")
        .all_inner_texts()[0]
        .startswith("/send on|off|inherit")
    )
    box.press("Tab")
    assert box.input_value() == "/send "
    box.press_sequentially("off")
    box.press("Enter")
    one.see("This session takes no messages now", ".messages")
    one.see("Sending into this session is denied", ".composer")


@pytest.mark.promise("page.offers_what_is_allowed")
def test_a_credential_that_may_only_read_is_offered_nothing_else(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: say(inside, "say hi", ANN))
    one = visit(gateway, token=READER["token"])
    one.open(ANN)
    one.see("hi", ".messages")
    assert one.tab.locator(".composer textarea").is_disabled()
    assert one.tab.get_by_role("button", name="More actions").count() == 0


async def _long(inside: Gateway) -> None:
    await made(inside, ANN)
    await say_many(inside, ANN, range(1, 20_001), text="message number {}", at_once=20_000)


def numbers_shown(one: Visit) -> list[int]:
    return [int(text.rsplit(" ", 1)[1]) for text in one.tab.locator(".message .words").all_inner_texts()]


def go_up(one: Visit) -> None:
    first = numbers_shown(one)[0]
    one.tab.locator(".scroller").evaluate("(box) => { box.scrollTop = 0 }")
    one.until(lambda: numbers_shown(one)[0] < first)


@pytest.mark.promise("page.any_place")
def test_any_place_of_a_long_transcript_is_reached_without_reading_all_of_it(
    house: Make, visit: Enter
) -> None:
    gateway = house(team())
    gateway.do(_long)
    one = visit(gateway)
    one.open(ANN)
    one.see("message number 20000", ".messages")
    one.see("20,000 / 20,000", ".transcript")
    rail = one.tab.get_by_label("Jump to a message")
    rail.evaluate("(rail) => { rail.value = 10000; rail.dispatchEvent(new Event('change')) }")
    one.see("message number 10000", ".messages")
    while numbers_shown(one)[0] >= 9_700:
        go_up(one)
    numbers = numbers_shown(one)
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert len(numbers) <= 240
    one.tab.get_by_role("button", name="Newest").click()
    one.see("message number 20000", ".messages")


def test_who_reads_further_up_stays_there_and_is_told_of_new_messages(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(_long)
    one = visit(gateway)
    one.open(ANN)
    one.see("message number 20000", ".messages")
    one.tab.locator(".scroller").evaluate("(box) => { box.scrollTop -= 900 }")
    one.see("Newest", ".transcript")
    before = one.tab.locator(".scroller").evaluate("(box) => box.scrollTop")

    async def more(inside: Gateway) -> None:
        session: Any = await inside.store.read(sessions.get, ANN)
        await put(inside, session, "late one", "late two")

    gateway.do(more)
    one.see("2 new messages", ".transcript")
    assert one.tab.locator(".scroller").evaluate("(box) => box.scrollTop") == before
    one.tab.get_by_role("button", name="2 new messages").click()
    one.see("late two", ".messages")


def test_after_a_reset_the_new_transcript_is_shown_and_the_old_one_by_its_id(
    house: Make, visit: Enter
) -> None:
    gateway = house(team())
    old = gateway.do(lambda inside: say(inside, "say old words", ANN)).session_id
    one = visit(gateway)
    one.open(ANN)
    one.see("old words", ".messages")
    gateway.do(lambda inside: inside.sessions.reset(OWNER, ANN))
    one.see("Nothing said yet", ".messages")
    gateway.do(lambda inside: say(inside, "say new words", ANN))
    one.see("new words", ".messages")
    one.go(f"#/s/agent%3Aann%3Amain/1/{old}")
    one.see("An earlier transcript of this session", ".notice")
    one.see("old words", ".messages")
    assert one.tab.locator(".composer").count() == 0
