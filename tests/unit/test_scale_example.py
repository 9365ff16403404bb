"""The example of several gateways in docs/examples/scale, as far as it can be checked without Docker."""

import re
from pathlib import Path

from tests.unit.test_project import ROOT

from hobnob import config
from hobnob.api import routes as routes  # also for the routes it registers
from hobnob.api import routing
from hobnob.store import is_postgres

FOLDER = ROOT / "docs" / "examples" / "scale"
COMPOSE = (FOLDER / "compose.yaml").read_text()
CADDYFILE = (FOLDER / "Caddyfile").read_text()
SHARED = ["agents", "outgoing", "channels"]  # folders of the state directory
GATEWAYS = ["gateway1", "gateway2", "gateway3"]


def section(name: str) -> str:
    """The lines of a service."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert found, name
    return found[1]


def test_the_settings_of_the_example_are_valid_and_complete(tmp_path: Path) -> None:
    env = {
        name: "a-secret-of-this-test" for name in re.findall(r"^    ([A-Z_]+): \$\{", COMPOSE, re.MULTILINE)
    }
    loaded = config.load(FOLDER / "settings" / "hobnob.json5", env=env | {"HOBNOB_HOME": str(tmp_path)})
    assert is_postgres(loaded.store_url) and "a-secret-of-this-test@postgres/hobnob" in loaded.store_url
    assert loaded.settings.gateway.auth.token is not None
    assert loaded.settings.store.secret_key is not None
    assert not loaded.ignored and not loaded.without_effect
    (proxy,) = loaded.settings.gateway.trusted_proxies
    assert f"ipv4_address: {proxy} " in section("proxy")


def test_each_variable_of_the_example_is_one_that_hobnob_reads() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src" / "hobnob").rglob("*.py"))
    names = set(re.findall(r"HOBNOB_[A-Z_]+", COMPOSE))
    assert {"HOBNOB_CONFIG", "HOBNOB_TOKEN", "HOBNOB_STORE_KEY"} <= names
    assert [name for name in names if name not in source] == []


def test_each_gateway_of_the_example_has_a_state_of_its_own_and_shares_the_rest() -> None:
    for number, name in enumerate(GATEWAYS, 1):
        text = section(name)
        assert f"hostname: {name}" in text
        assert f"- state{number}:/data\n" in text
        assert [f"- {folder}:/data/{folder}\n" in text for folder in SHARED] == [True, True, True]
        assert re.search(rf"^  state{number}:$", COMPOSE, re.MULTILINE)
        mounted = re.search(r"\./(\S+):/etc/hobnob:ro", text)
        assert mounted and (FOLDER / mounted[1] / "hobnob.json5").exists()
    assert "HOBNOB_CONFIG: /etc/hobnob/hobnob.json5" in COMPOSE
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "postgres]" in dockerfile and " ".join(f"/data/{folder}" for folder in SHARED) in dockerfile


def test_the_database_of_the_example_has_room_for_the_connections_of_all_gateways() -> None:
    found = re.search(r"max_connections=(\d+)", COMPOSE)
    assert found and int(found[1]) >= 15 * len(GATEWAYS) + 10


def test_the_proxy_of_the_example_knows_all_gateways_and_asks_whether_they_are_ready() -> None:
    assert re.findall(r"(\w+):4626", CADDYFILE.split("reverse_proxy")[1]) == GATEWAYS
    health = re.search(r"health_uri (\S+)", CADDYFILE)
    assert health
    assert any(route.verb == "GET" and route.path == health[1] for route in routing.ROUTES)
    assert "./Caddyfile:/etc/caddy/Caddyfile:ro" in section("proxy")
