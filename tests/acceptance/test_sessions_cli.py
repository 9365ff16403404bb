"""`hobnob sessions`, `exchanges` and `agents` as people use them, with a running gateway and without one."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import run_command
from tests.waiting import LIMIT_S

from hobnob.events import ExchangeChanged
from hobnob.gateway import Gateway
from hobnob.policy import Operator
from hobnob.testing import rehearse, say

GROUP = "agent:main:telegram:group:-1001234567890:thread:9988776655443322"
SETTINGS = {
    "gateway": {"port": 0},
    "agents": {
        "list": [{"id": "main", "subagents": {"allowAgents": ["*"]}}, {"id": "helper", "name": "The Helper"}]
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "models": {"rehearsal": {"scripts": {"hook:slow": [{"text": "At last.", "delayMs": 60_000}]}}},
}
OWNER = Operator()


class Cli:
    """Runs `hobnob` with one state directory."""

    def __init__(self, home: Path, served: bool) -> None:
        self.home = home
        self.served = served
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
        self.env |= {"HOBNOB_HOME": str(home), "NO_COLOR": "1"}

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "hobnob", *words],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **more,
        )

    def run(self, *words: str, code: int = 0, said: str = "") -> subprocess.CompletedProcess[str]:
        done = run_command(words, self.env, said)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def on_terminal(self, *words: str, columns: int = 80) -> list[str]:
        """The lines a terminal of that width is given."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "hobnob", *words],
            env=self.env | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # a terminal that closes is an error on Linux
            while piece := os.read(ours, 65536):
                said += piece
        os.close(ours)
        assert process.wait() == 0, said
        return re.sub(r"\x1b\[[\d;]*m", "", said.decode()).replace("\r\n", "\n").splitlines()


async def _create_sessions(home: Path) -> None:
    async with rehearse(home, SETTINGS) as gateway:
        await say(gateway, "remember the milk")
        await say(gateway, "list agents", "hook:tools")
        await say(gateway, "say good morning", "agent:helper:main")
        for question in ("ask helper: what is 6 * 7?", "ask helper: what is 1 + 1?"):
            over = _exchange_over(gateway)
            await say(gateway, question)
            await over
        await say(gateway, "say \x1b[2Jgone\x07", "hook:escape")
        await say(gateway, "say hello", GROUP)
        for name in ("patch", "reset", "archive", "delete", "keep", "deny"):
            await say(gateway, f"say {name}", f"hook:{name}")
        await say(gateway, "say away", "hook:away")
        await gateway.sessions.archive(OWNER, "hook:away")
        await gateway.sessions.patch(OWNER, "hook:keep", label="Taken")


def _exchange_over(gateway: Gateway) -> asyncio.Future[None]:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(changes: list[Any]) -> None:
        ended = [c for c in changes if isinstance(c, ExchangeChanged) and c.exchange.state != "open"]
        if ended and not over.done():
            over.set_result(None)

    gateway.store.watch(look)
    return over


@contextlib.contextmanager
def _gateway(cli: Cli, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = cli.start("serve", *more)
    assert process.stdout is not None
    try:
        assert "listens on" in process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module", params=["served", "alone"])
def cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    asyncio.run(_create_sessions(home))
    cli = Cli(home, request.param == "served")
    if not cli.served:
        yield cli
        return
    with _gateway(cli):
        yield cli


def keys_of(page: Any) -> list[str]:
    return [row["key"] for row in page["sessions"]]


def test_list_shows_the_sessions_with_their_labels(cli: Cli) -> None:
    said = cli.run("sessions", "list").stdout
    assert said.splitlines()[0].split() == ["key", "used", "state", "tokens", "label"]
    assert "agent:main:main" in said
    assert "Taken" in said
    assert "agent:main:hook:away" not in said
    assert "\x1b" not in said


def test_list_goes_on_where_the_page_before_ended(cli: Cli) -> None:
    first = cli.json("sessions", "list", "--limit", "3")
    rest = cli.json("sessions", "list", "--limit", "200", "--cursor", first["nextCursor"])
    assert len(first["sessions"]) == 3
    assert not set(keys_of(first)) & set(keys_of(rest))
    assert "--cursor " + first["nextCursor"] in cli.run("sessions", "list", "--limit", "3").stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--kind", "group"], [GROUP]),
        (["--agent", "helper"], ["agent:helper:main"]),
        (["--search", "taken"], ["agent:main:hook:keep"]),
        (["--archived"], ["agent:main:hook:away"]),
    ],
)
def test_list_can_be_narrowed(cli: Cli, options: list[str], expected: list[str]) -> None:
    assert keys_of(cli.json("sessions", "list", *options)) == expected


