"""A token for some agents that leaves a name out: what a default resolves to is checked as well."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.harnesses import harness_log, harness_settings
from tests.integration.helpers import BOB, create_sessions
from tests.integration.web import FOR_BOB, OWNER_TOKEN, TOKENS, WRITE, Answered, Web, web_of
from tests.waiting import LIMIT_S

from hobnob.store import sessions
from hobnob.testing import exchange_ended

BOBS_STUB = "runs-bob-and-the-stub"


async def rpc(web: Web, method: str, token: str, **params: Any) -> Answered:
    return await web.ask("POST", f"/rpc/{method}", {"params": params}, token=token)


def refusal(answer: Answered) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


def harnesses(home: Path, **acp: Any) -> dict[str, Any]:
    stub_too = {"name": "stub too", "token": BOBS_STUB, "scopes": [WRITE], "agents": ["bob", "stub"]}
    tokens = {"auth": {"token": OWNER_TOKEN, "tokens": [*TOKENS, stub_too]}, "port": 0}
    return harness_settings(home, **acp) | {"gateway": tokens}


@pytest.mark.promise("access.tokens_of_some_agents")
@pytest.mark.parametrize("acp", [{"defaultAgent": "stub"}, {}], ids=["default", "only one"])
@pytest.mark.parametrize("named", [{}, {"agentId": "stub"}], ids=["left out", "named"])
async def test_a_harness_runs_only_for_a_token_that_covers_it(
    tmp_path: Path, acp: dict[str, Any], named: dict[str, Any]
) -> None:
    spawn = {"key": BOB, "task": "work", "runtime": "acp", "idempotencyKey": "k"} | named
    async with web_of(tmp_path, harnesses(tmp_path, **acp)) as web:
        await create_sessions(web.gateway, BOB)
        answer = await rpc(web, "sessions.spawn", FOR_BOB, **spawn)
        assert refusal(answer) == (403, "scope.agent")
        assert """'gateway.auth.tokens[for bob].agents' '["bob","stub"]'""" in answer.json["error"]["fix"]
        assert len(await web.gateway.store.read(sessions.page)) == 1
        for token in (BOBS_STUB, OWNER_TOKEN):
            good = await rpc(web, "sessions.spawn", token, **spawn)
            assert good.status == 200, good.json
        await exchange_ended(web.gateway, good.json["payload"]["exchangeId"], LIMIT_S)
        again = await rpc(web, "sessions.spawn", FOR_BOB, **spawn)
        assert refusal(again) == (403, "scope.agent"), "the receipt of another caller"
    assert len(harness_log(tmp_path, "prompt")) == 1


@pytest.mark.promise("access.tokens_of_some_agents")
async def test_the_default_agent_works_only_for_a_token_that_covers_it(tmp_path: Path) -> None:
    said = {"messages": [{"role": "user", "content": "hi"}]}
    async with web_of(tmp_path) as web:
        for method, params in (
            ("agent", {"message": "hi", "idempotencyKey": "k"}),
            ("tools.invoke", {"tool": "agents_list"}),
            ("tools.effective", {}),
            ("agent.identity.get", {}),
            ("agent.identity.get", {"sessionKey": "main"}),
        ):
            answer = await rpc(web, method, FOR_BOB, **params)
            assert refusal(answer) == (403, "scope.agent"), method
        for path, body in (
            ("/tools/invoke", {"tool": "agents_list"}),
            ("/v1/chat/completions", {"model": "hobnob", **said}),
        ):
            assert (await web.ask("POST", path, body, token=FOR_BOB)).status == 403, path
        assert await web.gateway.store.read(sessions.page) == []
        own = await rpc(web, "agent.identity.get", FOR_BOB, agentId="bob")
        assert own.json["payload"]["agentId"] == "bob"
