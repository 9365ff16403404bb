"""What a repeated send or spawn is recognised by. It is stored, so a new version must not change it."""

from hobnob.keys import parse
from hobnob.requests import SpawnRequest
from hobnob.sessions import Cause, SendTarget
from hobnob.types import Session

CAUSE = Cause(Session.of(parse("agent:a:main")), None, "call")


def test_a_send_is_recognised_by_the_same_key_in_every_version() -> None:
    target = SendTarget(session_key="agent:b:main")
    assert CAUSE.key(target.content("hi")) == "call:5b1b5cc2837ebfca"
    assert CAUSE.key(target.content("ho")) != CAUSE.key(target.content("hi"))


def test_a_spawn_is_recognised_by_the_same_key_in_every_version() -> None:
    assert CAUSE.key(SpawnRequest(task="count").content()) == "call:da3d6f0678d1f800"
    assert CAUSE.key(SpawnRequest(task="count", label="x").content()) != "call:da3d6f0678d1f800"