def test_list_fits_a_terminal_and_leaves_keys_whole(cli: Cli) -> None:
    cli.run("sessions", "patch", GROUP, "--name", "A name that is much too long for eighty columns")
    lines = cli.on_terminal("sessions", "list")
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(GROUP) for line in lines)


def test_show_prints_what_was_said(cli: Cli) -> None:
    said = cli.run("sessions", "show", "main", "--limit", "200").stdout
    assert "remember the milk" in said
    assert "I will remember: the milk" in said
    assert '→ sessions_send {"agentId":"helper","message":"what is 6 * 7?"}' in said
    assert "agent:helper:main (sessions_send)" in said


def test_show_and_status_tell_why_a_turn_failed(empty_cli: Cli) -> None:
    failing = {"models": {"rehearsal": {"scripts": {"main": [{"error": "The model is asleep."}]}}}}
    (empty_cli.home / "hobnob.json5").write_text(json.dumps(failing))
    empty_cli.run("agent", "-m", "hi", code=1)
    for command in ("show", "status"):
        assert "The model is asleep." in empty_cli.run("sessions", command, "main").stdout


def test_show_prints_what_tools_gave_back_only_when_asked(cli: Cli) -> None:
    assert "result of agents_list" not in cli.run("sessions", "show", "hook:tools").stdout
    assert "result of agents_list" in cli.run("sessions", "show", "hook:tools", "--tools").stdout


def test_show_limits_to_the_newest_and_says_so(cli: Cli) -> None:
    done = cli.run("sessions", "show", "hook:tools", "--limit", "1")
    assert "1 message" in done.stdout
    assert "--limit 2" in done.stderr
    assert len(cli.json("sessions", "show", "hook:tools", "--limit", "2")["messages"]) == 2


@pytest.mark.promise("transcript.show_jsonl")
def test_show_jsonl_prints_the_lines_of_the_transcript_file(cli: Cli) -> None:
    row = cli.json("sessions", "status", "hook:tools")
    said = cli.run("sessions", "show", "hook:tools", "--jsonl").stdout
    assert said == Path(row["transcriptPath"]).read_text()
    last = cli.run("sessions", "show", "hook:tools", "--jsonl", "--limit", "1").stdout
    assert last.splitlines() == [said.splitlines()[0], said.splitlines()[-1]]


def test_what_a_terminal_would_obey_is_shown_and_not_done(cli: Cli) -> None:
    said = "\n".join(cli.on_terminal("sessions", "show", "hook:escape"))
    assert "gone" in said
    assert "\x1b[2J" not in said
    assert "\x07" not in said


def test_status_tells_how_a_session_is_doing(cli: Cli) -> None:
    said = cli.run("sessions", "status", "main").stdout
    assert "agent:main:main" in said
    assert "rehearsal/rehearsal" in said
    assert cli.json("sessions", "status", "main")["openTurns"] == 0


def test_search_finds_words_and_says_where(cli: Cli) -> None:
    said = cli.run("sessions", "search", "milk").stdout
    assert "agent:main:main #1 · user" in said
    assert "remember the milk" in said
    assert cli.json("sessions", "search", "milk", "--session", "agent:helper:main")["count"] == 0
    assert "Nothing found" in cli.run("sessions", "search", "unheard").stderr


def test_send_prints_the_answer(cli: Cli) -> None:
    assert cli.run("sessions", "send", "hook:keep", "what is 6 * 7?").stdout == "6 * 7 = 42\n"
    answer = cli.json("sessions", "send", "hook:keep", "say hi")
    assert (answer["status"], answer["reply"]) == ("ok", "hi")


