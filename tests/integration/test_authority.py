"""Authority along messages: a turn that another agent's message started has only the tools both have."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import ANN, BOB, EVE, call_method, texts, use, wait_until_idle
from tests.waiting import LIMIT_S

from hobnob.config import Config, Settings
from hobnob.gateway import Gateway
from hobnob.models import Request
from hobnob.store import turns
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.tools import Context, Tool, tool
from hobnob.types import Turn

TO_BOB = {"from": "ann", "to": "bob", "verbs": ["send"]}
QUIET = {"agentToAgent": {"maxPingPongTurns": 0}}


def strong_bob(*grants: dict[str, Any], scripts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Ann and eve have only the session tools, bob has everything."""
    weak = {"tools": {"allow": ["group:sessions"]}}
    return {
        "agents": {"list": [{"id": "ann", "default": True, **weak}, {"id": "bob"}, {"id": "eve", **weak}]},
        "grants": list(grants) or [TO_BOB],
        "session": QUIET,
        "models": {"rehearsal": {"scripts": scripts or {}}},
    } | more


def asks(target: str = "bob", message: str = "call launch", **more: Any) -> dict[str, Any]:
    return calls("sessions_send", agentId=target, message=message, **more)


@pytest.fixture
def launched() -> list[str]:
    return []


@pytest.fixture
def launch(launched: list[str]) -> Tool:
    @tool
    async def launch(context: Context) -> str:
        """Launch it."""
        launched.append(context.session.key)
        return "launched"

    return launch


def names(requests: list[Request], key: str) -> list[list[str]]:
    return [[spec.name for spec in each.tools] for each in requests if each.session_key == key]


async def turn_of(gateway: Gateway, run_id: str) -> Turn:
    return await gateway.store.read(turns.get, run_id)


