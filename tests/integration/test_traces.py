"""Traces for OpenTelemetry, against a real collector on a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.integration.helpers import ANN, BOB, three_agents
from tests.waiting import LIMIT_S

from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say


class Collector:
    """Takes OTLP requests, and calls to a model."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.provider_headers: list[dict[str, str]] = []
        self.service = ""
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        [resource] = (await request.json())["resourceSpans"]
        self.headers.append(dict(request.headers))
        self.service = attributes(resource["resource"])["service.name"]
        self.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
        return web.json_response({})

    async def complete(self, request: web.Request) -> web.Response:
        self.provider_headers.append(dict(request.headers))
        text = (
            'data: {"choices":[{"index":0,"delta":{"content":"Hello."},"finish_reason":"stop"}]}\n\n'
            "data: [DONE]\n\n"
        )
        return web.Response(text=text, content_type="text/event-stream")

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"].startswith(name)]


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in holder["attributes"]}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    app.router.add_post("/chat/completions", collector.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()


def tracing(collector: Collector, **more: Any) -> dict[str, Any]:
    return {"gateway": {"tracing": {"endpoint": f"{collector.url}/v1/traces", **more}}}


@pytest.mark.promise("traces.spans", "traces.no_text")
async def test_a_turn_its_model_calls_and_its_tools_are_spans_of_one_trace(tmp_path: Path) -> None:
    async with collecting() as collector:
        settings = three_agents({ANN: [calls("agents_list"), "The secret plan."]}) | tracing(collector)
        async with rehearse(tmp_path, settings) as gateway:
            turn = await say(gateway, "What is the plan?", ANN)
        [invoked] = collector.named("invoke_agent ann")
        [tool] = collector.named("execute_tool agents_list")
        models = collector.named("chat ")
        assert len(models) == 2
        assert {span["traceId"] for span in collector.spans} == {invoked["traceId"]}
        assert {span["parentSpanId"] for span in (tool, *models)} == {invoked["spanId"]}
        assert "parentSpanId" not in invoked
        about = attributes(invoked)
        assert about["gen_ai.operation.name"] == "invoke_agent"
        assert about["gen_ai.conversation.id"] == turn.session_id
        assert (about["session.key"], about["run.id"], about["run.status"]) == (ANN, turn.turn_id, "ok")
        assert attributes(tool)["gen_ai.tool.name"] == "agents_list"
        model = attributes(models[0])
        assert model["gen_ai.provider.name"] == "rehearsal"
        assert int(model["gen_ai.usage.output_tokens"]) >= 0
        assert model["gen_ai.response.time_to_first_chunk"] >= 0
        assert int(invoked["startTimeUnixNano"]) <= int(invoked["endTimeUnixNano"])
        assert "plan" not in str(collector.spans)
        assert collector.service == "hobnob"


@pytest.mark.promise("traces.one_trace", "traces.spans")
async def test_what_a_send_causes_is_in_the_same_trace(tmp_path: Path) -> None:
    scripts = {
        ANN: [calls("sessions_send", agentId="bob", message="hi", timeoutSeconds=40), "Done.", "REPLY_SKIP"],
        BOB: ["Hello.", "Announced."],
    }
    async with collecting() as collector:
        settings = three_agents(scripts) | tracing(collector)
        async with rehearse(tmp_path, settings) as gateway:
            await say(gateway, "say nothing", BOB)  # so that bob has a chat to announce in
            del collector.spans[:]
            turn = await say(gateway, "go", ANN)
            [exchange] = (await gateway.sessions.queries.exchanges(OWNER, limit=1))["exchanges"]
            await exchange_ended(gateway, exchange["id"])
            await delivered(gateway, exchange["id"])
        first = next(s for s in collector.named("invoke") if attributes(s)["run.id"] == turn.turn_id)
        asked = [s for s in collector.named("invoke_agent bob") if s["traceId"] == first["traceId"]]
        assert {"primary", "announce"} <= {attributes(span)["run.step"] for span in asked}
        primary = next(s for s in asked if attributes(s)["run.step"] == "primary")
        assert primary["parentSpanId"] == first["spanId"]
        [sent] = collector.named("exchange send")
        assert (sent["traceId"], sent["parentSpanId"]) == (first["traceId"], first["spanId"])
        deliveries = [s for s in collector.named("deliver webchat") if s["traceId"] == first["traceId"]]
        assert len(deliveries) == 1


async def delivered(gateway: Any, exchange_id: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await gateway.sessions.queries.exchange(OWNER, exchange_id)
            if (found.get("delivery") or {}).get("state") == "delivered":
                return
            await asyncio.sleep(0.02)


@pytest.mark.promise("traces.one_trace")
async def test_a_turn_after_a_restart_stays_in_the_trace_of_its_cause(tmp_path: Path) -> None:
    scripts = {ANN: [calls("sessions_spawn", task="hold on"), "Spawned."], "*": ["Child."]}
    async with collecting() as collector:
        settings = three_agents(scripts) | tracing(collector)
        async with rehearse(tmp_path, settings) as gateway:
            await say(gateway, "go", ANN)
        async with rehearse(tmp_path, settings) as gateway:
            async with asyncio.timeout(LIMIT_S):
                while (await gateway.sessions.queries.exchanges(OWNER))["exchanges"][0]["state"] == "open":
                    await asyncio.sleep(0.02)
        [exchange] = collector.named("exchange spawn")
        traces = {span["traceId"] for span in collector.named("invoke_agent ann")}
        assert traces == {exchange["traceId"]}


@pytest.mark.promise("traces.to_providers")
async def test_a_call_to_a_provider_carries_the_trace(tmp_path: Path) -> None:
    async with collecting() as collector:
        provider = {"baseUrl": collector.url, "apiKey": "key", "api": "openai-completions"}
        models = {"providers": {"acme": provider | {"models": [{"id": "one"}]}}}
        settings = {"models": models, "agents": {"defaults": {"model": "acme/one"}}} | tracing(collector)
        async with rehearse(tmp_path, settings) as gateway:
            assert (await say(gateway, "hi")).reply == "Hello."
        [call] = collector.named("chat one")
        [headers] = collector.provider_headers
        assert headers["traceparent"] == f"00-{call['traceId']}-{call['spanId']}-01"


@pytest.mark.promise("traces.no_text")
async def test_text_is_traced_only_if_that_is_set_and_without_secrets(tmp_path: Path) -> None:
    async with collecting() as collector:
        settings = tracing(collector, includeText=True, headers={"X-Key": "collector-key"})
        async with rehearse(tmp_path, settings) as gateway:
            await say(gateway, "say sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
        [call] = collector.named("chat ")
        about = attributes(call)
        assert about["gen_ai.input.messages"].startswith("say ")
        assert "aaaaaaaaaaaa" not in str(collector.spans)
        assert collector.headers[0]["X-Key"] == "collector-key"


@pytest.mark.promise("traces.off_by_default")
async def test_without_an_endpoint_nothing_is_traced(tmp_path: Path) -> None:
    async with collecting() as collector:
        provider = {"baseUrl": collector.url, "apiKey": "key", "api": "openai-completions"}
        models = {"providers": {"acme": provider | {"models": [{"id": "one"}]}}}
        settings = {"models": models, "agents": {"defaults": {"model": "acme/one"}}}
        async with rehearse(tmp_path, settings) as gateway:
            await say(gateway, "hi")
        assert collector.spans == []
        assert "traceparent" not in collector.provider_headers[0]


@pytest.mark.promise("traces.never_slows")
async def test_a_collector_that_is_away_fails_no_turn(tmp_path: Path) -> None:
    settings = {"gateway": {"tracing": {"endpoint": "http://127.0.0.1:9/v1/traces"}}}
    async with rehearse(tmp_path, settings) as gateway:
        assert (await say(gateway, "say hi")).reply == "hi"


async def test_a_failed_turn_and_a_failed_tool_are_marked_as_errors(tmp_path: Path) -> None:
    scripts = {ANN: [calls("sessions_history", sessionKey="agent:none:main"), {"error": "broken"}]}
    async with collecting() as collector:
        async with rehearse(tmp_path, three_agents(scripts) | tracing(collector)) as gateway:
            await say(gateway, "go", ANN)
        [invoked] = collector.named("invoke_agent ann")
        assert invoked["status"] == {"code": 2, "message": "failed"}
        [tool] = collector.named("execute_tool")
        assert attributes(tool)["error.type"] == "tool_error"
