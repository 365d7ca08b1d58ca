"""A condition that a test turns on and off, and the log's view of its jobs."""

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

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


def wait_for(path: str) -> int:
    while not Path(path).exists():
        threading.Event().wait(0.002)
    return 1


def last_once(mark: str) -> int:
    if Path(mark).exists():
        return 2
    Path(mark).touch()
    threading.Event().wait()
    return 0


async def last_once_on_loop(mark: str) -> int:
    if await asyncio.to_thread(Path(mark).exists):
        return 2
    await asyncio.to_thread(Path(mark).touch)
    await asyncio.Event().wait()
    return 0


#: Child processes import its tasks.
app = TaskQ("unused", durability="os")
SWITCH = Switch()
finish = app.task(name="finish", requires=[SWITCH.condition()])(wait_for)
_LASTING: dict[str, Any] = {"requires": [SWITCH.condition()], "while_running": True}
LASTING = {
    "loop": app.task(name="loop", **_LASTING)(last_once_on_loop),
    "child": app.task(name="child", runs_in="process", **_LASTING)(last_once),
}
