"""What the gateway tells of itself: figures for a machine, and a description of what can be asked."""

import re
from pathlib import Path

import pytest
from tests.integration.helpers import Gate, create_sessions
from tests.integration.web import READER, Web, web_of
from tests.waiting import LIMIT_S

from hobnob.api.metrics import family
from hobnob.api.routes.openapi import document
from hobnob.api.routing import ROUTES
from hobnob.api.rpc import METHODS
from hobnob.client import open_client
from hobnob.testing import OWNER, calls, exchange_ended, say, script

_SAMPLE = re.compile(r'(hobnob_\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[\d.e+-]+)')


async def figures(web: Web) -> dict[str, float]:
    """Every sample by its name and labels, once each line is known to be one."""
    answer = await web.ask("GET", "/metrics", token=READER)
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found, typed = {}, set()
    for line in answer.json.splitlines():
        if line.startswith("# "):
            typed.add(line.split()[2])
            continue
        sample = _SAMPLE.fullmatch(line) or pytest.fail(line)
        assert sample[1] in typed
        found[f"{sample[1]}{{{sample[2]}}}" if sample[2] else sample[1]] = float(sample[3])
    return found


@pytest.mark.promise("gateway.metrics")
async def test_turns_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    settings = script("fine", {"error": "no luck"}, session="main")
    async with web_of(tmp_path, settings) as web:
        for text in ("one", "two"):
            await say(web.gateway, text)
        found = await figures(web)
        assert found['hobnob_turns_total{outcome="ok",step="message"}'] == 1
        assert found['hobnob_turns_total{outcome="failed",step="message"}'] == 1
        assert sum(n for name, n in found.items() if name.startswith("hobnob_turns_total")) == 2
        assert found['hobnob_tokens_total{model="rehearsal/rehearsal",kind="output"}'] > 0
        assert found["hobnob_resident_memory_bytes"] > 1_000_000
        assert found["hobnob_uptime_seconds"] > 0


@pytest.mark.promise("gateway.metrics")
async def test_what_runs_and_what_waits_is_told_by_lane(tmp_path: Path) -> None:
    gate = Gate()
    settings = script(calls("hold"), "done", session="main")
    async with web_of(tmp_path, settings, tools=(gate.tool,)) as web:
        turns = [await web.gateway.sessions.send(OWNER, "main", text) for text in ("one", "two", "three")]
        await gate.reached.wait()
        found = await figures(web)
        assert found['hobnob_turns{lane="main",status="running"}'] == 1
        assert found['hobnob_turns{lane="main",status="queued"}'] == 2
        assert found['hobnob_turns{lane="cron",status="queued"}'] == 0
        gate.open.set()
        await web.gateway.sessions.wait(turns[-1].turn_id, LIMIT_S)
        assert (await figures(web))['hobnob_turns{lane="main",status="queued"}'] == 0


async def test_exchanges_deliveries_and_clients_are_told(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {
        "agent:ann:main": [calls("sessions_send", agentId="bob", message="go"), "done"],
        "agent:bob:main": [calls("hold"), "answer", "announced"],
    }
    settings = {
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
        "session": {"agentToAgent": {"maxPingPongTurns": 0}},
        "models": {"rehearsal": {"scripts": scripts}},
    }
    async with (
        web_of(tmp_path, settings, tools=(gate.tool,)) as web,
        open_client(web.url.replace("http", "ws"), READER),
    ):
        await create_sessions(web.gateway, "agent:bob:main", last_channel="webchat", last_to="agent:bob:main")
        turn = await web.gateway.sessions.send(OWNER, "main", "ask bob")
        await gate.reached.wait()
        found = await figures(web)
        assert found['hobnob_exchanges{phase="primary",waiting="yes"}'] == 1
        assert found["hobnob_clients"] == 1
        gate.open.set()
        await web.gateway.sessions.wait(turn.turn_id, LIMIT_S)
        (row,) = (await web.gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        await exchange_ended(web.gateway, row["id"])
        found = await figures(web)
        assert not any(name.startswith("hobnob_exchanges{") for name in found)
        assert found['hobnob_deliveries_total{channel="webchat",state="delivered"}'] == 1


@pytest.mark.promise("gateway.metrics")
async def test_no_figure_tells_anything_of_a_conversation(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        await say(web.gateway, "say my secret word xyzzy", "hook:private-name")
        text = (await web.ask("GET", "/metrics")).json
        assert not re.search(r"xyzzy|private-name|agent:|ann|token-", text)


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    text = family("x", "counter", "Said.", {(("model", 'a"b\\c\nd'),): 1.5})
    assert text.splitlines()[-1] == 'hobnob_x{model="a\\"b\\\\c\\nd"} 1.5'


@pytest.mark.promise("gateway.openapi")
async def test_the_description_names_every_route_and_every_method_with_its_scope(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        found = (await web.ask("GET", "/openapi.json", token=None)).json
    assert found["openapi"].startswith("3.1")
    for name, method in METHODS.items():
        if "operator" not in method.roles:
            assert f"/rpc/{name}" not in found["paths"]
            continue
        described = found["paths"][f"/rpc/{name}"]["post"]
        assert described["x-scope"] == method.scope
        assert described["security"] == [{"bearer": []}]
        params = described["requestBody"]["content"]["application/json"]["schema"]["properties"]["params"]
        assert set(params["properties"]) == {f.alias for f in method.parameters.model_fields.values()}
    for route in ROUTES:
        if route.path == "/rpc/{method}":
            continue
        path = re.sub(r"\{(\w+):path\}", r"{\1}", route.path).replace("session_key", "sessionKey")
        described = found["paths"][path][route.verb.lower()]
        assert described.get("x-scope") == route.scope
        assert described["summary"]


@pytest.mark.promise("gateway.openapi")
def test_the_description_holds_together() -> None:
    """What a validator checks: references lead somewhere, ids are unique, path parameters are described."""
    found = document()
    operations = [(path, each) for path, verbs in found["paths"].items() for each in verbs.values()]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(set(ids)) == len(ids)
    for path, operation in operations:
        named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))
    references = set(re.findall(r"'\$ref': '([^']+)'", str(found)))
    assert references <= {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
