"""`GET /metrics`: counters and gauges in the Prometheus text format."""

from __future__ import annotations

from typing import get_args

from starlette.responses import Response

from hobnob.api import metrics
from hobnob.api.metrics import family, labelled, resident_bytes, single
from hobnob.api.routing import HttpCall, route
from hobnob.spending import MEASURES
from hobnob.store.costs.usage import today
from hobnob.types import Pool, now_ms


@route("GET", "/metrics", scope="operator.read")
async def metrics_page(call: HttpCall) -> Response:
    """Counters and gauges in the Prometheus text format."""
    services, counted, cluster = call.services, call.services.metrics, call.services.cluster
    open_turns, open_exchanges, deliveries = await services.sessions.queries.open_work()
    families = [
        family("turns_total", "counter", "Ended turns, by outcome and step.", counted.turns),
        family("turn_seconds_total", "counter", "Running time of turns, by step.", counted.turn_seconds),
        family(
            "turns",
            "gauge",
            "Running and queued turns, by pool (label lane).",
            _NO_TURNS | labelled(open_turns, "lane", "status"),
        ),
        family(
            "exchanges",
            "gauge",
            "Open exchanges, by phase.",
            labelled(open_exchanges, "phase", "waiting"),
        ),
        family("deliveries_total", "counter", "State changes of deliveries.", counted.deliveries),
        family("deliveries", "gauge", "Open deliveries.", labelled(deliveries, "channel", "state")),
        family("tokens_total", "counter", "Tokens of model calls.", counted.tokens),
        family("budget_left", "gauge", "What is left of the budgets of today.", await _budgets(call)),
        single("cost_usd_total", "counter", "Cost of model calls with known prices.", counted.cost_usd),
        single("event_backlog", "gauge", "Events queued for the slowest subscriber.", services.hub.backlog),
        single(
            "subscriptions_lost_total",
            "counter",
            "Subscriptions lost because the subscriber fell behind.",
            services.hub.lost,
        ),
        single("clients", "gauge", "Clients connected over WebSocket.", len(services.clients)),
        single(
            "unauthenticated_connections",
            "gauge",
            "Open connections that have not signed in.",
            len(services.budgets.strangers),
        ),
        single(
            "unauthenticated_dropped_total",
            "counter",
            "Connections closed before sign-in because there were too many.",
            services.budgets.strangers.dropped,
        ),
        family(
            "in_use",
            "gauge",
            "What each credential uses of the resources that gateway.limits bounds.",
            labelled(services.budgets.usage(), "credential", "resource"),
        ),
        family(
            "limits_reached_total",
            "counter",
            "Refusals because of a limit, by limit.",
            labelled(services.budgets.refused.items(), "limit"),
        ),
        single(
            "gateways",
            "gauge",
            "Gateways of the database that are alive.",
            sum(not each.silent for each in await cluster.gateways()),
        ),
        family(
            "gateway_roles",
            "gauge",
            "What this gateway does that only one of the database may do.",
            labelled(((role, 1) for role in cluster.roles), "role"),
        ),
        single("gateway_draining", "gauge", "Whether this gateway is drained.", cluster.draining),
        family(
            "gateway_messages_total",
            "counter",
            "Messages between this gateway and others, by direction.",
            labelled(cluster.messages.items(), "direction"),
        ),
        single("resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes()),
        single(
            "uptime_seconds", "gauge", "Time since the start.", (now_ms() - services.started_at_ms) / 1000
        ),
    ]
    return Response("".join(families), media_type=metrics.CONTENT_TYPE)


# Reported also as zero: a dashboard wants to see an empty queue.
_NO_TURNS = {
    (("lane", pool), ("status", status)): 0.0 for pool in get_args(Pool) for status in ("queued", "running")
}


async def _budgets(call: HttpCall) -> dict[metrics.Labels, float]:
    found = await call.services.sessions.queries.budgets(today())
    rows = (
        (account.kind, account.owner, name, max(0.0, account.left(name)))
        for account in found
        for name in MEASURES
        if getattr(account, name) is not None
    )
    return labelled(rows, "kind", "owner", "measure")
