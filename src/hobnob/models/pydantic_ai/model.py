"""`PydanticAiModel`: a model of any provider that pydantic-ai supports.

pydantic-ai is optional and heavy (up to a second and 28 MB on the first call, without any SDK). So this
module does not import it: `bridge` does, and is imported by the first call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from hobnob.error_texts import summary
from hobnob.models import Event, Failed, Finished, ModelInfo, Request, pricing
from hobnob.models.failures import CallFailed
from hobnob.models.http import Timeouts
from hobnob.models.pydantic_ai import API
from hobnob.models.remote import ProviderAccess
from hobnob.records import replace

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from hobnob.models.pydantic_ai.bridge import StreamedCall

_INSTALL = "pip install 'hobnob[pydantic-ai]'"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_MIN_SECRET_CHARS = 8

# Signature of pydantic-ai's `infer_model`: a model string, and optionally a provider factory, to a model.
Infer = Callable[..., Any]


class PydanticAiModel:
    """One model, by its pydantic-ai name, such as `bedrock:amazon.nova-pro-v1:0`."""

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
        # pydantic-ai hides keep-alive events, so the long first-byte timeout applies to every wait.
        self._timeout_s = (timeouts or Timeouts()).first_byte_s
        self._infer = infer
        self._opening = asyncio.Lock()
        self._model: Model | None = None
        self._closed = False

    async def stream(self, request: Request) -> AsyncGenerator[Event]:
        last: Event
        async with self._access.slots:
            try:
                call = await self._start_call(request)
                async with aclosing(call.deltas()) as deltas:
                    async for delta in deltas:
                        yield delta
                last = await self._finished(call)
            except CallFailed as failure:
                last = self._failed(failure)
            except Exception as error:
                # SDKs can raise anything; `stream` must still end with an event.
                last = self._failed(CallFailed("garbled", f"raised an unexpected error: {error!r}"))
        yield last

    async def close(self) -> None:
        """Close the connections of the SDK's client."""
        async with self._opening:  # waits for an open in progress, to close that model too
            self._closed = True
            model, self._model = self._model, None
        if model is not None:
            with suppress(Exception):  # shutdown goes on if an SDK fails to close its client
                await model.__aexit__(None, None, None)

    async def _start_call(self, request: Request) -> StreamedCall:
        model = await self._open_model()
        from hobnob.models.pydantic_ai import bridge

        limits = [n for n in (request.max_tokens, self._info.max_tokens) if n]
        request = replace(
            request,
            model=self._info.id,
            thinking=request.thinking if self._info.reasoning else "off",
            max_tokens=min(limits, default=None),
        )
        return bridge.StreamedCall(model, request, self._timeout_s)

    async def _open_model(self) -> Model:
        async with self._opening:  # concurrent first calls create one model
            if self._closed:
                raise CallFailed("unreachable", "the model connections are closed")
            if self._model is None:
                await asyncio.to_thread(_import_sdk, self._info.id)
                from hobnob.models.pydantic_ai import bridge

                # On the loop, not in the thread: some SDKs bind their client to the running event loop.
                access = self._access
                model = bridge.create_model(self._info.id, access.key, access.base_url, self._infer)
                self._model = await model.__aenter__()
            return self._model

    async def _finished(self, call: StreamedCall) -> Finished:
        answer, response = call.answer(), call.response
        # Priced by the provider that answered, not by the name configured for it.
        provider, url = response.provider_name or "", response.provider_url or ""
        cost = await pricing.cost(provider, url, response.model_name or self._info.id, answer.usage)
        return Finished(
            answer.message(api=API, provider=self._access.name, model=self._info.id, cost=cost),
        )

    def _failed(self, failure: CallFailed) -> Failed:
        message = failure.message
        # SDKs also read keys from the environment, so those are masked too.
        for name, value in self._env.items():
            if _SECRET.search(name) and len(value) >= _MIN_SECRET_CHARS:
                message = message.replace(value, "***")
        # Summarised after masking: a truncated key would not match.
        reason = summary(message) or "reported a stack trace; the debug log shows it"
        masked = CallFailed(failure.kind, reason, failure.retry_after_s, received=failure.received)
        return masked.event(self._access.name, self._access.key)


def _import_sdk(name: str) -> None:
    """Import pydantic-ai and the SDK of a model. Runs in a thread: the imports are slow."""
    try:
        from hobnob.models.pydantic_ai import bridge
    except ImportError as error:
        raise CallFailed("refused", f"needs an optional package: {_INSTALL} ({error})") from error
    bridge.import_provider(name)
