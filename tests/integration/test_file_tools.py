"""The file tools: what they do in the workspace, and that nothing leads out of it."""

import asyncio
import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import three_agents, use
from tests.integration.sandboxed import needs_sandbox
from tests.integration.test_durability import on_a_small_disk
from tests.waiting import TimeLimit, until

from hobnob.models import Request
from hobnob.testing import OWNER, rehearse, say
from hobnob.tools import Context
from hobnob.workspaces import service

Place = dict[str, Any]


@pytest.fixture(params=["in the gateway", pytest.param("in the sandbox", marks=needs_sandbox)])
def place(request: pytest.FixtureRequest) -> Place:
    """Settings by which the file tools work here or there: what they do is the same."""
    mode = "all" if request.param == "in the sandbox" else "off"
    return {"agents": {"defaults": {"sandbox": {"mode": mode}}}}


def workspace(home: Path, agent: str = "main") -> Path:
    return home / "agents" / agent / "workspace"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the workspace that no tool may get at."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the crown jewels\n")
    workspace(tmp_path).mkdir(parents=True)
    return secret


@pytest.mark.promise("files.read_write_edit")
async def test_a_file_is_written_read_and_edited_and_the_edit_shows_a_diff(
    tmp_path: Path, place: Place
) -> None:
    async with rehearse(tmp_path, place) as gateway:
        written = await use(gateway, "write", "main", path="notes/a.md", content="one\ntwo\nthree\n")
        assert (written["created"], written["bytes"]) == (True, 14)
        edited = await use(gateway, "edit", "main", path="notes/a.md", oldText="two", newText="2")
        assert "-two\n+2\n" in edited["diff"]
        assert (await use(gateway, "read", "main", path="/workspace/notes/a.md"))[
            "content"
        ] == "one\n2\nthree\n"
    assert (workspace(tmp_path) / "notes" / "a.md").read_text() == "one\n2\nthree\n"


async def test_a_replacement_that_would_be_enormous_is_refused_before_it_is_made(
    tmp_path: Path, place: Place
) -> None:
    workspace(tmp_path).mkdir(parents=True)
    (workspace(tmp_path) / "a").write_text("a" * 5_000_000)
    async with rehearse(tmp_path, place) as gateway:
        edit = {"path": "a", "oldText": "a", "newText": "b" * 200_000, "replaceAll": True}  # a terabyte
        answer = await use(gateway, "edit", "main", **edit)
    assert "would become larger than 10,000,000 bytes" in answer["error"]


async def test_an_edit_of_lines_that_are_hard_to_compare_ends_soon(tmp_path: Path) -> None:
    before = "".join(f"{n % 150} x\n" for n in range(60_000))
    workspace(tmp_path).mkdir(parents=True)
    (workspace(tmp_path) / "a").write_text(before)
    async with rehearse(tmp_path) as gateway:
        answer = await use(gateway, "edit", "main", path="a", oldText="7 x", newText="8 y", replaceAll=True)
        assert answer["diff"] == "(the change is too large to show)"
        one = await use(
            gateway, "edit", "main", path="a", oldText="149 x\n0 x", newText="z", replaceAll=False
        )
        assert "times" in one["error"]


@pytest.mark.parametrize("end", ["\n", ""])
async def test_a_long_file_is_read_from_any_line(tmp_path: Path, place: Place, end: str) -> None:
    workspace(tmp_path).mkdir(parents=True)
    (workspace(tmp_path) / "a").write_text("".join(f"{n}\n" for n in range(1, 50_000)) + f"50000{end}")
    async with rehearse(tmp_path, place) as gateway:
        for first in (1, 2, 13_000, 49_999, 50_000):
            page = await use(gateway, "read", "main", path="a", offset=first, limit=1)
            assert page["content"].strip() == str(first)
            assert page.get("nextOffset", 50_001) == first + 1
        beyond = await use(gateway, "read", "main", path="a", offset=60_000)
        assert (beyond["content"], beyond["totalLines"]) == ("", 50_000)


@pytest.mark.promise("files.private_workspace")
async def test_a_workspace_is_made_for_its_owner_only(tmp_path: Path, place: Place, umask: int) -> None:
    async with rehearse(tmp_path, place) as gateway:
        await use(gateway, "write", "main", path="a", content="x")
    assert stat.S_IMODE(workspace(tmp_path).stat().st_mode) == 0o700


