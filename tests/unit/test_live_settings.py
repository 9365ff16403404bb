"""Which settings are taken over while the gateway runs."""

from typing import Any

from hobnob.config import Settings, reload


def settings(**tree: Any) -> Settings:
    return Settings.model_validate(tree)


def test_what_is_looked_at_each_time_is_taken_over_and_what_was_read_once_is_not() -> None:
    held = settings(gateway={"port": 1}, tools={"deny": ["exec"]})
    taken, left = reload.adopt(held, settings(gateway={"port": 2}, tools={"deny": ["write"]}))
    assert (taken, left) == (["tools.deny"], ["gateway.port"])
    assert (held.gateway.port, held.tools.deny) == (1, ["write"])


def test_an_agent_that_is_new_is_known_at_once() -> None:
    held = settings()
    assert held.default_agent.id == "main"
    reload.adopt(held, settings(agents={"list": [{"id": "ann"}, {"id": "bob"}]}))
    assert (held.default_agent.id, held.agent("main")) == ("ann", None)


def test_agents_wait_for_the_models_they_may_name() -> None:
    providers = {"new": {"baseUrl": "http://127.0.0.1:1", "models": [{"id": "m"}]}}
    held = settings()
    fresh = settings(models={"providers": providers}, agents={"defaults": {"model": "new/m"}})
    taken, left = reload.adopt(held, fresh)
    assert taken == []
    assert "agents.defaults.model.primary" in left
    assert held.agents.defaults.model.primary is None


def test_a_secret_that_changed_is_a_change() -> None:
    held = settings(gateway={"auth": {"token": "the-token-of-before"}})
    taken, _ = reload.adopt(held, settings(gateway={"auth": {"token": "the-token-of-now"}}))
    assert taken == ["gateway.auth.token"]
