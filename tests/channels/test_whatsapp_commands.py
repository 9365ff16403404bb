"""`hobnob channels add whatsapp` as a person uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.channels.fake_whatsapp import APP_SECRET, NUMBER_ID, TOKEN, VERIFY_TOKEN
from tests.channels.test_commands import hobnob
from tests.channels.whatsapp_platform import WhatsAppPlatform


@pytest.fixture
async def whatsapp() -> AsyncIterator[WhatsAppPlatform]:
    platform = WhatsAppPlatform()
    await platform.start()
    yield platform
    await platform.stop()


async def test_the_cloud_api_is_set_up_by_its_tokens(whatsapp: WhatsAppPlatform, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    words = ("channels", "add", "whatsapp", "--set", f"cloud.apiUrl={whatsapp.fake.url}")
    answers = f"cloud\n{NUMBER_ID}\n{TOKEN}\n{APP_SECRET}\n{VERIFY_TOKEN}\n"
    output = await hobnob(home, *words, answers=answers)
    assert "The platform knows the bot as Test Shop" in output
    assert "/channels/whatsapp/default/webhook" in output
    assert TOKEN not in output and TOKEN in (home / "hobnob.json5").read_text()
