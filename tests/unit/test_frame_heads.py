"""Frames that the gateway makes itself are those of the protocol."""

import pytest
from websockets.frames import Frame, Opcode

from hobnob.api.uvicorn_protocols import text_head


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
def test_a_frame_has_the_head_of_its_size(size: int) -> None:
    text = b"x" * size
    assert text_head(size) + text == Frame(Opcode.TEXT, text).serialize(mask=False)
