"""The configuration: one file, all problems at once, and where every value came from."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hobnob import config
from hobnob.config.fields import duration_ms
from hobnob.errors import BadConfig

KEY = "sk-planted-secret"


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(text: str = "", env: dict[str, str] | None = None, **flags: Any) -> config.Config:
        file = tmp_path / "hobnob.json5"
        file.write_text(text)
        return config.load(file, env={"HOBNOB_HOME": str(tmp_path), **(env or {})}, flags=flags)

    return load


def problems(load: Any, text: str, env: dict[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(BadConfig) as refusal:
        load(text, env)
    return {p.path: p.message for p in refusal.value.problems}


def test_a_missing_file_means_defaults(tmp_path: Path) -> None:
    loaded = config.load(env={"HOBNOB_HOME": str(tmp_path)})
    assert loaded.source is None
    assert loaded.settings == config.Settings()
    assert [a.id for a in loaded.settings.agent_list()] == ["main"]
    assert loaded.store_url == f"sqlite:///{tmp_path}/hobnob.db"


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot be read"):
        config.load(env={"HOBNOB_HOME": str(tmp_path), "HOBNOB_CONFIG": str(tmp_path / "gone.json5")})


def test_comments_single_quotes_and_trailing_commas_are_fine(load: Any) -> None:
    loaded = load("{ // mine\n gateway: { port: 0x1F90, /* 8080 */ },\n session: { mainKey: 'home', }, }")
    assert loaded.settings.gateway.port == 8080
    assert loaded.settings.session.main_key == "home"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{\n  a: 1,\n  b: }", "line 3, column 6"),
        ("{ a: tru }", "line 1"),
        ("{\n a: 'x", "line 2"),
        ("{}\n{}", "line "),
    ],
)
def test_broken_json5_is_refused_with_line_and_column(load: Any, text: str, place: str) -> None:
    assert place in problems(load, text)[""]


def test_a_file_that_holds_no_object_is_refused(load: Any) -> None:
    assert "one object" in problems(load, "[1, 2]")[""]


def test_the_environment_is_put_into_strings(load: Any) -> None:
    loaded = load(
        "{gateway: {port: '${PORT}'}, store: {url: 'sqlite:///${DIR}/x.db'},"
        " hooks: {defaultSessionKey: '$${X}'}}",
        {"PORT": "99", "DIR": "/data"},
    )
    assert loaded.settings.gateway.port == 99
    assert loaded.store_url == "sqlite:////data/x.db"
    assert loaded.settings.hooks.default_session_key == "${X}"


def test_a_missing_environment_variable_is_named(load: Any) -> None:
    found = problems(load, "{models: {providers: {p: {apiKey: '${NOT_THERE}'}}}}")
    assert found == {"models.providers.p.apiKey": "the environment variable NOT_THERE is not set"}


def test_unknown_keys_are_refused_with_the_nearest_valid_one(load: Any) -> None:
    found = problems(
        load,
        "{sesion: {}, agents: {list: [{id: 'a', subagents: {allowAgent: []}}]}, tools: {maxHops: 3}}",
    )
    assert "did you mean 'session'?" in found["sesion"]
    assert "did you mean 'allowAgents'?" in found["agents.list[0].subagents.allowAgent"]
    assert "did you mean session.agentToAgent.maxHops?" in found["tools.maxHops"]


def test_all_problems_come_at_once_with_their_paths(load: Any) -> None:
    found = problems(
        load,
        """{gateway: {port: 'many', auth: {token: '${GONE}'}}, session: {agentToAgent: {maxPingPongTurns: 9}},
            agents: {list: [{id: 'b d'}, {name: 'x'}]}, nonsense: 1}""",
    )
    assert set(found) == {
        "gateway.port",
        "gateway.auth.token",
        "session.agentToAgent.maxPingPongTurns",
        "agents.list[0].id",
        "agents.list[1].id",
        "nonsense",
    }


def test_two_agents_with_one_id_are_refused(load: Any) -> None:
    found = problems(load, "{agents: {list: [{id: 'a'}, {id: 'A'}]}}")
    assert "duplicate agent ids: a" in found["agents.list"]


def test_hooks_without_a_secret_of_their_own_are_refused(load: Any) -> None:
    assert "hooks.token" in problems(load, "{hooks: {enabled: true}}")["hooks"]


@pytest.mark.promise(
    "settings.older_channel_words", "settings.older_agent_section", "settings.older_routing_agents"
)
def test_older_names_are_read_and_reported(load: Any) -> None:
    loaded = load(
        """{agent: {timeoutSeconds: 5}, routing: {agents: {old: {name: 'Old'}}}, agents: {entries: {new: {}}},
            session: {sendPolicy: {rules: [{match: {surface: 'discord'}, action: 'deny'},
                                           {match: {provider: 'irc'}, action: 'deny'}]}}}"""
    )
    assert loaded.settings.agents.defaults.timeout_seconds == 5
    assert [a.id for a in loaded.settings.agents.entries] == ["old", "new"]
    assert [r.match.channel for r in loaded.settings.session.send_policy.rules] == ["discord", "irc"]
    assert [path for path, _ in loaded.renamed] == [
        "agent",
        "routing.agents",
        "agents.entries",
        "session.sendPolicy.rules[0].match.surface",
        "session.sendPolicy.rules[1].match.provider",
    ]


def test_sections_we_have_no_use_for_are_accepted_and_reported(load: Any) -> None:
    loaded = load(
        """{plugins: {x: 1}, talk: {}, agents: {list: [{id: 'a', heartbeat: {every: '5m'}}]},
            models: {providers: {p: {headers: {}, models: [{id: 'm', vibes: 3}]}}}}"""
    )
    assert sorted(path for path, _ in loaded.ignored) == [
        "agents.list[0].heartbeat",
        "models.providers.p.headers",
        "models.providers.p.models[0].vibes",
        "plugins",
        "talk",
    ]


@pytest.mark.promise("files.private_workspace")
@pytest.mark.parametrize(
    "place", ["~", "/", "{home}", "{home}/agents", "{home}/agents/b", "{home}/agents/b/sessions"]
)
def test_a_workspace_that_holds_the_state_directory_is_refused(tmp_path: Path, place: str) -> None:
    home = tmp_path / "user" / ".hobnob"
    home.mkdir(parents=True)
    file = tmp_path / "c.json5"
    chosen = place.replace("~", str(tmp_path / "user")).format(home=home)
    file.write_text(f"{{agents: {{list: [{{id: 'a', workspace: '{chosen}'}}]}}}}")
    with pytest.raises(BadConfig, match="contains the state directory"):
        config.load(file, env={"HOBNOB_HOME": str(home)})


@pytest.mark.parametrize("place", ["{home}/workspace", "{home}/agents/b/workspace/sub", "{home}x"])
def test_a_workspace_beside_the_state_is_fine(tmp_path: Path, place: str) -> None:
    file = tmp_path / "c.json5"
    file.write_text(f"{{agents: {{list: [{{id: 'a', workspace: '{place.format(home=tmp_path)}'}}]}}}}")
    assert config.load(file, env={"HOBNOB_HOME": str(tmp_path)}).settings.agent("a") is not None


def test_a_file_of_the_systems_we_follow_is_read_as_it_is(load: Any) -> None:
    loaded = load(
        """{messages: {queue: {mode: 'steer-backlog', byChannel: {irc: 'queue'}}},
            acp: {allowedAgents: ['*']},
            agents: {defaults: {sandbox: {mode: 'all', scope: 'agent', docker: {}}},
                     list: [{id: 'a', tools: {exec: {}, elevated: {}}, sandbox: {docker: {}}}]},
            session: {sendPolicy: {rules: [{match: {chatType: 'DM'}, action: 'deny'}]}}}"""
    )
    assert loaded.settings.messages.queue.mode == "steer"
    assert loaded.settings.messages.queue.by_channel == {"irc": "steer"}
    assert loaded.settings.session.send_policy.rules[0].match.chat_type == "direct"


@pytest.mark.parametrize(
    "text",
    [
        "{agent: {}, agents: 'x'}",
        "{agent: {}, agents: {defaults: 5}}",
        "{routing: {agents: {a: 'x'}}, agents: {list: 5}}",
        "{agents: {entries: {a: {}}, list: 5}}",
        "{agent: 'claude'}",
        "{agent: {subagents: {tools: 'x'}}}",
        "{agent: {subagents: {tools: {}}}, tools: {subagents: 5}}",
        "{agent: {subagents: {tools: {}}}, tools: 5}",
        "{gateway: 'x'}",
        "{gateway: {auth: {token: ''}}}",
        "{gateway: {auth: {token: '${EMPTY}'}}}",
        "{gateway: {auth: {tokens: [{name: 'a', token: ' ', scopes: []}]}}}",
        "{session: {mainKey: '..'}}",
        "{session: {mainKey: 'a:b'}}",
    ],
)
def test_what_cannot_be_meant_is_refused_and_never_a_traceback(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json5"
    file.write_text(text)
    with pytest.raises(BadConfig):
        config.load(file, env={"HOBNOB_HOME": str(tmp_path), "EMPTY": ""}, flags={"gateway.port": 1})


@pytest.mark.parametrize("text", ["", "  \n", "// nothing yet\n", "/* nothing */"])
def test_a_file_without_settings_means_defaults(load: Any, text: str) -> None:
    assert load(text).settings == config.Settings()


def test_older_names_give_way_setting_by_setting(load: Any) -> None:
    loaded = load(
        "{agent: {maxSteps: 5, subagents: {maxConcurrent: 3}}, agents: {defaults: {subagents: {}}}}"
    )
    assert loaded.settings.agents.defaults.subagents.max_concurrent == 3


@pytest.mark.promise("settings.older_child_tools")
def test_the_tools_of_children_are_read_from_their_older_place(load: Any) -> None:
    loaded = load("{agent: {maxSteps: 5, subagents: {maxConcurrent: 3, tools: {deny: ['exec']}}}}")
    assert loaded.settings.tools.subagents.tools.deny == ["exec"]
    assert loaded.settings.agents.defaults.subagents.max_concurrent == 3
    assert ("agent.subagents.tools", "is now called tools.subagents.tools") in loaded.renamed


def test_the_commands_of_nodes_are_read_from_their_older_place(load: Any) -> None:
    loaded = load("{gateway: {nodes: {allowCommands: ['a'], denyCommands: ['b'], commands: {deny: ['c']}}}}")
    assert (loaded.settings.gateway.nodes.commands.allow, loaded.settings.gateway.nodes.commands.deny) == (
        ["a"],
        ["c", "b"],
    )
    assert ("gateway.nodes.denyCommands", "is now called gateway.nodes.commands.deny") in loaded.renamed


def test_the_older_tools_of_children_give_way_to_the_newer_ones(load: Any) -> None:
    loaded = load(
        """{agent: {subagents: {tools: {allow: ['read'], deny: ['exec']}}},
            tools: {profile: 'coding', subagents: {tools: {deny: ['write']}}}}"""
    )
    tools = loaded.settings.tools
    assert (tools.profile, tools.subagents.tools.allow, tools.subagents.tools.deny) == (
        "coding",
        ["read"],
        ["write"],
    )


def test_secrets_in_parts_we_do_not_know_are_masked_too(load: Any) -> None:
    loaded = load(
        f"""{{channels: {{telegram: {{botToken: '{KEY}', accounts: {{a: {{botToken: '{KEY}'}}}}}},
                          pager: {{module: 'pager.py', options: {{headers: {{Authorization: '{KEY}'}}}}}}}},
             store: {{url: 'postgresql://me:{KEY}@host/db'}},
             models: {{providers: {{p: {{baseUrl: 'https://u:{KEY}@host',
                                       models: [{{id: 'm', apiKey: '{KEY}'}}]}}}}}}}}"""
    )
    shown = dict(config.masked_leaves(loaded.settings))
    assert KEY not in str(shown)
    assert shown["store.url"] == "postgresql://**********@host/db"


def test_a_model_is_a_name_or_an_object(load: Any) -> None:
    assert load("{agents: {defaults: {model: 'p/m'}}}").settings.agents.defaults.model.primary == "p/m"
    assert (
        load("{agents: {defaults: {model: {primary: 'p/m'}}}}").settings.agents.defaults.model.primary
        == "p/m"
    )


def test_every_value_knows_where_it_came_from(load: Any) -> None:
    loaded = load(
        "{agents: {defaults: {model: 'p/m'}}, session: {mainKey: '${WORD}'}}",
        {"HOBNOB_TOKEN": KEY, "WORD": "home"},
        **{"gateway.port": 1},
    )
    origins = {p: loaded.origin(p) for p, _ in config.flatten(loaded.settings.model_dump(by_alias=True))}
    assert origins["gateway.auth.token"] == "$HOBNOB_TOKEN"
    assert origins["agents.defaults.model.primary"] == "hobnob.json5"
    assert origins["session.mainKey"] == "hobnob.json5, $WORD"
    assert origins["gateway.port"] == "command line"
    assert origins["session.scope"] == "default"


def test_the_token_of_the_file_wins_over_the_environment(load: Any) -> None:
    token = load("{gateway: {auth: {token: 'file'}}}", {"HOBNOB_TOKEN": "env"}).settings.gateway.auth.token
    assert token.get_secret_value() == "file"


def test_a_secret_does_not_show_when_settings_are_printed(load: Any) -> None:
    loaded = load(
        "{models: {providers: {p: {apiKey: '${KEY}'}}}, gateway: {auth: {token: '${KEY}'}}}", {"KEY": KEY}
    )
    assert KEY not in repr(loaded) + str(loaded.settings.model_dump(mode="json"))


def test_the_process_environment_is_not_touched(load: Any) -> None:
    before = dict(os.environ)
    load("{}", {"HOBNOB_TOKEN": "x"})
    assert dict(os.environ) == before


def test_a_harness_cannot_have_the_id_of_an_agent(load: Any) -> None:
    with pytest.raises(BadConfig, match=r"acp\.harnesses: these ids already belong to agents: main"):
        load("{acp: {harnesses: {Main: {command: ['x']}}}}")


def test_what_a_harness_gets_in_its_environment_is_not_shown(load: Any) -> None:
    loaded = load("{acp: {harnesses: {claude: {command: ['x'], env: {SOMETHING: 'private'}}}}}")
    shown = dict(config.masked_leaves(loaded.settings))
    assert shown["acp.harnesses.claude.env.SOMETHING"] == config.MASK


@pytest.mark.parametrize("entry", ["{}", "{command: []}", "{command: 'x'}", "{command: ['x'], mod: 'y'}"])
def test_a_harness_needs_a_command_and_has_no_other_settings(load: Any, entry: str) -> None:
    with pytest.raises(BadConfig, match=r"acp\.harnesses\.claude"):
        load(f"{{acp: {{harnesses: {{claude: {entry}}}}}}}")


@pytest.mark.parametrize("value", ["12h", "0d", "30", "30 days", "-1d", "1y", ""])
def test_a_retention_that_is_no_time_or_too_short_is_refused(load: Any, value: str) -> None:
    told = problems(load, f"{{ session: {{ maintenance: {{ turnRetention: '{value}' }} }} }}")
    assert "at least one day" in told["session.maintenance.turnRetention"]


def test_a_retention_may_be_hours_days_weeks_or_for_ever(load: Any) -> None:
    loaded = load(
        "{ session: { maintenance: { pruneAfter: '48H', turnRetention: '8w', usageRetention: 'keep' } } }"
    )
    maintenance = loaded.settings.session.maintenance
    assert [maintenance.prune_after, maintenance.turn_retention] == ["48h", "8w"]
    assert duration_ms(maintenance.turn_retention) == 56 * 24 * 3_600_000
    assert duration_ms(maintenance.usage_retention) > 2**60


def test_maintenance_settings_of_other_systems_are_named_as_ignored(load: Any) -> None:
    loaded = load("{ session: { maintenance: { mode: 'warn', maxDiskBytes: '10gb', rotateBytes: '10mb' } } }")
    assert loaded.settings.session.maintenance.mode == "warn"
    assert [path for path, _ in loaded.ignored] == [
        "session.maintenance.maxDiskBytes",
        "session.maintenance.rotateBytes",
    ]


def test_settings_of_automation_that_people_bring_along_are_read_or_reported(load: Any) -> None:
    """Keys of other systems are never an error: each is in effect, or in the list of ignored ones."""
    loaded = load(
        """{
        cron: {
          enabled: true, maxConcurrentRuns: 2, skipMissedJobs: true, triggers: { enabled: true },
          sessionRetention: false, webhookToken: "a-token", runLog: { keepLines: 5 }, store: "x",
          webhookSsrfPolicy: { allowedHostnames: ["ci.local"] },
          failureAlert: { enabled: true, after: 3, cooldownMs: 1000, includeSkipped: true, mode: "announce" },
        },
        session: {
          groupScope: "per-group", notifyOnCreate: true, resetTriggers: ["/new"],
          reset: { mode: "daily", atHour: 4 }, resetByType: { dm: { mode: "idle", idleMinutes: 240 } },
          resetByChannel: { discord: { mode: "idle", idleMinutes: 10080 } },
        },
        tools: { swarm: { enabled: true, maxTotalPerGroup: 7 } },
        agents: { defaults: {
          contextTokens: 200000,
          contextPruning: { mode: "cache-ttl", ttl: "1h", hardClear: { enabled: true } },
          compaction: { mode: "safeguard", memoryFlush: { enabled: true, model: "x/y" },
                keepRecentTokens: 5000 },
        } },
        hooks: { mappings: [ {
          id: "x", match: { path: "x" }, messageTemplate: "x", sessionMode: "isolated",
          transform: { module: "x" }, deliver: true, channel: "last",
        } ] },
        }"""
    )
    assert {path for path, _ in loaded.ignored} == {
        "agents.defaults.compaction.memoryFlush.model",
        "agents.defaults.compaction.mode",
        "cron.runLog",
        "cron.store",
        "cron.triggers",
        "hooks.mappings[0].id",
        "hooks.mappings[0].sessionMode",
        "hooks.mappings[0].transform",
        "session.notifyOnCreate",
        "tools.swarm.enabled",
    }
    settings = loaded.settings
    assert (settings.cron.skip_missed_jobs, settings.cron.session_retention) == (True, "keep")
    assert settings.session.reset_by_type["direct"].idle_minutes == 240
    assert settings.agents.defaults.compaction.keep_recent_tokens == 5000
    assert settings.tools.swarm.max_total_per_group == 7


@pytest.mark.parametrize(
    ("job", "where", "said"),
    [
        ({"schedule": {"kind": "cron", "expr": "61 * * * *"}}, "cron.jobs[0].schedule", "the minute is '61'"),
        (
            {"schedule": {"kind": "cron", "expr": "0 8 * * *", "tz": "Mars"}},
            "cron.jobs[0].schedule",
            "'Mars'",
        ),
        ({"schedule": {"kind": "at", "at": "20m"}}, "cron.jobs[0].schedule", "must be a date"),
        ({"payload": {"kind": "agentTurn"}}, "cron.jobs[0].payload", "needs message"),
    ],
)
def test_a_wrong_job_in_the_settings_is_explained_with_its_place(
    load: Any, job: dict[str, Any], where: str, said: str
) -> None:
    good = {
        "id": "x",
        "schedule": {"kind": "every", "everyMs": 60000},
        "payload": {"kind": "agentTurn", "message": "x"},
    }
    ((path, message),) = problems(load, json.dumps({"cron": {"jobs": [good | job]}})).items()
    assert path.startswith(where) and said in message
