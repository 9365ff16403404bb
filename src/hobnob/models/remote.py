"""`RemoteModel`: a model behind HTTP, in any of the wire formats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from hobnob import json_input
from hobnob.config.fields import Api
from hobnob.models import Event, Finished, ModelInfo, Request, pricing
from hobnob.models.answer import Answer
from hobnob.models.failures import CallFailed
from hobnob.models.formats import anthropic, google, openai_chat, openai_responses
from hobnob.models.http import Http, ProviderRequest
from hobnob.records import replace

# Raised by code that reads JSON of an unexpected shape.
_PRICED_OUTPUT = 1_000  # tokens, to find the price of one
_SHAPE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class StreamReader(Protocol):
    """Reads the chunks of one answer. `done` is set when no more chunks follow."""

    answer: Answer
    done: bool

    def read(self, chunk: dict[str, Any]) -> list[Event]: ...


class WireFormat(Protocol):
    """The interface of the modules in `formats`."""

    def build_request(self, request: Request, base_url: str, key: str) -> ProviderRequest: ...

    @property
    def Reader(self) -> type[StreamReader]: ...


WIRE_FORMATS: dict[Api, WireFormat] = {
    "openai-completions": openai_chat,
    "openai-responses": openai_responses,
    "anthropic-messages": anthropic,
    "google-generative-ai": google,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAccess:
    """Address and credentials of a provider. `slots` limits its concurrent calls."""

    name: str
    api: Api
    base_url: str
    slots: asyncio.Semaphore = field(repr=False)
    key: str = field(default="", repr=False)


class RemoteModel:
    """One model of a provider."""

    def __init__(self, info: ModelInfo, access: ProviderAccess, http: Http) -> None:
        self._info = info
        self._access = access
        self._format = WIRE_FORMATS[access.api]
        self._http = http

    async def stream(self, request: Request) -> AsyncGenerator[Event]:
        last: Event
        # Held until the call ends: calls beyond the limit of the provider wait here.
        async with self._access.slots:
            reader = self._format.Reader()
            try:
                async with self._http.post(self._build_request(request)) as stream:
                    while not reader.done and (batch := await stream.next()):
                        for data in batch:
                            for event in _read(reader, data):
                                yield event
                last = await self._finished(request, reader.answer)
            except CallFailed as failure:
                last = failure.event(self._access.name, self._access.key)
        yield last

    async def prices(self, model: str, input_tokens: int) -> tuple[float, float] | None:
        """See `Priced`. Input that is written to a cache can cost more than other input."""
        access, found = self._access, []
        for kind in ("input", "cacheWrite"):
            usage = {
                "input": 0,
                "cacheRead": 0,
                "cacheWrite": 0,
                "output": _PRICED_OUTPUT,
                kind: input_tokens,
            }
            cost = await pricing.cost(access.name, access.base_url, model, usage)
            if cost is None:
                return None
            found.append(cost)
        worst = max(found, key=lambda cost: cost["total"])
        return worst["total"] - worst["output"], worst["output"] / _PRICED_OUTPUT

    def _build_request(self, request: Request) -> ProviderRequest:
        info, access = self._info, self._access
        limits = [n for n in (request.max_tokens, info.max_tokens) if n]
        thinking = request.thinking if info.reasoning else "off"
        request = replace(request, thinking=thinking, max_tokens=min(limits, default=None))
        try:
            return self._format.build_request(request, access.base_url, access.key)
        except _SHAPE_ERRORS as error:
            raise CallFailed("refused", f"the transcript does not fit {access.api}: {error!r}") from error

    async def _finished(self, request: Request, answer: Answer) -> Finished:
        if answer.stop is None:
            raise CallFailed("cut", "ended the stream before the answer was complete")
        access = self._access
        cost = await pricing.cost(access.name, access.base_url, request.model, answer.usage)
        return Finished(answer.message(api=access.api, provider=access.name, model=request.model, cost=cost))


def _read(reader: StreamReader, data: bytes) -> list[Event]:
    if data == b"[DONE]":
        reader.done = True
        reader.answer.stop = reader.answer.stop or "stop"
        return []
    try:
        # Deeper than other input: an answer may contain a call with unusable arguments, see `Answer`.
        return reader.read(json_input.loads(data, max_depth=None))
    except _SHAPE_ERRORS as error:
        raise CallFailed("garbled", "sent an invalid chunk", received=data) from error
