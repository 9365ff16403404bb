"""The meter of a turn: reserves each model call in the budgets that cover it, and limits it to that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from hobnob import crashpoints, metering, spending
from hobnob.config import Settings
from hobnob.models import Failed, Model, Priced, Request, ToolSpec
from hobnob.records import replace
from hobnob.runtimes import TurnContext, context
from hobnob.spending import BudgetExceeded, ModelCall, Reservation
from hobnob.store import Store

_UNKNOWN = ("cut", "garbled")  # failures after which the provider may have counted tokens
_BYTES_PER_TOKEN = 3.5


_sizes: dict[int, tuple[ToolSpec, int]] = {}
_MAX_SIZES = 1_000


def _size(tool: ToolSpec) -> int:
    """The length of a tool's description as models get it. Most tools are the same in every call."""
    known = _sizes.get(id(tool))
    if known is not None and known[0] is tool:
        return known[1]
    if len(_sizes) >= _MAX_SIZES:
        _sizes.clear()
    size = len(tool.name) + len(tool.description) + len(orjson.dumps(tool.parameters))
    _sizes[id(tool)] = (tool, size)
    return size


class Meter:
    def __init__(self, store: Store, settings: Settings, running: TurnContext) -> None:
        self._store = store
        self._limits = metering.agent_limits(settings, running.session.agent_id)
        self._session = running.session
        self._turn = running.turn
        self._counted = running.turn.input_tokens > 0  # in an earlier process
        self._reservation: Reservation | None = None

    @asynccontextmanager
    async def call(self, model: Model, request: Request) -> AsyncIterator[Request]:
        """Reserve a call; yields the request with the longest answer that can be paid.

        Raises BudgetExceeded, before the call or when its time is used up.
        """
        self._reservation = None
        if not self._limits and not await self._store.read_small(
            metering.has_budget, self._session, self._turn
        ):
            yield request
            return
        call = await self._worst_case(model, request)
        self._reservation = await self._store.write(
            metering.reserve, self._limits, self._session, self._turn, call
        )
        self._counted = True
        crashpoints.point("after-reserve")
        limited = replace(request, max_tokens=self._reservation.output_tokens)
        if not self._reservation.seconds:
            yield limited
            return
        async with self._timed():
            yield limited

    async def failed(self, answer: Failed) -> None:
        """Give back what a failed call had reserved; all of it if it cannot have cost anything."""
        if self._reservation is not None:
            made = answer.kind in _UNKNOWN
            await self._store.write(metering.give_back, self._turn, made=made)

    async def _worst_case(self, model: Model, request: Request) -> ModelCall:
        words = len(request.system.encode("utf-8", "replace")) + sum(map(_size, request.tools))
        tokens = int(words / _BYTES_PER_TOKEN) + sum(map(context.tokens, request.messages))
        prices = await model.prices(request.model, tokens) if isinstance(model, Priced) else None
        return ModelCall(
            turn_id=self._turn.turn_id,
            input_tokens=tokens,
            max_output=request.max_tokens or spending.DEFAULT_OUTPUT,
            input_usd=prices[0] if prices else None,
            output_token_usd=prices[1] if prices else None,
            starts_turn=not self._counted,
        )

    @asynccontextmanager
    async def _timed(self) -> AsyncIterator[None]:
        """Reserve more time while the call goes on; end it when there is none left."""
        assert self._reservation is not None
        refusal: BudgetExceeded | None = None
        loop = asyncio.get_running_loop()
        started = loop.time()

        async def keep_up(clock: asyncio.Timeout) -> None:
            nonlocal refusal
            reserved: Reservation | None = self._reservation
            while reserved is not None:
                await asyncio.sleep(max(0.0, started + reserved.seconds - loop.time()))
                try:
                    reserved = await self._store.write(metering.extend, self._turn)
                except BudgetExceeded as error:
                    refusal = error
                    clock.reschedule(loop.time())
                    return

        try:
            async with asyncio.timeout(None) as clock:
                task = asyncio.create_task(keep_up(clock))
                try:
                    yield
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        except TimeoutError:
            if refusal is not None:
                raise refusal from None
            raise
