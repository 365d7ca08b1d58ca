"""A condition that a test turns on and off, and the log's view of its jobs."""

from __future__ import annotations

import asyncio
from collections import Counter

from taskq import TaskQ
from taskq.conditions import Condition, condition


class Switch:
    """Call it to probe it."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self.probes = 0
        self._probed = asyncio.Event()

    async def __call__(self) -> bool:
        self.probes += 1
        self._probed.set()
        return self.on

    async def probed(self, times: int = 1) -> None:
        goal = self.probes + times
        while self.probes < goal:
            self._probed.clear()
            await self._probed.wait()

    def condition(self, name: str = "the switch is on") -> Condition:
        return condition(self, name=name, every="10ms")


async def records(app: TaskQ) -> Counter[str]:
    """Return how many records of each kind the log holds; "released" with its cause."""
    counts: Counter[str] = Counter()
    async for record in app.stream(follow=False):
        cause = f" {record.cause}" if record.kind == "released" else ""
        counts[record.kind + cause] += 1
    return counts
