"""The tool `message`: send a message to the chat of the session, before the turn ends or unprompted."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hobnob import statedir
from hobnob.errors import BadInput
from hobnob.policy import Confinement
from hobnob.sessions import Cause, Sessions
from hobnob.tools import Context, Tool, tool
from hobnob.workspaces.guest import safe_paths
from hobnob.workspaces.service import Workspaces

MESSAGE_CHARS = 32_000
MAX_FILES = 10
MAX_FILE_BYTES = 50 * 1024 * 1024


def message_tools(sessions: Sessions, workspaces: Workspaces, outgoing: Path) -> list[Tool]:
    """`outgoing` is the folder for copies of files that are to be sent."""

    @tool(group="messaging", repeatable=True)
    async def message(
        context: Context,
        message: Annotated[str, Field(description="The text to send; may be empty with files.")] = "",
        files: Annotated[
            list[str] | None, Field(description="Paths of files in your workspace to send, at most 10.")
        ] = None,
    ) -> dict[str, Any]:
        """Send a message to the people of this session, where they last wrote.

        Your answer is sent to them anyway: use this to tell them something before you are done, or when
        nobody asked. It goes to no other chat; to write to another agent, use sessions_send.
        """
        if len(message) > MESSAGE_CHARS:
            raise BadInput(f"The message has {len(message):,} characters; the limit is {MESSAGE_CHARS:,}.")
        if files and len(files) > MAX_FILES:
            raise BadInput(f"These are {len(files)} files; the limit is {MAX_FILES}.")
        copies: list[dict[str, str]] = []
        if files:
            confinement = await sessions.capabilities.confinement(context.session)
            _check_access(confinement)
            workspace = workspaces.of(context.session.agent_id)
            for path in files:
                copies.append(await asyncio.to_thread(copy_file, workspace, path, outgoing))
        cause = Cause(context.session, context.turn, context.call_id)
        delivery = await sessions.post(cause, message, copies)
        return {"status": "accepted", "deliveryId": delivery.delivery_id, "channel": delivery.channel}

    return [message]


def _check_access(confinement: Confinement) -> None:
    if confinement.sandboxed and confinement.access == "none":
        raise BadInput("This session has no access to its workspace, so it has no files to send.")


def copy_file(workspace: Path, path: str, outgoing: Path) -> dict[str, str]:
    """Copy a file of a workspace to where no program of the agent can exchange it. Raises BadInput.

    No link is followed. A copy is named by its content, so that a repeated call makes the same one.
    """
    names = [name for name in path.removeprefix("/workspace/").split("/") if name not in ("", ".")]
    if not names or ".." in names:
        raise BadInput(f"{path!r} is not a path in the workspace.")
    try:
        with ExitStack() as fds:
            folder = safe_paths.descend(names[:-1], safe_paths.open_root(str(workspace), fds), fds)
            with open(safe_paths.open_file(names[-1], folder, fds), "rb", closefd=False) as file:
                content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"The file {path!r} cannot be sent: {error.strerror}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"The file {path!r} is larger than {MAX_FILE_BYTES:,} bytes.")
    name = names[-1]
    copy = statedir.private_dir(outgoing) / hashlib.sha256(name.encode() + b"\0" + content).hexdigest()
    if not copy.exists():
        draft = copy.with_suffix(f".{os.getpid()}")
        with os.fdopen(statedir.open_private(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, copy)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return {"path": str(copy), "name": name, "mimeType": kind}
