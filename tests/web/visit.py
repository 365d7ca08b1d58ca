"""A person with a real browser, Debian's Chromium, driven by playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from tests.processes.harness import Child

CHROMIUM: Final = os.environ.get("TASKQ_CHROMIUM") or shutil.which("chromium") or ""
#: ``npm install --prefix node axe-core`` makes it.
AXE: Final = Path(os.environ.get("TASKQ_AXE", "node/node_modules/axe-core/axe.min.js"))
#: A page on another machine, as the browser sees it.
EVIL_HOST: Final = "evil.example"
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs chromium: apt-get install chromium")


class Visit:
    """A logged-in browser, and the lines of its console."""

    context: Any
    page: Any

    def __init__(self, chromium: Any, entry: str) -> None:
        self._chromium = chromium
        self.entry = entry
        self.home = entry.partition("/enter")[0]
        self.said: list[str] = []

    async def enter(self) -> None:
        self.context = await self._chromium.new_context()
        self.page = await self._watched(self.context)
        await self.page.goto(self.entry)
        await self.page.wait_for_url(f"{self.home}/")

    async def _watched(self, context: Any) -> Any:
        page = await context.new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(dialog.message))
        return page

    async def other(self, **how: Any) -> Any:
        state = await self.context.storage_state()
        return await self._watched(await self._chromium.new_context(storage_state=state, **how))

    async def open(self, path: str) -> Any:
        await self.page.goto(self.home + path)
        return self.page


@contextlib.asynccontextmanager
async def visited(chromium: Any, path: Path, *more: str) -> AsyncIterator[Visit]:
    """Yield the visit of a page that ``taskq web`` serves meanwhile."""
    with Child(sys.executable, "-m", "taskq", "web", path, *more) as child:
        visit = Visit(chromium, await anyio.to_thread.run_sync(child.line))
        await visit.enter()
        yield visit
        for context in chromium.contexts:
            await context.close()


async def faults(page: Any) -> list[tuple[str, str]]:
    if not AXE.exists():
        pytest.skip(f"needs axe-core at {AXE}, or where TASKQ_AXE says: see tests/README.md")
    await page.evaluate(AXE.read_text())
    result = (await page.evaluate("axe.run()"))["violations"]
    return [(item["id"], item["nodes"][0]["html"]) for item in result]