async def test_each_agent_has_a_workspace_of_its_own(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await use(gateway, "write", "agent:ann:main", path="a.txt", content="ann's")
        answer = await use(gateway, "read", "agent:bob:main", path="a.txt")
        assert answer["code"] == "file.trouble"
        reach = await use(gateway, "read", "agent:bob:main", path="../../ann/workspace/a.txt")
        assert reach["code"] == "files.outside"


async def test_a_folder_is_listed_and_searched(tmp_path: Path, place: Place) -> None:
    async with rehearse(tmp_path, place) as gateway:
        await use(gateway, "write", "main", path="src/a.py", content="def hobnob():\n    pass\n")
        await use(gateway, "write", "main", path="b.txt", content="Hobnob\n")
        listed = await use(gateway, "ls", "main")
        assert listed["entries"] == [{"name": "b.txt", "bytes": 7}, {"name": "src/"}]
        found = await use(gateway, "grep", "main", pattern="HOB.ob", ignoreCase=True)
        assert [(m["path"], m["line"]) for m in found["matches"]] == [("b.txt", 1), ("src/a.py", 1)]
        only = await use(gateway, "grep", "main", pattern="hobnob", glob="*.py", path="src")
        assert [m["path"] for m in only["matches"]] == ["src/a.py"]


@pytest.mark.parametrize(
    ("old", "said"),
    [("zwei", "does not occur"), ("o", "occurs 2 times"), ("", "empty")],
)
async def test_an_edit_that_is_not_exact_changes_nothing(
    tmp_path: Path, place: Place, old: str, said: str
) -> None:
    async with rehearse(tmp_path, place) as gateway:
        await use(gateway, "write", "main", path="a", content="one two\r\n")
        answer = await use(gateway, "edit", "main", path="a", oldText=old, newText="x")
        assert answer["status"] == "error"
        assert said in answer["error"]
    assert (workspace(tmp_path) / "a").read_bytes() == b"one two\r\n"


@pytest.mark.promise("files.confined")
@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "a/../../secret.txt",
        "/etc/passwd",
        "/workspace/../etc/passwd",
        "/workspacex/a",
        "~/secret.txt",
        "/proc/self/environ",
        "//etc/passwd",
    ],
)
async def test_no_path_leads_out_of_the_workspace(tmp_path: Path, place: Place, path: str) -> None:
    async with rehearse(tmp_path, place) as gateway:
        for tool, more in (("read", {}), ("write", {"content": "x"}), ("ls", {}), ("grep", {"pattern": "x"})):
            answer = await use(gateway, tool, "main", path=path, **more)
            assert (answer["status"], answer["code"]) == ("forbidden", "files.outside"), tool


@pytest.mark.promise("files.no_links")
async def test_no_link_is_followed_to_a_file_or_through_a_folder(
    tmp_path: Path, place: Place, outside: Path
) -> None:
    here = workspace(tmp_path)
    (here / "file").symlink_to(outside)
    (here / "folder").symlink_to(tmp_path)
    async with rehearse(tmp_path, place) as gateway:
        for path in ("file", "folder/secret.txt"):
            for tool, more in (
                ("read", {}),
                ("write", {"content": "x"}),
                ("edit", {"oldText": "crown", "newText": "x"}),
                ("grep", {"pattern": "crown"}),
            ):
                answer = await use(gateway, tool, "main", path=path, **more)
                assert answer["status"] == "error", (tool, answer)
                assert "jewels" not in str(answer)
        assert (await use(gateway, "ls", "main", path="folder"))["status"] == "error"
        assert (await use(gateway, "grep", "main", pattern="crown"))["count"] == 0
    assert outside.read_text() == "the crown jewels\n"


@pytest.mark.promise("files.no_links")
async def test_a_folder_that_is_swapped_for_a_link_all_the_time_leads_nowhere(
    tmp_path: Path, place: Place, outside: Path
) -> None:
    here, over = workspace(tmp_path), threading.Event()
    (here / "real").mkdir()
    (here / "real" / "secret.txt").write_text("harmle" + "s" * 1000)

    def swap() -> None:
        while not over.wait(0.001):
            os.rename(here / "real", here / "spare")
            (here / "real").symlink_to(tmp_path)
            (here / "real").unlink()
            os.rename(here / "spare", here / "real")

    racing, seen = threading.Thread(target=swap), set()
    async with rehearse(tmp_path, place) as gateway:
        turn = await say(gateway, "hello")
        context = Context(await gateway.sessions.resolve(OWNER, turn.session_key), turn)
        box = await gateway.toolbox(context.session)
        racing.start()
        try:
            for _ in range(300 if not gateway.config.settings.agents.needs_sandbox else 30):
                seen.add((await box.call(context, "read", {"path": "real/secret.txt"})).text)
                await box.call(context, "edit", {"path": "real/secret.txt", "oldText": "s", "newText": "z"})
        finally:
            over.set()
            racing.join()
    assert any("harmle" in text for text in seen)
    assert not any("jewels" in text for text in seen)
    assert outside.read_text() == "the crown jewels\n"


@pytest.mark.promise("files.no_links")
async def test_a_hard_link_to_a_file_outside_is_neither_read_nor_written_through(
    tmp_path: Path, place: Place, outside: Path
) -> None:
    os.link(outside, workspace(tmp_path) / "file")
    async with rehearse(tmp_path, place) as gateway:
        answer = await use(gateway, "read", "main", path="file")
        assert "hard link" in answer["error"]
        assert (await use(gateway, "grep", "main", pattern="crown"))["count"] == 0
        await use(gateway, "write", "main", path="file", content="mine")
    assert outside.read_text() == "the crown jewels\n"
    assert (workspace(tmp_path) / "file").read_text() == "mine"


