"""The tool `message`: send a message to the chat of the session, before the turn ends or unprompted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hobnob.errors import BadInput
from hobnob.sessions import Cause, Sessions
from hobnob.tools import Context, Tool, tool

MESSAGE_CHARS = 32_000


def message_tools(sessions: Sessions) -> list[Tool]:
    @tool(group="messaging", repeatable=True)
    async def message(
        context: Context,
        message: Annotated[str, Field(description="The text to send.")],
    ) -> dict[str, Any]:
        """Send a message to the people of this session, where they last wrote.

        Your answer is sent to them anyway: use this to tell them something before you are done, or when
        nobody asked. It goes to no other chat; to write to another agent, use sessions_send.
        """
        if len(message) > MESSAGE_CHARS:
            raise BadInput(f"The message has {len(message):,} characters; the limit is {MESSAGE_CHARS:,}.")
        cause = Cause(context.session, context.turn, context.call_id)
        delivery = await sessions.post(cause, message)
        return {"status": "accepted", "deliveryId": delivery.delivery_id, "channel": delivery.channel}

    return [message]