def test_send_does_not_wait_when_told_so(cli: Cli) -> None:
    answer = cli.json("sessions", "send", "hook:patch", "say later", "--timeout", "0")
    assert answer["status"] == "accepted"
    assert "reply" not in answer


def test_spawn_starts_a_sub_agent_and_says_what_runs(cli: Cli) -> None:
    receipt = cli.json("sessions", "spawn", "what is 3 + 4?", "--agent", "helper", "--timeout", "30")
    assert receipt["childSessionKey"].startswith("agent:helper:subagent:")
    assert (receipt["model"], receipt["runTimeoutSeconds"]) == ("rehearsal/rehearsal", 30)
    said = cli.run("sessions", "spawn", "what is 3 + 4?", "--label", f"sums {cli.served}").stdout
    if cli.served:
        assert "hobnob exchanges show" in said
    else:
        assert receipt["exchange"]["state"] == "done"
        assert "3 + 4 = 7" in said


@pytest.mark.promise("join.the_same_verbs_for_scripts")
def test_spawn_runs_several_tasks_and_prints_all_results(cli: Cli) -> None:
    tasks = ["what is 3 + 4?", "what is 5 + 6?"]
    answer = cli.json("sessions", "spawn", "--wait", "all", *tasks)
    assert (answer["status"], answer["pending"]) == ("ok", [])
    assert [row["reply"] for row in answer["completed"]] == ["3 + 4 = 7", "5 + 6 = 11"]
    said = cli.run("sessions", "spawn", "--wait", "2", *tasks).stdout
    assert "3 + 4 = 7" in said and "5 + 6 = 11" in said
    assert "--wait" in cli.run("sessions", "spawn", *tasks, code=2).stderr


def test_patch_sets_and_takes_back(cli: Cli) -> None:
    cli.run("sessions", "patch", "hook:patch", "--label", "Mine", "--thinking", "high", "--name", "Patched")
    row = cli.json("sessions", "status", "hook:patch")
    assert (row["label"], row["thinkingLevel"], row["displayName"]) == ("Mine", "high", "Patched")
    cli.run("sessions", "patch", "hook:patch", "--label", "")
    assert "label" not in cli.json("sessions", "status", "hook:patch")


def test_a_session_that_takes_nothing_says_so_until_the_policy_is_taken_back(cli: Cli) -> None:
    cli.run("sessions", "patch", "hook:deny", "--send-policy", "deny")
    refused = cli.run("sessions", "send", "hook:deny", "hi", code=1)
    assert "denied" in refused.stderr
    assert "hobnob explain" in refused.stderr
    cli.run("sessions", "patch", "hook:deny", "--send-policy", "inherit")
    assert cli.json("sessions", "send", "hook:deny", "say hi")["reply"] == "hi"


def test_reset_begins_anew_and_says_how_to_read_the_old_transcript(cli: Cli) -> None:
    done = cli.json("sessions", "reset", "hook:reset")
    assert cli.json("sessions", "show", "hook:reset")["messages"] == []
    old = cli.json("sessions", "show", done["previousSessionId"])
    assert old["messages"][0]["content"] == "say reset"
    assert "hobnob sessions show" in cli.run("sessions", "reset", "hook:reset").stdout


def test_an_archived_session_comes_back_when_restored(cli: Cli) -> None:
    assert "Archived agent:main:hook:archive" in cli.run("sessions", "archive", "hook:archive").stdout
    refused = cli.run("sessions", "send", "hook:archive", "hi", code=1)
    assert "archived" in refused.stderr
    assert "hobnob sessions restore" in refused.stderr
    cli.run("sessions", "restore", "hook:archive")
    assert cli.json("sessions", "send", "hook:archive", "say hi")["reply"] == "hi"


