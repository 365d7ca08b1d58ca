"""A browser for the tests that need a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.web.visit import CHROMIUM, EVIL_HOST


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    """Yield Chromium, to which any name leads to this machine, as an attacker's would.

    Its start costs more than most visits, each of which closes the windows it opened.
    """
    api = pytest.importorskip("playwright.async_api", reason="needs the extra browser")
    rules = f"--host-resolver-rules=MAP {EVIL_HOST} 127.0.0.1"
    async with api.async_playwright() as playwright:
        # A container's root has no sandbox of its own to make.
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", rules]
        )
        yield browser
        await browser.close()
