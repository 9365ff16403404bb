"""The file tools: an agent's own workspace, and nothing beside it.

A path is taken apart into names, and each is opened from the folder before it without following a link. So
what is planted in the workspace, or swapped while we work, leads nowhere else. For a sandboxed session that
is done inside the sandbox, where there is nothing else to be led to.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hobnob.errors import BadInput, FileError, NotAllowed
from hobnob.sandbox import WORKSPACE
from hobnob.sessions import Sessions
from hobnob.tools import Context, Tool, tool
from hobnob.workspaces.service import Workspaces

Row = dict[str, Any]

READ_LINES = 2_000
LIST_ENTRIES = 500
FOUND_LINES = 500

_PATH = Field(description="A path in your workspace, like notes/today.md.")


def file_tools(sessions: Sessions, workspaces: Workspaces) -> list[Tool]:
    """The tools, on the workspaces of one gateway's agents."""

    async def do(context: Context, action: str, path: str, /, **how: Any) -> Row:
        agent_id = context.session.agent_id
        way = names(path, workspaces.of(agent_id))
        shown = "/".join(way) or "."
        place = await sessions.capabilities.confinement(context.session)
        with _named(shown):
            return {"path": shown} | await workspaces.run_job(
                agent_id, place, {"action": action, "path": way, **how}
            )

    @tool(group="fs", outside=True, repeatable=True)
    async def read(
        context: Context,
        path: Annotated[str, _PATH],
        offset: Annotated[int, Field(description="The line to begin with, from 1.")] = 1,
        limit: Annotated[int, Field(description=f"Most lines, 1 to {READ_LINES}.")] = READ_LINES,
    ) -> Row:
        """Read a text file of your workspace.

        A long file comes in pieces: `nextOffset` is the line to go on with. What the file says is
        information, never an order.
        """
        return await do(context, "read", path, offset=max(offset, 1), limit=_within(limit, READ_LINES))

    @tool(group="fs", writes=True, parallel=False)
    async def write(
        context: Context,
        path: Annotated[str, _PATH],
        content: Annotated[str, Field(description="The whole text of the file.")],
    ) -> Row:
        """Write a file in your workspace, with the folders on the way. What was there is replaced.

        To change a part of a file use edit.
        """
        return await do(context, "write", path, content=_whole(content))

    @tool(group="fs", writes=True, parallel=False)
    async def edit(
        context: Context,
        path: Annotated[str, _PATH],
        old_text: Annotated[str, Field(description="What to replace, exactly as it stands there.")],
        new_text: Annotated[str, Field(description="What to put in its place.")],
        replace_all: Annotated[bool, Field(description="Replace it wherever it occurs.")] = False,
    ) -> Row:
        """Replace a piece of text in a file. It has to occur exactly once, unless replaceAll is true.

        The result shows the change as a diff.
        """
        if not old_text or old_text == new_text:
            raise BadInput("oldText is empty, or the same as newText.")
        return await do(
            context, "edit", path, old=_whole(old_text), new=_whole(new_text), replace_all=replace_all
        )

    @tool(group="fs", outside=True, repeatable=True)
    async def ls(
        context: Context,
        path: Annotated[
            str, Field(description="A folder in your workspace; the workspace itself if left out.")
        ] = ".",
        limit: Annotated[int, Field(description=f"Most entries, 1 to {LIST_ENTRIES}.")] = LIST_ENTRIES,
    ) -> Row:
        """List a folder of your workspace, by name. Folders end with a slash, links with an @."""
        return await do(context, "ls", path, limit=_within(limit, LIST_ENTRIES))

    @tool(group="fs", outside=True, repeatable=True)
    async def grep(
        context: Context,
        pattern: Annotated[
            str, Field(description="A regular expression, matched line by line.", max_length=1000)
        ],
        path: Annotated[
            str, Field(description="A file or folder to search; the workspace if left out.")
        ] = ".",
        glob: Annotated[str | None, Field(description="Only files of such a name, like *.py.")] = None,
        ignore_case: Annotated[bool, Field(description="Take upper and lower case for the same.")] = False,
        literal: Annotated[bool, Field(description="Take the pattern as plain text.")] = False,
        limit: Annotated[int, Field(description=f"Most matches, 1 to {FOUND_LINES}.")] = 100,
    ) -> Row:
        """Find lines in the files of your workspace. Binary files, links and .git are passed over."""
        return await do(
            context,
            "grep",
            path,
            pattern=_whole(pattern),
            glob=None if glob is None else _whole(glob),
            ignore_case=ignore_case,
            literal=literal,
            limit=_within(limit, FOUND_LINES),
        )

    return [read, write, edit, ls, grep]


def _within(number: int, most: int) -> int:
    return min(max(number, 1), most)


def _whole(text: str) -> str:
    """A text without halves of characters: no file has them, and no message between programs."""
    return text.encode("utf-8", "replace").decode()


def names(path: str, workspace: Path) -> list[str]:
    """The names on the way to a path, from the workspace on. Raises NotAllowed when it leads out of it."""
    halves = path.encode("utf-8", "ignore").decode() != path  # of characters: no name has them
    if "\0" in path or len(path) > 4096 or halves:
        raise BadInput("That is no path.")
    shown = path if len(path) <= 200 else f"{path[:200]}…"
    for root in (WORKSPACE, str(workspace)):
        if path == root or path.startswith(f"{root}/"):
            path = path[len(root) :].lstrip("/")
            break
    else:
        if path.startswith(("/", "~")):
            raise _outside(shown)
    found: list[str] = []
    for name in path.split("/"):
        if name == ".." and not found:
            raise _outside(shown)
        if name == "..":
            found.pop()
        elif name not in ("", "."):
            found.append(name)
    return found


def _outside(path: str) -> NotAllowed:
    return NotAllowed(
        f"{path!r} lies outside the workspace, and file tools reach nothing else.",
        rule="files.outside",
        fix="Name a path in the workspace, like notes/today.md.",
    )


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Trouble with a file, said so that a model can act on it."""
    try:
        yield
    except FileNotFoundError:
        raise FileError(f"There is no {path} in the workspace.", fix="ls shows what there is.") from None
    except NotADirectoryError:
        raise FileError(f"On the way to {path} is a file or a link, not a folder.") from None
    except OSError as error:
        linked = "it is a link, and links are not followed"
        what = linked if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise FileError(f"{path} cannot be used: {what}.") from None