def test_delete_asks_first(cli: Cli) -> None:
    assert (
        "Delete agent:main:hook:delete"
        in cli.run("sessions", "delete", "hook:delete", code=1, said="n\n").stderr
    )
    assert "--yes" in cli.run("sessions", "delete", "hook:delete", "--json", code=2).stderr
    assert cli.json("sessions", "status", "hook:delete")["key"] == "agent:main:hook:delete"
    assert cli.json("sessions", "delete", "hook:delete", "--yes")["deleted"] is True
    cli.run("sessions", "status", "hook:delete", code=1)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["show", "hook:nobody"], 1, "`hobnob sessions list` shows the sessions"),
        (["show", "hook:nobody", "--jsonl"], 1, "There is no session"),
        (["send", "hook:nobody", "hi"], 1, "There is no session"),
        (["spawn", "x", "--from", "hook:nobody"], 1, "There is no session"),
        (["delete", "hook:nobody", "--yes"], 1, "There is no session"),
        (["show", "01a1e1b3-e3cd-7000-8000-000000000000"], 1, "There is no session with the id"),
        (["show", "hook:.."], 2, "path segments"),
        (["show", "main", "--json", "--jsonl"], 2, "Choose one"),
        (["list", "--cursor", "made-up"], 2, "Leave it out"),
        (["send", "hook:away", "hi"], 1, "`hobnob sessions restore KEY`"),
        (["send", "main", " "], 2, "The message is empty"),
        (["spawn", "x", "--agent", "ghost"], 1, "There is no agent 'ghost'"),
        (["spawn", "x", "--model", "no/such"], 2, "no provider 'no'"),
        (["patch", "main"], 2, "nothing to change"),
        (["patch", "main", "--label", "Taken"], 1, "already has the label 'Taken'"),
        (["search", " "], 2, "The query is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_refusal_is_a_sentence_on_stderr_and_an_exit_code(
    cli: Cli, words: list[str], code: int, says: str
) -> None:
    done = cli.run("sessions", *words, code=code)
    assert says in done.stderr
    assert done.stdout == ""


def test_exchanges_tell_who_told_whom_what(cli: Cli) -> None:
    listed = cli.run("exchanges", "list").stdout
    assert "agent:main:main → agent:helper:main" in listed
    assert "what is 6 * 7?" in listed
    first = cli.json("exchanges", "list")["exchanges"][-1]
    said = cli.run("exchanges", "show", first["id"]).stdout
    for words in (
        "main → helper  asks",
        "helper → main  answers",
        "6 * 7 = 42",
        "main  stays silent",
        "helper → its chat  announces",
        "delivered to webchat",
        "The conversation ended because main had nothing to add (reply_skip).",
        "Done: the announcement was delivered (delivered).",
    ):
        assert words in said
    assert cli.json("exchanges", "show", first["id"])["loopEnd"] == "reply_skip"


@pytest.mark.promise("exchange.shown", "exchange.shows_its_steps", "exchange.shows_its_delivery")
def test_an_exchange_is_shown_with_its_steps_and_its_delivery(cli: Cli) -> None:
    first = cli.json("exchanges", "list")["exchanges"][-1]
    shown = cli.json("exchanges", "show", first["id"])
    assert (shown["requester"], shown["target"]) == ("agent:main:main", "agent:helper:main")
    assert (shown["state"], shown["end"], shown["hop"]) == ("done", "delivered", 1)
    assert shown["createdAt"] <= shown["updatedAt"]
    primary, reply, announce = shown["steps"]
    assert (primary["step"], primary["sessionKey"], primary["status"]) == (
        "primary",
        "agent:helper:main",
        "ok",
    )
    assert primary["text"] == "6 * 7 = 42"
    assert primary["usage"]["output"] > 0
    assert (reply["step"], reply["skipped"]) == ("reply", True)
    assert announce["runId"] not in (primary["runId"], reply["runId"])
    assert shown["delivery"] == {
        "state": "delivered",
        "channel": "webchat",
        "to": "agent:helper:main",
        "attempts": 1,
    }


