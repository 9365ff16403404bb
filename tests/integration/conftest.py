import os
from pathlib import Path

import pytest


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "state" / "hobnob.db"


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> object:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)
