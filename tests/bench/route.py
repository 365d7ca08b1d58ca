"""Count how far an enqueue and its like go through the house: functions, files, rooms of ours.

Run: ``python -m tests.bench.route WAY``; it prints JSON. Every thread is traced. A function counts
once, and comprehensions count as their function. Of several tries of a way the shortest counts.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
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
HOMES = tuple(f"{ROOT / home}/" for home in ("taskq", "workers", "plugins"))
#: How often each way is gone.
TRIES = 7
#: Ways that make one, from an enqueue to the end of its job.
TO_ACK = ("enqueue", "enqueue to result", "claim", "ack")
_LOOK_SECONDS = 0.05
#: The active profile: threads get their profiler at their start, long before a measurement.
_looking: list[set[CodeType]] = []
#: Ways gone so far, by their names.
_gone: dict[str, list[set[CodeType]]] = {}


def profile(frame: FrameType, event: str, _arg: object) -> None:
    """Note a call; ``sys.setprofile`` wants this signature."""
    code = frame.f_code
    if event == "call" and (code.co_name == "<lambda>" or code.co_name[0] != "<"):
        for codes in _looking:
            codes.add(code)


@contextmanager
def traced(title: str) -> Iterator[None]:
    """Trace every thread for one way."""
    _looking.append(set())
    try:
        yield
    finally:
        _gone.setdefault(title, []).append(_looking.pop())


def counts(codes: set[CodeType]) -> tuple[int, int, int]:
    """Return the numbers of functions, files and rooms (packages)."""
    ours = [code for code in codes if code.co_filename.startswith(HOMES)]
    files = {code.co_filename for code in ours}
    return len(ours), len(files), len({Path(file).parent for file in files})


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
    whole = zip(*map(_gone.__getitem__, TO_ACK), strict=False)
    _gone["enqueue to ack"] = [set[CodeType]().union(*ways) for ways in whole]
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
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, str(log))
        assert await child.wait() == -signal.SIGKILL
        with traced("open after kill -9"):
            opened = await TaskLog.open(log)
        (delivery,) = await opened.claim(1)
        assert delivery.attempt == 2
        await opened.close()


WAYS: dict[str, Callable[[Path], Any]] = {"jobs": jobs, "dead": dead, "killed": killed}


def main() -> None:
    threading.setprofile(profile)
    sys.setprofile(profile)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(WAYS[sys.argv[1]](Path(directory)))
    sys.setprofile(None)
    print(json.dumps({title: min(map(counts, ways)) for title, ways in _gone.items()}))


if __name__ == "__main__":
    main()