def test_an_exchange_is_named_by_the_beginning_of_its_id(cli: Cli) -> None:
    newest = cli.run("exchanges", "list", "--limit", "1").stdout.split()[0]
    assert len(newest) < 36
    assert newest in cli.run("exchanges", "show", newest).stdout
    ambiguous = cli.run("exchanges", "show", "0", code=2)
    assert "Several exchanges start with 0" in ambiguous.stderr
    assert "Give more of the id" in ambiguous.stderr
    unknown = cli.run("exchanges", "show", "ffff", code=1)
    assert "`hobnob exchanges list` shows the exchanges" in unknown.stderr


def test_explain_asks_the_gateway(cli: Cli) -> None:
    text = cli.run("explain", "agent:helper:main", "control", "agent:helper:main").stdout
    assert text.startswith("May agent:helper:main control agent:helper:main? yes")
    text = cli.run("explain", "agent:helper:main", "control", "main").stdout
    assert text.startswith("May agent:helper:main control agent:main:main? no")
    verdict = cli.json("explain", "owner", "send", "hook:keep")
    assert (verdict["from"], verdict["to"], verdict["allowed"]) == ("owner", "agent:main:hook:keep", True)
    assert list(verdict) == [
        *("from", "action", "to", "allowed", "code", "why", "fix", "command", "settings")
    ]


def test_agents_are_listed(cli: Cli) -> None:
    said = cli.run("agents", "list").stdout
    assert "main (default)" in said
    assert "The Helper" in said
    assert cli.json("agents", "list")["defaultId"] == "main"


def test_cleanup_says_what_it_would_remove(cli: Cli) -> None:
    before = cli.json("sessions", "list")
    planned = cli.json("sessions", "cleanup", "--dry-run")
    assert (planned["dryRun"], planned["total"]) == (True, sum(planned["counts"].values()))
    assert keys_of(cli.json("sessions", "list")) == keys_of(before)


@pytest.fixture
def empty_cli(tmp_path: Path) -> Cli:
    (tmp_path / "hobnob.json5").write_text(json.dumps(SETTINGS))
    return Cli(tmp_path, served=False)


def test_where_nothing_was_ever_said_one_is_told_how_to_begin(empty_cli: Cli) -> None:
    assert "hobnob agent -m" in empty_cli.run("sessions", "list").stderr
    assert "hobnob demo" in empty_cli.run("exchanges", "list").stderr
    assert empty_cli.json("sessions", "list")["sessions"] == []


def test_cleanup_removes_what_is_due_and_says_how_much(empty_cli: Cli) -> None:
    config = empty_cli.home / "hobnob.json5"
    config.write_text(json.dumps(SETTINGS | {"session": {"maintenance": {"mode": "warn", "maxEntries": 1}}}))
    assert "Nothing is due" in empty_cli.run("sessions", "cleanup").stderr
    for key in ("hook:1", "hook:2"):
        empty_cli.run("agent", "-m", "say hi", "--session", key)
    told = empty_cli.run("sessions", "cleanup")
    assert "would be removed" in told.stdout and "sessionsDeleted" in told.stdout
    assert "--enforce" in told.stderr
    assert "would" not in empty_cli.run("sessions", "cleanup", "--enforce").stdout
    assert keys_of(empty_cli.json("sessions", "list")) == ["agent:main:hook:2"]


def test_looking_does_not_set_agents_to_work(empty_cli: Cli) -> None:
    empty_cli.run("agent", "-m", "say hi")
    said = empty_cli.run("sessions", "send", "main", "say later", "--timeout", "0").stderr
    assert "hobnob serve" in said
    for _ in range(2):
        assert empty_cli.json("sessions", "status", "main")["openTurns"] == 1
    assert len(empty_cli.json("sessions", "show", "main")["messages"]) == 2


def test_commands_at_the_same_time_take_turns(empty_cli: Cli) -> None:
    empty_cli.run("agent", "-m", "say hi")
    started = [empty_cli.start("sessions", "list", "--json") for _ in range(4)]
    for process in started:
        said, _ = process.communicate()
        assert process.returncode == 0, said
        assert keys_of(json.loads(said)) == ["agent:main:main"]


