"""`GET /metrics`: how the gateway is doing, for a machine that asks every few seconds."""

from __future__ import annotations

from typing import get_args

from starlette.responses import Response

from hobnob.api import metrics
from hobnob.api.metrics import family, labelled, resident_bytes, single
from hobnob.api.routing import HttpCall, route
from hobnob.store import Tx, deliveries, exchanges, turns
from hobnob.types import Pool, now_ms


@route("GET", "/metrics", scope="operator.read")
async def metrics_page(visit: HttpCall) -> Response:
    """Counters and gauges in the text format of Prometheus."""
    services, counted = visit.services, visit.services.metrics
    open_turns, open_exchanges, deliveries = await services.store.read(_under_way)
    families = [
        family("turns_total", "counter", "Turns that ended, by outcome and step.", counted.turns),
        family("turn_seconds_total", "counter", "Time turns took to run, by step.", counted.turn_seconds),
        family(
            "turns",
            "gauge",
            "Turns that run or wait, by lane.",
            _NO_TURNS | labelled(open_turns, "lane", "status"),
        ),
        family(
            "exchanges",
            "gauge",
            "Exchanges under way, by phase.",
            labelled(open_exchanges, "phase", "waiting"),
        ),
        family("deliveries_total", "counter", "Steps of deliveries, by state.", counted.deliveries),
        family("deliveries", "gauge", "Deliveries on their way.", labelled(deliveries, "channel", "state")),
        family("tokens_total", "counter", "Tokens of model calls.", counted.tokens),
        single(
            "cost_usd_total", "counter", "What model calls cost, where prices are known.", counted.cost_usd
        ),
        single("event_backlog", "gauge", "Events that wait for the slowest listener.", services.hub.backlog),
        single("subscriptions_lost_total", "counter", "Listeners that fell behind.", services.hub.lost),
        single("clients", "gauge", "Clients connected over WebSocket.", len(services.clients)),
        single("resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes()),
        single(
            "uptime_seconds", "gauge", "Time since the start.", (now_ms() - services.started_at_ms) / 1000
        ),
    ]
    return Response("".join(families), media_type=metrics.CONTENT_TYPE)


# Said also when it is none: whoever watches a queue wants to see it empty.
_NO_TURNS = {
    (("lane", lane), ("status", status)): 0.0 for lane in get_args(Pool) for status in ("queued", "running")
}
Rows = list[tuple[object, ...]]


def _under_way(tx: Tx) -> tuple[Rows, Rows, Rows]:
    return turns.counted(tx), exchanges.counted(tx), deliveries.count_open(tx)