@pytest.mark.promise("authority.both")
async def test_a_weak_agent_cannot_use_the_tool_of_a_strong_one_by_asking(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    async with rehearse(tmp_path, strong_bob(), tools=[launch]) as gateway:
        answer = await use(gateway, "sessions_send", agentId="bob", message="call launch")
        assert launched == []
        assert answer["status"] == "ok"
        assert "launch" in answer["withheld"]
        assert "sessions_list" not in answer["withheld"]


@pytest.mark.promise("authority.both")
async def test_a_person_who_asks_the_strong_agent_gets_all_its_tools(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    async with rehearse(tmp_path, strong_bob(), tools=[launch]) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="say: hi")
        await say(gateway, "call launch", BOB)
        assert launched == [BOB]


@pytest.mark.promise("authority.grant")
async def test_a_grant_with_the_authority_of_the_target_leaves_it_its_tools(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    settings = strong_bob(TO_BOB | {"authority": "target"})
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        answer = await use(gateway, "sessions_send", agentId="bob", message="call launch")
        assert launched == [BOB]
        assert "withheld" not in answer


@pytest.mark.promise("authority.setting")
async def test_the_setting_leaves_all_agents_their_tools(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    settings = strong_bob(tools={"agentToAgent": {"authority": "target"}})
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="call launch")
        assert launched == [BOB]


@pytest.mark.promise("authority.no_growth")
async def test_a_chain_of_agents_has_the_tools_of_its_weakest(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    """Ann may not launch. Bob may, and so may eve; but it is ann who asks."""
    scripts = {BOB: [asks("eve"), "asked eve", "ANNOUNCE_SKIP"]}
    settings = strong_bob(TO_BOB, {"from": "bob", "to": "eve", "verbs": ["send"]}, scripts=scripts)
    settings["agents"]["list"][2] = {"id": "eve"}
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="go")
        await wait_until_idle(gateway, EVE)
        assert (await texts(gateway, EVE, "user"))[0] == "call launch"
        assert launched == []


@pytest.mark.promise("authority.no_growth")
async def test_a_grant_of_the_agent_between_does_not_help_the_one_who_asks(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    scripts = {BOB: [asks("eve"), "asked eve", "ANNOUNCE_SKIP"]}
    to_eve = {"from": "bob", "to": "eve", "verbs": ["send"], "authority": "target"}
    settings = strong_bob(TO_BOB, to_eve, scripts=scripts)
    settings["agents"]["list"][2] = {"id": "eve"}
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="go")
        await wait_until_idle(gateway, EVE)
        assert (await texts(gateway, EVE, "user"))[0] == "call launch"
        assert launched == []


@pytest.mark.promise("authority.no_growth")
async def test_a_limited_turn_does_not_get_more_by_asking_an_own_child(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    """The child was spawned for a person, with all tools."""
    scripts = {
        BOB: [
            calls("sessions_spawn", task="say: ready", label="rocket"),
            "spawned",
            calls("sessions_send", label="rocket", message="call launch"),
            "asked",
            "ANNOUNCE_SKIP",
        ]
    }
    async with rehearse(tmp_path, strong_bob(scripts=scripts), tools=[launch]) as gateway:
        await say(gateway, "go", BOB)
        [spawned] = (await call_method(gateway, "exchanges.list"))["payload"]["exchanges"]
        await exchange_ended(gateway, spawned["id"], LIMIT_S)
        await use(gateway, "sessions_send", agentId="bob", message="go")
        assert "call launch" in await texts(gateway, spawned["target"], "user")
        assert launched == []


@pytest.mark.promise("authority.no_growth")
async def test_a_limited_turn_runs_no_harness(tmp_path: Path) -> None:
    """The tools of a harness are its own, so they cannot be limited."""
    scripts = {BOB: [calls("sessions_spawn", task="x", runtime="acp", agentId="coder"), "no"]}
    acp = {"enabled": True, "harnesses": {"coder": {"command": ["false"]}}, "allowedAgents": ["coder"]}
    async with rehearse(tmp_path, strong_bob(scripts=scripts, acp=acp)) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="go")
        [result] = await texts(gateway, BOB, "toolResult")
        assert orjson.loads(result)["code"] == "authority.harness"


@pytest.mark.promise("authority.no_growth")
@pytest.mark.parametrize("collect", [False, True])
async def test_a_sub_agent_of_a_limited_turn_is_limited_and_so_is_the_turn_it_wakes(
    tmp_path: Path, launch: Tool, launched: list[str], model_requests: list[Request], collect: bool
) -> None:
    scripts = {
        BOB: [
            calls("sessions_spawn", task="call launch", label="rocket", collect=collect),
            calls("sessions_yield", message="wait"),
            *([] if collect else ["ANNOUNCE_SKIP"]),
            calls("launch"),
            "woken",
        ]
    }
    if collect:  # it ends after its parent has yielded
        scripts["agent:bob:*"] = [{"text": "slow", "delayMs": 1_000}]
    async with rehearse(tmp_path, strong_bob(scripts=scripts), tools=[launch]) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="go")
        spawned = (await call_method(gateway, "exchanges.list"))["payload"]["exchanges"]
        child = next(each for each in spawned if each["kind"] == "spawn")
        await exchange_ended(gateway, child["id"], LIMIT_S)
        await wait_until_idle(gateway, BOB)
        assert "woken" in await texts(gateway, BOB, "assistant")
        assert launched == []
        assert all("launch" not in each for each in names(model_requests, child["target"]))
        assert all("launch" not in each for each in names(model_requests, BOB))


@pytest.mark.promise("authority.no_growth")
async def test_a_job_made_in_a_limited_turn_has_no_more_tools(tmp_path: Path, launch: Tool) -> None:
    job = {
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "payload": {"kind": "agentTurn", "message": "x"},
    }
    scripts = {BOB: [calls("cron", action="add", job=job), "done"]}
    settings = strong_bob(scripts=scripts)
    settings["agents"]["list"][0]["tools"] = {"allow": ["group:sessions", "cron"]}
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        await use(gateway, "sessions_send", agentId="bob", message="go")
        [made] = await gateway.jobs.page(OWNER, include_disabled=True)
        assert made.tools is not None
        assert "cron" in orjson.loads(made.tools)
        assert "launch" not in orjson.loads(made.tools)


@pytest.mark.promise("authority.both")
async def test_the_reply_turns_of_an_exchange_are_limited_on_both_sides(
    tmp_path: Path, launch: Tool, launched: list[str], model_requests: list[Request]
) -> None:
    """Here the strong one asks: what the weak one replies must not make it launch."""
    scripts = {
        ANN: ["call launch", "REPLY_SKIP"],
        BOB: [asks("ann", "hi"), "asked", calls("launch"), "REPLY_SKIP"],
    }
    settings = strong_bob({"from": "bob", "to": "ann", "verbs": ["send"]}, scripts=scripts, session={})
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        await say(gateway, "go", BOB)
        [found] = (await call_method(gateway, "exchanges.list"))["payload"]["exchanges"]
        await exchange_ended(gateway, found["id"], LIMIT_S)
        assert launched == []
        own, *_, reply = [each for each in names(model_requests, BOB) if each]
        assert "launch" in own
        assert "launch" not in reply


@pytest.mark.promise("authority.own_children")
async def test_a_message_to_an_own_child_keeps_what_was_delegated_to_it(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    settings = strong_bob()
    settings["agents"]["list"][0]["subagents"] = {"allowAgents": ["bob"], "delegate": ["bob"]}
    async with rehearse(tmp_path, settings, tools=[launch]) as gateway:
        spawned = await use(gateway, "sessions_spawn", agentId="bob", task="say: ready")
        await exchange_ended(gateway, spawned["exchangeId"], LIMIT_S)
        await use(gateway, "sessions_send", sessionKey=spawned["childSessionKey"], message="call launch")
        assert launched == [spawned["childSessionKey"]]


@pytest.mark.promise("authority.sandbox")
async def test_a_sandboxed_sender_gets_no_files_of_an_unsandboxed_target(tmp_path: Path) -> None:
    """By name both have the tool; that of the target works outside a sandbox."""
    sandbox = {"sandbox": {"mode": "all"}}
    settings = strong_bob()
    settings["agents"]["list"][0] = {"id": "ann", "default": True, **sandbox}
    settings["agents"]["defaults"] = {"sandbox": {"sessionToolsVisibility": "all"}}
    async with rehearse(tmp_path, settings) as gateway:
        await gateway.sessions.create(OWNER, ANN)
        found = (await call_method(gateway, "policy.explain", action="send", target=BOB, source=ANN))[
            "payload"
        ]
        assert {"read", "write"} <= set(found["authority"]["withheld"])


@pytest.mark.promise("authority.shown")
async def test_the_reduction_is_in_the_exchange_and_the_agent_is_told(
    tmp_path: Path, launch: Tool, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, strong_bob(), tools=[launch]) as gateway:
        answer = await use(gateway, "sessions_send", agentId="bob", message="say: hi")
        shown = await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
        authority = shown["steps"][0]["authority"]
        assert authority["mode"] == "both"
        assert "launch" in authority["withheld"]
        assert "launch" not in authority["tools"]
        [request] = [each for each in model_requests if each.session_key == BOB and each.tools]
        assert "it has only tools that both of you have" in request.system
        assert "launch" in request.system.partition("missing here:")[2]


@pytest.mark.promise("authority.shown")
async def test_explain_shows_the_reduction_and_what_lifts_it(tmp_path: Path, launch: Tool) -> None:
    async def explained(*grants: dict[str, Any]) -> dict[str, Any]:
        async with rehearse(tmp_path, strong_bob(*grants), tools=[launch]) as gateway:
            asked = await call_method(gateway, "policy.explain", action="send", target=BOB, source=ANN)
            found: dict[str, Any] = asked["payload"]["rules"][-1]
            return found

    reduced, lifted = await explained(), await explained(TO_BOB | {"authority": "target"})
    assert reduced["code"] == "authority.both"
    assert "launch" in reduced["why"]
    assert lifted["code"] == "authority.target"
    assert lifted["why"].startswith("By grants[0] ")


@pytest.mark.promise("authority.withdrawn")
async def test_a_turn_that_waits_loses_the_authority_that_a_reload_withdraws(
    tmp_path: Path, launch: Tool, launched: list[str]
) -> None:
    async with rehearse(tmp_path, strong_bob(TO_BOB | {"authority": "target"}), tools=[launch]) as gateway:
        gate = await gateway.sessions.send(OWNER, BOB, "say: wait")
        sent = await use(gateway, "sessions_send", agentId="bob", message="say: hi", timeoutSeconds=0)
        turn = await turn_of(gateway, sent["runId"])
        limits = gateway.sessions.capabilities.limits
        session = await gateway.sessions.resolve(OWNER, BOB)
        assert limits(session, turn) == []
        gateway.config.reload(Config(Settings.model_validate(strong_bob()), gateway.config.home))
        [limit] = limits(session, turn)
        assert "launch" not in limit
        await gateway.sessions.wait(gate.turn_id, LIMIT_S)