def test_without_a_gateway_one_is_told_what_is_left_under_way(empty_cli: Cli) -> None:
    send = {"name": "sessions_send", "arguments": {"agentId": "helper", "message": "what is 6 * 7?"}}
    reply = {"text": "Thank you.", "delayMs": 600_000}  # the exchange is open as long as this is written
    scripts = {"agent:main:main": [{"toolCalls": [send]}, "Asked.", reply]}
    settings = SETTINGS | {"models": {"rehearsal": {"scripts": scripts}}}
    (empty_cli.home / "hobnob.json5").write_text(json.dumps(settings))
    done = empty_cli.run("agent", "-m", "ask the helper")
    assert "1 exchange still open. To continue: hobnob serve" in done.stderr


def test_a_first_spawn_makes_the_main_session(empty_cli: Cli) -> None:
    assert empty_cli.json("sessions", "spawn", "say hi")["exchange"]["requester"] == "agent:main:main"


def test_a_sub_agent_that_fails_is_a_failure(empty_cli: Cli) -> None:
    failing = {"models": {"rehearsal": {"scripts": {"*": [{"error": "no such luck"}]}}}}
    (empty_cli.home / "hobnob.json5").write_text(json.dumps(failing))
    done = empty_cli.run("sessions", "spawn", "x", code=1)
    assert "no such luck" in done.stdout


def test_an_answer_that_takes_too_long_is_not_waited_for(empty_cli: Cli) -> None:
    asyncio.run(_made(empty_cli.home, "hook:slow"))
    done = empty_cli.run("sessions", "send", "hook:slow", "hi", "--timeout", "1", code=1)
    assert "No answer within 1 second." in done.stderr


async def _made(home: Path, key: str) -> None:
    async with rehearse(home, SETTINGS) as gateway:
        await gateway.sessions.create(OWNER, key)


def test_tail_needs_a_running_gateway(empty_cli: Cli) -> None:
    assert "hobnob serve" in empty_cli.run("sessions", "tail", "main", code=1).stderr


@contextlib.contextmanager
def _tail(cli: Cli, key: str) -> Iterator[subprocess.Popen[str]]:
    # A test run in the background is deaf to Ctrl-C, and so would be its children.
    deaf = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    process = cli.start("sessions", "tail", key, **deaf)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words!r} never came")


def test_tail_shows_what_is_said_as_it_is_said_until_ctrl_c(empty_cli: Cli) -> None:
    empty_cli.run("agent", "-m", "say early")
    with _gateway(empty_cli), _tail(empty_cli, "main") as tail:
        _read_until(tail, "  early")
        empty_cli.run("sessions", "send", "main", "ask helper: what is 6 * 7?")
        _read_until(tail, "→ sessions_send")
        _read_until(tail, "6 * 7 = 42")
        tail.send_signal(signal.SIGINT)
        rest, _ = tail.communicate(timeout=LIMIT_S)
        assert tail.returncode == 0
        assert "Traceback" not in rest


def test_tail_goes_on_when_the_gateway_was_restarted(empty_cli: Cli) -> None:
    empty_cli.run("agent", "-m", "say early")
    port = str(_free_port())
    with _gateway(empty_cli, "--port", port) as gateway, _tail(empty_cli, "main") as tail:
        _read_until(tail, "  early")
        gateway.kill()
        _read_until(tail, "waiting for the gateway")
        empty_cli.run("agent", "-m", "say while it was away")
        with _gateway(empty_cli, "--port", port):
            _read_until(tail, "  while it was away")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_broken_configuration_is_told_and_nothing_is_opened(tmp_path: Path) -> None:
    (tmp_path / "hobnob.json5").write_text("{agents: 3}")
    cli = Cli(tmp_path, served=False)
    assert "agents" in cli.run("sessions", "list", code=2).stderr
    assert not (tmp_path / "hobnob.db").exists()


def test_compact_summarises_and_says_what_is_covered(cli: Cli) -> None:
    done = cli.json("sessions", "compact", "hook:patch", "--focus", "numbers")
    first, last = done["covers"]
    assert done["compacted"] and first == 1 and last > 1
    assert f"summary of messages 1 to {last}" in cli.run("sessions", "show", "hook:patch").stdout
