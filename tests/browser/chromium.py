"""Find and launch the system's Chromium."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

_PATH = os.environ.get("HOBNOB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def missing() -> str | None:
    """Why no browser can be launched and what to install, or None."""
    if not _PATH:
        return "no chromium (install it: `apt-get install chromium`)"
    if not find_spec("playwright"):
        return "no playwright (install the extra `dev`)"
    return None


@contextmanager
def open_browser(*flags: str, **options: Any) -> Iterator[Any]:
    """A headless Chromium. While it is open, Playwright's event loop runs on this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_PATH, args=["--no-sandbox", *flags], **options)
        yield browser
        browser.close()
