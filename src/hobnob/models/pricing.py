"""Cost of a model call, from the price list bundled with genai-prices. No network access.

The list takes about 6 MB and 0.15 s to load. It is loaded once, in a thread, by the first call to a provider
that can have a price.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from typing import Any
from urllib.parse import urlsplit

# Provider names of Hobnob to those of the price list. They also apply behind a proxy address.
_PRICE_LIST_IDS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "openrouter": "openrouter",
    "groq": "groq",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "xai": "x-ai",
}

PriceFunction = Callable[[str, dict[str, Any], dict[str, int]], Any]


async def cost(
    provider: str, base_url: str, model: str, usage: dict[str, int] | None
) -> dict[str, float] | None:
    """US dollars by kind of token; None if the price is unknown, which does not mean free."""
    lookup: dict[str, Any]
    if list_id := _PRICE_LIST_IDS.get(provider):
        lookup = {"provider_id": list_id}
    elif _is_public(base_url):
        lookup = {"provider_api_url": base_url}
    else:
        return None
    if usage is None:
        return None
    price = _load() if _loaded else await asyncio.to_thread(_load)
    try:
        return _cost_by_kind(partial(price, model, lookup), usage)
    except (LookupError, TypeError, ValueError):
        return None  # not in the price list, or inconsistent token counts


def _cost_by_kind(price: Callable[[dict[str, int]], Any], usage: dict[str, int]) -> dict[str, float]:
    """The library returns one price for all input; the shares follow from pricing with and without caches."""
    read, write = usage["cacheRead"], usage["cacheWrite"]
    total_input = usage["input"] + read + write
    counts = {"input_tokens": total_input, "output_tokens": usage["output"]}
    whole = price(counts | {"cache_read_tokens": read, "cache_write_tokens": write})
    # Always with the same total input, because the unit price can depend on it.
    uncached = price(counts).input_price if read or write else whole.input_price
    unit = uncached / total_input if total_input else Decimal(0)
    parts = {"input": unit * usage["input"], "output": whole.output_price}
    caches = (("cacheRead", "cache_read_tokens", read), ("cacheWrite", "cache_write_tokens", write))
    for name, key, tokens in caches:
        with_cache = price(counts | {key: tokens}).input_price if tokens else uncached
        parts[name] = with_cache - uncached + unit * tokens
    return {name: float(dollars) for name, dollars in parts.items()} | {"total": float(whole.total_price)}


_loaded = False


@cache
def _load() -> PriceFunction:
    global _loaded
    from genai_prices import Usage, calc_price

    def price(model: str, lookup: dict[str, Any], counts: dict[str, int]) -> Any:
        return calc_price(Usage(**counts), model, **lookup)

    price("gpt-4o", {"provider_id": "openai"}, {"input_tokens": 1})  # the library reads its list on first use
    _loaded = True
    return price


@cache
def _is_public(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or "localhost"
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".local", ".internal", ".lan"))
