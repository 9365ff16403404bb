"""In Python processes that tests start: databases in place of SQLite files, see tests/postgres.py."""

import os

if os.environ.get("HOBNOB_TEST_STORE") == "postgres" and os.environ.get("HOBNOB_TEST_POSTGRES_FOLDER"):
    from tests import postgres

    postgres.use_in_place_of_files()
