"""Settings for all tests: bytecode is kept, and hypothesis does not judge how fast an example is."""

import asyncio
import os
from collections.abc import Iterator

import pytest
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
