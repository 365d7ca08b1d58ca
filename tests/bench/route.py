"""Count how far an enqueue and its like go through the house: rooms, files, functions of ours.

    python -m tests.bench.route
    PYTHONPATH=THERE:THERE/workers:THERE/plugins python tests/bench/route.py    of another checkout

Every thread is traced. A function counts once, however often it is called; comprehensions are part
of the function that they stand in. Each way is gone several times, and the shortest is shown. It
needs nothing of the tests, so that the same program measures two checkouts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import taskq
from taskq import TaskLog, TaskQ
from taskq.cli.commands.jobs import ls as ls_command
from taskq.errors import JobFailed

ROOT = Path(taskq.__file__).parents[1]
HOMES = {
    str(ROOT / "taskq"): "taskq",
    str(ROOT / "workers/taskq_workers"): "taskq_workers",
    str(ROOT / "plugins/taskq_plugins"): "taskq_plugins",
}
#: The path of imports for a process of the same checkout.
PLACES = os.pathsep.join(str(Path(home).parent) for home in HOMES)
#: How often each way is gone.
TRIES = 7
#: Ways that make one, from an enqueue to the end of its job.
TO_ACK = ("enqueue", "enqueue to result", "claim", "ack")
_LOOK_SECONDS = 0.05


def find_rooms() -> list[str]:
    """Return the rooms that the contracts of pyproject.toml name, the inner ones first."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    rooms = set(HOMES.values())
    for contract in tool["importlinter"]["contracts"]:
        for layer in contract.get("layers", ()):
            for room in re.split("[|:]", layer):
                name = room.strip(" ()")
                rooms |= {f"{home}.{name}" for home in contract.get("containers", ())} or {name}
    return sorted(rooms, key=len, reverse=True)


ROOMS = find_rooms()


def module_of(code: CodeType) -> str | None:
    file = code.co_filename
    for home, name in HOMES.items():
        if file.startswith(home):
            return (name + file.removeprefix(home).removesuffix(".py")).replace("/", ".")
    return None


def room_of(module: str) -> str:
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), module)


class Route:
    """Note what was called while somebody looked: functions of ours, in order of their first."""

    def __init__(self, *parts: Route) -> None:
        """Begin with the functions of other ways; one of several counts once."""
        self.codes: dict[CodeType, None] = {code: None for part in parts for code in part.codes}

    def functions(self) -> list[tuple[str, str]]:
        named = ((module_of(code), code.co_qualname) for code in self.codes)
        return [(module, name) for module, name in named if module is not None]

    def files(self) -> list[str]:
        return list(dict.fromkeys(module for module, _ in self.functions()))

    def counts(self) -> dict[str, int]:
        rooms = {*map(room_of, self.files())}
        return {
            "rooms": len(rooms), "files": len(self.files()), "functions": len(self.functions()),
        }  # fmt: skip


#: The active profile: threads get their profiler at their start, long before a measurement.
_looking: list[Route] = []
#: Ways gone so far, by their names.
_gone: dict[str, list[Route]] = {}


def profile(frame: FrameType, event: str, _arg: object) -> None:
    """Note a call; ``sys.setprofile`` wants this signature."""
    code = frame.f_code
    if event == "call" and (code.co_name == "<lambda>" or code.co_name[0] != "<"):
        for route in _looking:
            route.codes.setdefault(code)


@contextmanager
def traced(title: str) -> Iterator[None]:
    """Trace every thread for one way."""
    route = Route()
    _looking.append(route)
    try:
        yield
    finally:
        _looking.remove(route)
        _gone.setdefault(title, []).append(route)


async def jobs(path: Path) -> None:
    """An enqueue there and back, to a result, a claim, an ack, and ``taskq ls``."""
    app = TaskQ(path / "jobs")

    @app.task(name="mail.send")
    async def send(to: str) -> int:
        return len(to)

    async with app:
        for _ in range(TRIES + 1):
            await asyncio.sleep(_LOOK_SECONDS)  # the storage thread sleeps: the longer of its ways
            with traced("enqueue"):
                job = await send.enqueue("you")
        async with app.worker(concurrency=1):
            await job.result()
            for _ in range(TRIES):
                await asyncio.sleep(_LOOK_SECONDS)  # the worker waits for work
                with traced("enqueue to result"):
                    await (await send.enqueue("you")).result()
        await asyncio.gather(*[send.enqueue("you") for _ in range(TRIES)])
    async with TaskLog.open(path / "jobs") as log:
        for _ in range(TRIES):
            with traced("claim"):
                (delivery,) = await log.claim(1)
            with traced("ack"):
                await log.ack(delivery)
        assert str((await log.get(job.id)).state) == "succeeded"
    _gone["enqueue to ack"] = [
        Route(*ways) for ways in zip(*map(_gone.__getitem__, TO_ACK), strict=False)
    ]
    await asyncio.to_thread(listed, path / "jobs")


def listed(path: Path) -> None:
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        for _ in range(2):
            with traced("taskq ls"):
                ls_command.main(["-d", str(path)], standalone_mode=False)


async def dead(path: Path) -> None:
    app = TaskQ(path / "dead")

    @app.task(retry=1)
    async def fail() -> None:
        raise ValueError("no")

    async with app, app.worker(concurrency=1):
        for _ in range(TRIES):
            await asyncio.sleep(_LOOK_SECONDS)  # the worker waits for work
            with traced("dead letter"):
                job = await fail.enqueue()
                with contextlib.suppress(JobFailed):
                    await job.result()
            assert str((await job.view()).state) == "dead"


#: Ends as it is killed, with a job that runs.
_KILLED = """
import asyncio, os, signal, sys
from taskq import TaskLog

async def main():
    async with TaskLog.open(sys.argv[1]) as log:
        await log.put(b"x")
        await log.claim(1)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def killed(path: Path) -> None:
    """Open a log whose only process was killed while a job ran there."""
    for number in range(TRIES):
        log = path / f"killed-{number}"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _KILLED, str(log), env={**os.environ, "PYTHONPATH": PLACES}
        )
        assert await child.wait() == -signal.SIGKILL
        with traced("open after kill -9"):
            opened = await TaskLog.open(log)
        (delivery,) = await opened.claim(1)
        assert delivery.attempt == 2
        await opened.close()


WAYS: dict[str, Callable[[Path], Any]] = {
    "jobs": lambda path: asyncio.run(jobs(path)),
    "dead": lambda path: asyncio.run(dead(path)),
    "killed": lambda path: asyncio.run(killed(path)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", default=[], help=" ".join(WAYS))
    parser.add_argument("--json", action="store_true", help="one object")
    parser.add_argument("-v", action="store_true", help="each function, by its file")
    given = parser.parse_args()
    threading.setprofile(profile)
    sys.setprofile(profile)
    for way in given.ways or WAYS:
        with tempfile.TemporaryDirectory() as directory:
            WAYS[way](Path(directory))
    sys.setprofile(None)
    routes = {
        title: min(ways, key=lambda route: len(route.functions())) for title, ways in _gone.items()
    }
    if given.json:
        print(json.dumps({title: route.counts() for title, route in routes.items()}))
        return
    for title, route in routes.items():
        print(f"{title:30}" + "".join(f"{n:5} {what}" for what, n in route.counts().items()))
        if given.v:
            for module in route.files():
                names = [name for file, name in route.functions() if file == module]
                print(f"  {module.removeprefix('taskq.')}: {', '.join(names)}")


if __name__ == "__main__":
    main()
