"""Which settings a reload applies to a running gateway, and which wait for a restart."""

from pathlib import Path
from typing import Any

import pytest

from hobnob.config import Config, Settings, load
from hobnob.config.fields import NO_EFFECT_YET
from hobnob.config.leaves import walk_facts
from hobnob.config.reload import merge


def settings(**tree: Any) -> Settings:
    return Settings.model_validate(tree)


def test_a_reload_applies_what_it_may_and_names_what_needs_a_restart() -> None:
    old = settings(gateway={"port": 1}, tools={"deny": ["exec"]})
    done = merge(old, settings(gateway={"port": 2}, tools={"deny": ["write"]}))
    assert (done.applied, done.pending) == (["tools.deny"], ["gateway.port"])
    assert (done.settings.gateway.port, done.settings.tools.deny) == (1, ["write"])


def test_a_snapshot_never_changes_and_a_reload_replaces_it(tmp_path: Path) -> None:
    config = Config(settings(), tmp_path)
    before = config.settings
    config.reload(Config(settings(tools={"deny": ["exec"]}), tmp_path, origins={"tools.deny": "file"}))
    assert (before.tools.deny, config.settings.tools.deny) == ([], ["exec"])
    assert config.origin("tools.deny") == "file"
    with pytest.raises(ValueError, match="frozen"):
        config.settings.tools = before.tools  # type: ignore[misc]


def test_a_new_agent_is_known_after_the_reload() -> None:
    old = settings()
    assert old.default_agent.id == "main"
    new = merge(old, settings(agents={"list": [{"id": "ann"}, {"id": "bob"}]})).settings
    assert (new.default_agent.id, new.agent("main")) == ("ann", None)


def test_agents_wait_for_the_models_they_may_name() -> None:
    providers = {"new": {"baseUrl": "http://127.0.0.1:1", "models": [{"id": "m"}]}}
    fresh = settings(models={"providers": providers}, agents={"defaults": {"model": "new/m"}})
    done = merge(settings(), fresh)
    assert done.applied == []
    assert "agents.defaults.model.primary" in done.pending
    assert done.settings.agents.defaults.model.primary is None


def test_agents_that_wait_for_a_restart_are_not_known_before_it() -> None:
    providers = {"new": {"baseUrl": "http://127.0.0.1:1", "models": [{"id": "m"}]}}
    old = settings(agents={"list": [{"id": "ann"}]})
    fresh = settings(models={"providers": providers}, agents={"list": [{"id": "ann", "model": "new/m"}]})
    assert fresh.agent("ann") is not None  # also in the cache of the fresh settings
    kept = merge(old, fresh).settings.agent("ann")
    assert kept is not None
    assert kept.model is None


def test_a_secret_that_changed_is_a_change() -> None:
    old = settings(gateway={"auth": {"token": "the-token-of-before"}})
    done = merge(old, settings(gateway={"auth": {"token": "the-token-of-now"}}))
    assert done.applied == ["gateway.auth.token"]


def test_settings_without_effect_are_reported_when_somebody_sets_them(tmp_path: Path) -> None:
    file = tmp_path / "hobnob.json5"
    file.write_text(
        "{ models: { providers: { p: { baseUrl: 'http://x', models: [{ id: 'm', name: 'M' }] } } } }"
    )
    loaded = load(file, env={"HOBNOB_HOME": str(tmp_path)})
    assert loaded.without_effect == ("models.providers.p.models[0].name",)
    assert load(env={"HOBNOB_HOME": str(tmp_path / "other")}).without_effect == ()
    assert "models.providers.<name>.models[].name" in [
        path for path, facts in walk_facts() if NO_EFFECT_YET in facts
    ]
