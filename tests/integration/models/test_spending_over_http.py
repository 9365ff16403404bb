"""Budgets in dollars, with a provider whose prices are known."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.models.test_turns_over_http import DONE, delta, settings, usage
from tests.integration.test_spending import payload

from hobnob.testing import rehearse, say


@pytest.mark.promise("budget.price")
async def test_dollars_are_reserved_before_the_call_and_booked_after_it(
    tmp_path: Path, provider: Any
) -> None:
    provider.streams([delta(content="Hi."), delta("stop"), usage(), DONE])
    given = settings(provider) | {"agents": {"defaults": {"model": "openai/gpt-4o", "budget": {"usd": 0.1}}}}
    async with rehearse(tmp_path, given) as gateway:
        assert (await say(gateway, "hello")).outcome == "ok"
        sent = provider.body.get("max_completion_tokens") or provider.body.get("max_tokens")
        assert 0 < sent <= 8_192
        (budget,) = (await payload(gateway, "budgets.list"))["budgets"]
        assert budget["measures"]["usd"]["spent"] == pytest.approx(0.0035)  # 1000 and 100 tokens of gpt-4o
        assert budget["measures"]["usd"]["reserved"] == 0
        costs = await payload(gateway, "costs", by="model")
        assert costs["rows"][0] | {"costUsd": 0} == {
            "name": "openai/gpt-4o",
            "calls": 1,
            "inputTokens": 1000,
            "outputTokens": 100,
            "totalTokens": 1100,
            "costUsd": 0,
            "priceUnknown": False,
        }


async def test_a_call_that_the_provider_refused_costs_nothing(tmp_path: Path, provider: Any) -> None:
    provider.answers(401, {"error": {"message": "bad key"}})
    given = settings(provider) | {"agents": {"defaults": {"model": "openai/gpt-4o", "budget": {"usd": 0.1}}}}
    async with rehearse(tmp_path, given) as gateway:
        assert (await say(gateway, "hello")).outcome == "failed"
        (budget,) = (await payload(gateway, "budgets.list"))["budgets"]
        assert (budget["measures"]["usd"]["spent"], budget["measures"]["usd"]["reserved"]) == (0, 0)
