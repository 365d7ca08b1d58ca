"""The way of one enqueue, claim, ack and ``show`` through the house: which rooms, in which order.

    python -m tests.bench.route

Every call of a function of ours is traced, on the event loop's thread and on the storage thread.
Told of each: how many modules run at all, the rooms in the order in which they are first entered,
and how often a room calls upward, into one that stands above it in the ladder of pyproject.toml. It
asserts that the job was really enqueued, run, acked and shown.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from taskq import TaskLog, TaskQ
from taskq.cli.commands.jobs import show as show_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT = Path(__file__).parents[2]
HOMES = {str(ROOT / "taskq"): "taskq", str(ROOT / "workers/taskq_workers"): "taskq_workers"}


def ladder() -> list[list[str]]:
    """The rooms from the top down, those of one rung together, as the contracts have them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    by_name = {contract["name"]: contract for contract in contracts["contracts"]}
    rungs: list[list[str]] = []
    for whole in by_name["The whole"]["layers"]:
        inner = [
            contract
            for contract in by_name.values()
            if contract.get("containers") == [whole] and contract["type"] == "layers"
        ]
        layers = [layer for contract in inner for layer in contract["layers"]]
        rungs.extend([f"{whole}.{room.strip()}" for room in layer.split("|")] for layer in layers)
        if not inner:
            rungs.append([room.strip() for room in whole.split("|")])
    return rungs


RUNGS = {room: number for number, rooms in enumerate(ladder()) for room in rooms}


class Route:
    """What was called while somebody looked."""

    def __init__(self) -> None:
        self.modules: Counter[str] = Counter()
        self.rooms: dict[str, None] = {}
        self.climbs: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        """Note a call; ``sys.setprofile`` wants this signature."""
        module = module_of(frame) if event == "call" else None
        if module is None:
            return
        self.modules[module] += 1
        room = room_of(module)
        self.rooms.setdefault(room)
        caller = frame.f_back
        above = None if caller is None else module_of(caller)
        if above is not None and RUNGS.get(room, 0) < RUNGS.get(room_of(above), 0):
            self.climbs[room_of(above), room] += 1


def module_of(frame: FrameType) -> str | None:
    """Return the module of ours whose code a frame runs; ``None`` for everybody else's."""
    file = frame.f_code.co_filename
    for home, name in HOMES.items():
        if file.startswith(home):
            return (name + file.removeprefix(home).removesuffix(".py")).replace("/", ".")
    return None


def room_of(module: str) -> str:
    """Return the longest room that a module is in."""
    fitting = [room for room in RUNGS if module == room or module.startswith(f"{room}.")]
    return max(fitting, key=len, default=module)


#: Who looks now: threads take their profiler when they begin, long before somebody looks.
_looking: list[Route] = []


def profile(frame: FrameType, event: str, arg: object) -> None:
    """Hand an event of any thread to who looks."""
    for route in _looking:
        route(frame, event, arg)


@contextmanager
def traced(title: str) -> Iterator[None]:
    """Trace every thread, and print the route when it is over."""
    route = Route()
    _looking.append(route)
    try:
        yield
    finally:
        _looking.remove(route)
    up = sum(route.climbs.values())
    print(f"\n{title}: {len(route.modules)} modules, {len(route.rooms)} rooms, {up} calls upward")
    print("  " + " → ".join(room.removeprefix("taskq.") for room in route.rooms))
    for (lower, upper), count in route.climbs.most_common():
        print(f"  upward: {lower} → {upper} ({count})")


async def main() -> None:
    """One job, from its enqueue to what ``taskq show`` says of it."""
    with tempfile.TemporaryDirectory() as directory:
        await go(Path(directory) / "data")


async def go(path: Path) -> None:
    """Warm each way once, so that nothing is traced that a first time alone needs."""
    app = TaskQ(path)

    @app.task(name="mail.send")
    async def send(to: str) -> int:
        return len(to)

    async with app:
        await send.enqueue("first")
        with traced("enqueue"):
            job = await send.enqueue("second")
    async with TaskLog.open(path) as log:
        (delivery,) = await log.claim(1)
        await log.ack(delivery)
        with traced("claim"):
            (delivery,) = await log.claim(1)
        with traced("ack"):
            await log.ack(delivery)
        state = await log.get(job.id)
    assert str(state.state) == "succeeded", state
    await asyncio.to_thread(show, path, job.id)


def show(path: Path, job: str) -> None:
    """What ``taskq show`` does, twice; it raises what went wrong."""
    arguments = [job, "-d", str(path)]
    show_command.main(arguments, standalone_mode=False)
    with traced("taskq show"):
        show_command.main(arguments, standalone_mode=False)


if __name__ == "__main__":
    threading.setprofile(profile)
    sys.setprofile(profile)
    asyncio.run(main())
