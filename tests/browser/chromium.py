"""The browser that looks at the page, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

_PATH = os.environ.get("HOBNOB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def missing() -> str | None:
    """What to bring here to look at the page, in a sentence that begins with the reason."""
    if not _PATH:
        return "there is no chromium (as root, `apt-get install chromium` brings one)"
    if not find_spec("playwright"):
        return "there is no playwright (the extra `dev` brings it)"
    return None


@contextmanager
def open_browser(*flags: str, **options: Any) -> Iterator[Any]:
    """A Chromium without a window. While it is open, its event loop runs on this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_PATH, args=["--no-sandbox", *flags], **options)
        yield browser
        browser.close()
