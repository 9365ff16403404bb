"""The OpenAI responses API: `previous_response_id` continues the session of an earlier response."""

from __future__ import annotations

from starlette.responses import Response

from hobnob.api.formats import completions
from hobnob.api.formats import responses as responses_format
from hobnob.api.formats.responses import ResponsesRequest, ResponseWriter
from hobnob.api.routes import openai
from hobnob.api.routing import HttpCall, route
from hobnob.errors import NotFound
from hobnob.records import replace
from hobnob.types import Turn


@route("POST", "/v1/responses", scope="operator.write", body=ResponsesRequest)
async def responses(call: HttpCall, body: ResponsesRequest) -> Response:
    """One turn of an agent in OpenAI's responses format; with `stream`, as server-sent events.

    The model is `hobnob`, `hobnob/<agentId>` or `agent:<agentId>`. The session is that of
    `previous_response_id`, else chosen as for chat completions.
    """
    completion = responses_format.as_completion(body)
    request = completions.parse(call.services.config.settings, completion, call.http.headers)
    if body.previous_response_id is not None:
        earlier = await _earlier(call, body.previous_response_id)
        request = replace(request, session_key=earlier.session_key, fresh=False)

    def writer(turn: Turn) -> ResponseWriter:
        return ResponseWriter(turn, body)

    return await openai.answer(call, request, writer, stream=body.stream)


async def _earlier(call: HttpCall, response_id: str) -> Turn:
    """The run of an earlier response, if the caller may read its session. Raises NotFound."""
    try:
        run = responses_format.run_id(response_id)
        return await call.services.sessions.wait(run, 0, caller=call.operator)
    except NotFound:
        raise NotFound(
            f"There is no response {response_id!r}.", fix="Leave previous_response_id out to begin anew."
        ) from None
