"""Fixtures of the integration tests."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from hobnob.models import Event, Request
from hobnob.models.rehearsal import Rehearsal


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "state" / "hobnob.db"


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> object:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def model_requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request the rehearsal model gets, as it gets it."""
    requests: list[Request] = []
    stream = Rehearsal.stream

    def listening(self: Rehearsal, request: Request) -> AsyncGenerator[Event]:
        requests.append(request)
        return stream(self, request)

    monkeypatch.setattr(Rehearsal, "stream", listening)
    return requests