async def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, place: Place, outside: Path) -> None:
    os.mkfifo(workspace(tmp_path) / "pipe")
    async with rehearse(tmp_path, place) as gateway:
        assert "not a regular file" in (await use(gateway, "read", "main", path="pipe"))["error"]
        assert (await use(gateway, "write", "main", path="pipe", content="x"))["status"] == "error"
        assert "folder" in (await use(gateway, "read", "main", path="."))["error"]


async def test_a_file_that_is_no_text_is_described_and_never_edited(
    tmp_path: Path, place: Place, outside: Path
) -> None:
    (workspace(tmp_path) / "p.png").write_bytes(b"\x89PNG\0\0abc")
    (workspace(tmp_path) / "latin.txt").write_bytes(b"caf\xe9\n")
    async with rehearse(tmp_path, place) as gateway:
        answer = await use(gateway, "read", "main", path="p.png")
        assert (answer["binary"], answer["bytes"], answer["mimeType"]) == (True, 9, "image/png")
        for path, old in (("p.png", "abc"), ("latin.txt", "caf")):
            said = await use(gateway, "edit", "main", path=path, oldText=old, newText="x")
            assert "not UTF-8 text" in said["error"]
    assert (workspace(tmp_path) / "latin.txt").read_bytes() == b"caf\xe9\n"


@pytest.mark.promise("files.bounded")
async def test_a_file_of_a_gigabyte_is_read_in_small_pieces(
    tmp_path: Path, place: Place, outside: Path
) -> None:
    with (workspace(tmp_path) / "big").open("wb") as file:
        file.write(b"first\nsecond\n" + b"x" * 20_000)
        file.truncate(1 << 30)
    (workspace(tmp_path) / "long").write_text("line\n" * 50_000)
    async with rehearse(tmp_path, place) as gateway:
        answer = await use(gateway, "read", "main", path="big", limit=2)
        assert (answer["content"], answer["nextOffset"]) == ("first\nsecond\n", 3)
        assert (
            "too large" in (await use(gateway, "edit", "main", path="big", oldText="x", newText="y"))["error"]
        )
        page = await use(gateway, "read", "main", path="long", offset=49_999)
        assert (page["lines"], page["totalLines"]) == (2, 50_000)
        first = await use(gateway, "read", "main", path="long")
        assert (first["lines"], first["nextOffset"]) == (2000, 2001)


@pytest.mark.promise("files.bounded")
async def test_a_pattern_that_takes_for_ever_is_ended_and_holds_up_nobody(
    tmp_path: Path, place: Place, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = TimeLimit(monkeypatch)
    monkeypatch.setattr(service, "JOB_TIMEOUT_S", limit.SECONDS)
    (workspace(tmp_path) / "a").write_text("a" * 40 + "\n")
    async with rehearse(tmp_path, place) as gateway:
        slow = asyncio.create_task(use(gateway, "grep", "main", pattern="(a+)+b"))
        for n in range(3):
            assert (await say(gateway, "say: here", f"hook:{n}")).reply == "here"
        assert not slow.done()
        await until(lambda: limit.begun)
        limit.expire()
        assert "took longer than 599 seconds" in (await slow)["error"]


async def test_a_search_that_cannot_be_watched_is_ended(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace(tmp_path) / "a").write_text("a" * 40 + "\n")

    def no_more(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with rehearse(tmp_path) as gateway:
        monkeypatch.setattr(os, "pidfd_open", no_more)
        answer = await use(gateway, "grep", "main", pattern="(a+)+b")
        assert "The job failed" in answer["error"]
        monkeypatch.undo()
        own = [pid for tid in os.listdir("/proc/self/task") for pid in children(tid)]
        assert not any("hobnob.workspaces.guest" in Path(f"/proc/{pid}/cmdline").read_text() for pid in own)


def children(tid: str) -> list[str]:
    return Path(f"/proc/self/task/{tid}/children").read_text().split()


async def test_a_pattern_that_is_none_is_explained(tmp_path: Path, place: Place) -> None:
    async with rehearse(tmp_path, place) as gateway:
        answer = await use(gateway, "grep", "main", pattern="(")
        assert "not a regular expression" in answer["error"]


@pytest.mark.promise("files.prompt_is_safe")
async def test_instructions_are_read_from_the_workspace_without_following_links(
    tmp_path: Path, outside: Path, model_requests: list[Request]
) -> None:
    here = workspace(tmp_path)
    (here / "SOUL.md").write_text("Be kind." + "x" * 100_000)
    (here / "AGENTS.md").symlink_to(outside)
    os.link(outside, here / "USER.md")
    os.mkfifo(here / "TOOLS.md")
    async with rehearse(tmp_path) as gateway:
        await say(gateway, "hello")
    [request] = model_requests
    assert "# SOUL.md\nBe kind." in request.system
    assert len(request.system) < 25_000
    assert "jewels" not in request.system


@pytest.mark.sqlite_file
def test_a_full_disk_is_said_and_leaves_no_half_a_file(tmp_path: Path) -> None:
    report = on_a_small_disk(tmp_path, "fill_workspace.py")
    assert "no space left" in report["error"]
    assert report["names"] == ["small"]
    assert report["small"] == "kept"
