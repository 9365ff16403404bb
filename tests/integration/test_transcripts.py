"""What stands in a transcript, whoever wrote it, and that it stays as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    append_messages,
    create_sessions,
    spawn_and_wait,
    spawning_agents,
    three_agents,
    transcript,
    use,
    wait_until_idle,
)
from tests.waiting import LIMIT_S

from hobnob.models import Finished
from hobnob.models.rehearsal import Rehearsal
from hobnob.store import entries, sessions
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say


@pytest.mark.promise("transcript.append_only")
async def test_whatever_is_done_to_a_session_what_was_said_stays_as_it_was(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await use(gateway, "agents_list", BOB)
        session = await gateway.store.read(sessions.get, BOB)
        before = await gateway.store.read(entries.history, session.session_id)
        await gateway.sessions.patch(OWNER, BOB, label="x", send_policy="allow", thinking_level="high")
        turn = await gateway.sessions.send(OWNER, BOB, "say: stopped")
        await gateway.sessions.abort(OWNER, BOB)
        await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="say: yes")
        await exchange_ended(gateway, answer["exchangeId"])
        await gateway.sessions.archive(OWNER, BOB)
        await gateway.sessions.restore(OWNER, BOB)
        await gateway.sessions.reset(OWNER, BOB)
        after = await gateway.store.read(entries.history, session.session_id)
        assert after[: len(before)] == before
        assert len(after) > len(before)
    async with rehearse(tmp_path, three_agents()) as gateway:
        assert await gateway.store.read(entries.history, session.session_id) == after


@pytest.mark.promise("transcript.provenance")
async def test_every_message_that_no_person_wrote_says_where_it_comes_from(tmp_path: Path) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="What is it?"), "Done.", "And?", "REPLY_SKIP"],
        BOB: ["It is 42.", "Nothing.", "Told."],
    }
    async with rehearse(tmp_path, spawning_agents(scripts)) as gateway:
        await say(gateway, "go", ANN)
        [found] = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        await exchange_ended(gateway, found["id"])
        for key, by_person in ((ANN, ["go"]), (BOB, [])):
            messages = [m for m in await transcript(gateway, key) if m["role"] == "user"]
            assert len(messages) == 3
            assert [m["content"] for m in messages if "provenance" not in m] == by_person
            others = [m["provenance"] for m in messages if "provenance" in m]
            assert {(p["kind"], p["sourceTool"]) for p in others} == {("inter_session", "sessions_send")}


@pytest.mark.promise("transcript.provenance", "report.recorded_with_the_requester")
async def test_a_task_and_its_report_say_where_they_come_from(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, BOB, task="say done")
        await wait_until_idle(gateway, BOB)
        task, announce = [m for m in await transcript(gateway, ended["target"]) if m["role"] == "user"]
        report = (await transcript(gateway, BOB))[-1]
        assert [m["provenance"]["sourceSessionKey"] for m in (task, announce)] == [BOB, BOB]
        assert report["provenance"]["sourceSessionKey"] == ended["target"]
        assert {m["provenance"]["sourceTool"] for m in (task, announce, report)} == {"sessions_spawn"}


@pytest.mark.promise("transcript.images")
async def test_a_message_with_a_picture_is_kept_with_it(tmp_path: Path) -> None:
    picture = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, picture]}
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        await append_messages(gateway, hook, message)
        assert await transcript(gateway, hook.key) == [message]


@pytest.mark.promise("transcript.thinking")
async def test_an_answer_is_kept_with_what_the_model_showed_of_its_thinking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thought = {"type": "thinking", "thinking": "Hm, 42?"}

    async def thinking(self: Rehearsal, request: Any) -> Any:
        yield Finished({"role": "assistant", "content": [thought, {"type": "text", "text": "42"}]})

    monkeypatch.setattr(Rehearsal, "stream", thinking)
    async with rehearse(tmp_path, three_agents()) as gateway:
        assert (await say(gateway, "?", BOB)).reply == "42"
        assert (await transcript(gateway, BOB))[-1]["content"] == [thought, {"type": "text", "text": "42"}]


@pytest.mark.promise("transcript.files_are_where_rows_say", "list.row_transcript_path")
async def test_the_file_of_a_transcript_is_where_its_row_says(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: hello", BOB)
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        kept = await transcript(gateway, BOB)
    lines = [json.loads(line) for line in Path(row["transcriptPath"]).read_text().splitlines()]
    assert lines[0]["sessionKey"] == BOB
    assert [line["message"] for line in lines[1:]] == kept
