"""The names of tests/integration/helpers.py under which tests/browser and bench know them."""

from tests.integration.helpers import ANN, BOB, EVE, Gate
from tests.integration.helpers import append_messages as put
from tests.integration.helpers import create_sessions as made
from tests.integration.helpers import spawn_and_wait as spawned
from tests.integration.helpers import spawning_agents as house
from tests.integration.helpers import three_agents as team

__all__ = ["ANN", "BOB", "EVE", "Gate", "house", "made", "put", "spawned", "team"]
