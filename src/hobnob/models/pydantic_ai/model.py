"""Models of every provider that pydantic-ai knows and our own wire formats do not speak.

pydantic-ai is optional and heavy (up to a second and 28 MB with the first call, without any SDK), so
nothing here imports it: `pydantic_ai_bridge` does, and is itself imported when such a model is first asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hobnob.models import Event, Failed, Finished, ModelInfo, Request, pricing
from hobnob.models.failures import MAX_WORDS, CallFailed
from hobnob.models.http import Timeouts
from hobnob.models.pydantic_ai import API
from hobnob.models.remote import ProviderAccess

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from hobnob.models.pydantic_ai.bridge import Asked

_INSTALL = "pip install 'hobnob[pydantic-ai]'"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8

# From a model string, and perhaps how its provider is made, to the model: pydantic-ai's `infer_model`.
Infer = Callable[..., Any]


class PydanticAiModel:
    """One model, by pydantic-ai's own name for it, such as `bedrock:amazon.nova-pro-v1:0`."""

    def __init__(
        self,
        info: ModelInfo,
        access: ProviderAccess,
        *,
        env: Mapping[str, str],
        timeouts: Timeouts | None = None,
        infer: Infer | None = None,
    ) -> None:
        self._info = info
        self._access = access
        self._env = env
        # Providers' signs of life do not come through to us: silence is borne as long as before a first byte.
        self._patience_s = (timeouts or Timeouts()).first_byte_s
        self._infer = infer
        self._opening = asyncio.Lock()
        self._model: Model | None = None
        self._closed = False

    async def stream(self, request: Request) -> AsyncGenerator[Event]:
        last: Event
        async with self._access.slots:
            try:
                asked = await self._ask(request)
                async with aclosing(asked.deltas()) as deltas:
                    async for delta in deltas:
                        yield delta
                last = await self._finished(asked)
            except CallFailed as failure:
                last = self._failed(failure)
            except Exception as error:
                # Other people's code runs in there: whatever it raises, a turn gets an event to end on.
                last = self._failed(CallFailed("garbled", f"went wrong: {error!r}"))
        yield last

    async def close(self) -> None:
        """Close the connections of the provider's own client."""
        async with self._opening:  # what is being opened now is closed too
            self._closed = True
            model, self._model = self._model, None
        if model is not None:
            with suppress(Exception):  # an SDK's client that cannot close itself is of no more use to anybody
                await model.__aexit__(None, None, None)

    async def _ask(self, request: Request) -> Asked:
        model = await self._opened()
        from hobnob.models.pydantic_ai import bridge

        limits = [n for n in (request.max_tokens, self._info.max_tokens) if n]
        request = replace(
            request,
            model=self._info.id,
            thinking=request.thinking if self._info.reasoning else "off",
            max_tokens=min(limits, default=None),
        )
        return bridge.Asked(model, request, self._patience_s)

    async def _opened(self) -> Model:
        async with self._opening:  # two first calls make one model
            if self._closed:
                raise CallFailed("unreachable", "the models are closed")
            if self._model is None:
                await asyncio.to_thread(_load, self._info.id)
                from hobnob.models.pydantic_ai import bridge

                # Not in the thread: some SDKs tie their client to the loop it was made on.
                model = bridge.made(self._info.id, self._access.key, self._access.base_url, self._infer)
                self._model = await model.__aenter__()
            return self._model

    async def _finished(self, asked: Asked) -> Finished:
        answer, response = asked.answer(), asked.response
        # The provider that answered, not the name under which the user keeps it.
        who, where = response.provider_name or "", response.provider_url or ""
        cost = await pricing.cost(who, where, response.model_name or self._info.id, answer.usage)
        return Finished(
            answer.message(api=API, provider=self._access.name, model=self._info.id, cost=cost),
        )

    def _failed(self, failure: CallFailed) -> Failed:
        message = " ".join(failure.message.split())
        # Keys need not come from our settings: SDKs take them from the environment by themselves.
        for name, value in self._env.items():
            if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
                message = message.replace(value, "***")
        # Cut last: half a key would not be found.
        event = CallFailed(failure.kind, message, failure.retry_after_s).event(
            self._access.name, self._access.key
        )
        return replace(event, message=event.message[: MAX_WORDS + len(self._access.name)])


def _load(name: str) -> None:
    """Import what this model needs; done in a thread, because SDKs take their time."""
    try:
        from hobnob.models.pydantic_ai import bridge
    except ImportError as error:
        raise CallFailed("refused", f"needs a package more: {_INSTALL} ({error})") from error
    bridge.import_provider(name)
