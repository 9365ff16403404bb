"""`hobnob channels add whatsapp` as a person uses it."""

from __future__ import annotations

import importlib.util
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


async def test_the_web_transport_is_set_up_without_questions_to_the_platform(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    output = await hobnob(home, "channels", "add", "whatsapp", answers="web\n")
    assert "Link the phone: hobnob channels login whatsapp" in output
    assert '"web"' in (home / "hobnob.json5").read_text().replace("'", '"')


async def test_a_channel_with_a_token_has_no_login(whatsapp: WhatsAppPlatform, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    words = [f"--set=cloud.apiUrl={whatsapp.fake.url}", "--set=transport=cloud"]
    words += [f"--set=cloud.phoneNumberId={NUMBER_ID}", f"--set=cloud.accessToken={TOKEN}"]
    words += [f"--set=cloud.appSecret={APP_SECRET}", f"--set=cloud.verifyToken={VERIFY_TOKEN}"]
    await hobnob(home, "channels", "add", "whatsapp", *words)
    output = await hobnob(home, "channels", "login", "whatsapp", code=2)
    assert "signs in with what is in the settings" in output


async def test_a_login_that_cannot_reach_whatsapp_is_told(tmp_path: Path) -> None:
    """With the real library, which finds no WhatsApp here."""
    if importlib.util.find_spec("neonize") is None:
        pytest.skip("the extra whatsapp-web is not installed")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    await hobnob(home, "channels", "add", "whatsapp", answers="web\n")
    proxies = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    output = await hobnob(home, "channels", "login", "whatsapp", code=1, env=proxies)
    assert "WhatsApp cannot be reached" in output
