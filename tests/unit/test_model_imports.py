"""Who talks to no provider does not pay for talking to one."""

import subprocess
import sys

import pytest

from hobnob.models import pricing

HEAVY = ("aiohttp", "genai_prices", "httpx2")


def test_the_catalog_loads_no_http_client_and_no_price_list() -> None:
    code = f"import sys, hobnob.models.catalog; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:11434/v1", "http://localhost:8000", "http://10.0.0.5/v1", "http://box.local", ""],
)
async def test_a_model_at_home_has_no_price_and_loads_no_list(url: str) -> None:
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 2}
    loaded = pricing._loaded
    assert await pricing.cost("mine", url, "gpt-4o", usage) is None
    assert pricing._loaded == loaded


async def test_a_provider_under_another_name_is_priced_by_its_address() -> None:
    usage = {"input": 1_000_000, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 1_000_000}
    cost = await pricing.cost("work", "https://api.openai.com/v1", "gpt-4o", usage)
    assert cost == {"input": 2.5, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 2.5}


async def test_prices_that_rise_with_the_length_are_split_without_a_gap() -> None:
    usage = {"input": 50_000, "output": 100, "cacheRead": 200_000, "cacheWrite": 30_000, "totalTokens": 0}
    cost = await pricing.cost("anthropic", "", "claude-sonnet-4-5", usage)
    assert cost
    assert sum(cost[part] for part in ("input", "output", "cacheRead", "cacheWrite")) == pytest.approx(
        cost["total"]
    )


def test_a_gateway_loads_no_protocol_of_harnesses_before_one_runs() -> None:
    code = "import sys, hobnob.gateway; print('acp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
