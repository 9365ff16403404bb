"""Settings for all tests: bytecode is kept, and hypothesis does not judge how fast an example is."""

import asyncio
import os
from collections.abc import Iterator

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from tests.loops import Policy

asyncio.set_event_loop_policy(Policy())

# Our processes start many times: compiling everything each time would be most of what they do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The machine is shared: a slow example is no finding.
# Most random texts are no keys: that many are left out is no finding either.
LENIENT = [HealthCheck.filter_too_much, HealthCheck.too_slow]
settings.register_profile("hobnob", deadline=None, suppress_health_check=LENIENT)
settings.register_profile("thorough", deadline=None, suppress_health_check=LENIENT, max_examples=3000)
settings.load_profile("hobnob")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Limit a repeated test too: the timer of pytest-timeout is set once, and has run out if it hung."""
    if getattr(item, "execution_count", 1) == 1:
        return
    limits = pytest_timeout.get_env_settings(item.config)
    if (marker := item.get_closest_marker("timeout")) is not None:
        limits = limits._replace(timeout=marker.args[0])
    item.config.hook.pytest_timeout_cancel_timer(item=item)
    item.config.hook.pytest_timeout_set_timer(item=item, settings=limits)


if os.environ.get("HOBNOB_TEST_STORE") == "postgres":
    from tests import postgres

    postgres.use_in_place_of_files()

    @pytest.fixture(autouse=True)
    def databases(request: pytest.FixtureRequest) -> Iterator[None]:
        """A database for each store that a test opens, until its end if it is in the folder of the test."""
        if request.node.get_closest_marker("sqlite_file"):
            pytest.skip("about SQLite files")
        postgres.require_server()
        folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
        yield
        if folder is not None:
            postgres.drop_databases(folder)
