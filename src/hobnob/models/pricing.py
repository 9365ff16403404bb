"""What a call costs, from the price list that comes with genai-prices. Nothing is fetched.

The list takes some 6 MB and 0.15 s to load on top of what a call needs anyway: that is done once, in a
thread, by the first call to a provider that can have a price.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

# Our names of providers in the list's words. They also hold when the address is that of a proxy.
_LISTED = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "openrouter": "openrouter",
    "groq": "groq",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "xai": "x-ai",
}

Price = Callable[[str, dict[str, Any], dict[str, int]], Any]


async def cost(
    provider: str, base_url: str, model: str, usage: dict[str, int] | None
) -> dict[str, float] | None:
    """Dollars by kind of token; None when the model has no known price, which is not the same as free."""
    where: dict[str, Any]
    if listed := _LISTED.get(provider):
        where = {"provider_id": listed}
    elif _is_public(base_url):
        where = {"provider_api_url": base_url}
    else:
        return None
    if usage is None:
        return None
    price = _price() if _loaded else await asyncio.to_thread(_price)
    try:
        return _split(partial(price, model, where), usage)
    except (LookupError, TypeError, ValueError):
        return None  # not in the list, or counts that contradict each other


def _split(price: Callable[[dict[str, int]], Any], usage: dict[str, int]) -> dict[str, float]:
    """The list tells only the sum for all that was read; its parts follow from leaving parts out."""
    read, write = usage["cacheRead"], usage["cacheWrite"]
    total_input = usage["input"] + read + write
    counts = {"input_tokens": total_input, "output_tokens": usage["output"]}
    whole = price(counts | {"cache_read_tokens": read, "cache_write_tokens": write})
    # With the same number of tokens read each time, because prices can rise with that number.
    uncached = price(counts).input_price if read or write else whole.input_price
    each = uncached / total_input if total_input else Decimal(0)
    parts = {"input": each * usage["input"], "output": whole.output_price}
    caches = (("cacheRead", "cache_read_tokens", read), ("cacheWrite", "cache_write_tokens", write))
    for name, key, tokens in caches:
        with_it = price(counts | {key: tokens}).input_price if tokens else uncached
        parts[name] = with_it - uncached + each * tokens
    return {name: float(dollars) for name, dollars in parts.items()} | {"total": float(whole.total_price)}


_loaded = False


@cache
def _price() -> Price:
    global _loaded
    from genai_prices import Usage, calc_price

    def price(model: str, where: dict[str, Any], counts: dict[str, int]) -> Any:
        return calc_price(Usage(**counts), model, **where)

    price("gpt-4o", {"provider_id": "openai"}, {"input_tokens": 1})  # reads the list
    _loaded = True
    return price


@cache
def _is_public(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or "localhost"
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".local", ".internal", ".lan"))
