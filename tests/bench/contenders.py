"""A program of one job framework, which enqueues, and the module that its worker loads.

``peers.py`` starts ``main`` by the framework's own interpreter, a fresh process for each sample.
The environment names the framework, its mode, and an empty directory. Each is used as its
documentation says for one machine:

- taskq: async tasks, one event loop for all callers, and ``taskq worker`` as it comes.
- huey: ``SqliteHuey`` as it comes, sync tasks, one connection for all threads, and its consumer,
  which has one thread and looks for jobs after 0.1 s, and later up to each 10 s. A job leaves the
  database when it is taken.
- flexiq: ``Queue(db_path=…)`` as it comes, sync tasks, and its worker, which has a thread for each
  processor and looks for jobs each 50 ms.

Tasks report their moments through a named pipe: ``time.monotonic()`` is one clock for all processes
of a machine (Linux).
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.bench.harness import ROOT
from tests.bench.load import MANY_COUNT, SUBJECT, produce

DIRECTORY: Final = Path(os.environ.get("PEERS_DIRECTORY", "."))
#: The no-ops that are to run.
JOBS: Final = int(os.environ.get("PEERS_JOBS", "0"))
#: Callers at once in a full cycle.
CALLERS: Final = 64
#: After this time a worker, or a job that has not run, hangs.
HANGS_SECONDS: Final = 90.0
#: The store's counts must be right this long after the last job ran.
SETTLE_SECONDS: Final = 30
#: Pauses between the jobs whose latency is taken: a worker is idle before each.
PAUSE_SECONDS: Final = (0.1, 0.4)
_PIPE: Final = DIRECTORY / "told"
_ran: Final = itertools.count(1)


def tell(word: str) -> None:
    os.write(_writer(), f"{word} {time.monotonic()!r}\n".encode())


@functools.cache
def _writer() -> int:
    return os.open(_PIPE, os.O_WRONLY)


def noop(i: int, subject: str) -> None:
    number = next(_ran)
    if number == 1:
        tell("first")
    if number == JOBS:
        tell("last")


def stamp(i: int, subject: str) -> None:
    tell("stamp")


def hold(i: int, subject: str) -> None:
    tell("held")
    time.sleep(3_600)


FUNCTIONS: Final = {"noop": noop, "stamp": stamp, "hold": hold}


class Caller:
    """A framework: ``queue`` is what its worker loads, ``worker`` the words that start one."""

    queue: Any
    tasks: dict[str, Any]
    worker: tuple[str, ...]

    def call(self, task: str, number: int) -> object:
        return self.tasks[task](number, SUBJECT)

    def fill(self, task: str, jobs: int) -> None:
        raise NotImplementedError

    def counts(self) -> tuple[int | None, int]:
        """Return jobs (succeeded, not ended) as the store says; None if it keeps no such count.

        Fails if one ended otherwise.
        """
        raise NotImplementedError

    def enqueue_at_once(self, jobs: int) -> None:

        def call(first: int) -> None:
            for number in range(first, jobs, CALLERS):
                self.call("noop", number)

        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(call, range(CALLERS)))

    def await_each(self, jobs: int) -> bool:
        return jobs < 0


class Taskq(Caller):
    worker = ("-m", "taskq", "worker", f"{__name__}:queue", "--quiet")

    def __init__(self) -> None:
        from taskq import TaskQ  # noqa: PLC0415 - the others' interpreters lack it

        mode = os.environ.get("PEERS_MODE", "fsync")
        self.queue = TaskQ(DIRECTORY / "data", durability=mode)

        def on_loop(function: Callable[..., None]) -> Any:
            async def run(i: int, subject: str) -> None:
                function(i, subject)

            return run

        functions = FUNCTIONS.items()
        self.tasks = {name: self.queue.task(name=name)(on_loop(fn)) for name, fn in functions}

    @functools.cached_property
    def _run(self) -> Callable[[Any], Any]:
        runner = asyncio.Runner()
        runner.run(self.queue.open())
        return runner.run

    def call(self, task: str, number: int) -> object:
        return self.tasks[task].enqueue_sync(number, SUBJECT)

    def await_each(self, jobs: int) -> bool:
        self._run(produce(self.tasks["noop"].enqueue, jobs, 1))
        return True

    def enqueue_at_once(self, jobs: int) -> None:
        self._run(produce(self.tasks["noop"].enqueue, jobs, CALLERS))

    def fill(self, task: str, jobs: int) -> None:
        calls = [(number, SUBJECT) for number in range(jobs)]
        for start in range(0, jobs, MANY_COUNT):
            self._run(self.tasks[task].enqueue_many(calls[start : start + MANY_COUNT]))

    def counts(self) -> tuple[int | None, int]:
        queues = self._run(self.queue.stats()).queues
        assert not any(queue.dead + queue.cancelled + queue.expired for queue in queues), queues
        waiting = sum(queue.ready + queue.scheduled + queue.running for queue in queues)
        return sum(queue.succeeded for queue in queues), waiting


class Huey(Caller):
    worker = ("-m", "huey.bin.huey_consumer", f"{__name__}.queue", "--quiet")

    def __init__(self) -> None:
        from huey import SqliteHuey  # noqa: PLC0415 - in an environment of its own

        self.queue = SqliteHuey("bench", filename=str(DIRECTORY / "huey.db"))
        self.tasks = {name: self.queue.task(name=name)(fn) for name, fn in FUNCTIONS.items()}

    def fill(self, task: str, jobs: int) -> None:
        storage, make = self.queue.storage, self.tasks[task].s
        rows = (
            (storage.name, self.queue.serialize_task(make(number, SUBJECT)), 0)
            for number in range(jobs)
        )
        with storage.db(commit=True) as cursor:
            cursor.executemany("insert into task (queue, data, priority) values (?, ?, ?)", rows)

    def counts(self) -> tuple[int | None, int]:
        return None, self.queue.pending_count()


class Flexiq(Caller):
    worker = (
        *("-c", "from flexiq.cli import main; main()"),
        *("worker", "--app", f"{__name__}:queue"),
    )

    def __init__(self) -> None:
        from flexiq import Queue  # noqa: PLC0415 - in an environment of its own

        self.queue = Queue(db_path=str(DIRECTORY / "flexiq.db"))
        self.tasks = {name: self.queue.task(name=name)(fn) for name, fn in FUNCTIONS.items()}

    def call(self, task: str, number: int) -> object:
        return self.tasks[task].delay(number, SUBJECT)

    def fill(self, task: str, jobs: int) -> None:
        self.tasks[task].map([(number, SUBJECT) for number in range(jobs)])

    def counts(self) -> tuple[int | None, int]:
        stats = self.queue.stats()
        assert not stats["failed"] + stats["dead"] + stats["cancelled"], stats
        return stats["completed"], stats["pending"] + stats["running"]


caller: Final[Caller] = {"taskq": Taskq, "huey": Huey, "flexiq": Flexiq}[
    os.environ.get("PEERS_APP", "taskq")
]()
queue: Final = caller.queue


class HangsError(Exception):
    """The awaited word did not come."""


class Listener:
    """The reading end, kept open for writing too, so that no process's end closes it."""

    def __init__(self) -> None:
        os.mkfifo(_PIPE)
        self._file = os.open(_PIPE, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def hear(self, word: str, seconds: float = HANGS_SECONDS) -> float:
        """Return the moment of the next such word; others are skipped."""
        until = time.monotonic() + seconds
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                said, moment = line.decode().split()
                if said == word:
                    return float(moment)
                continue
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                raise HangsError(f"no {word!r} within {seconds:.0f} s")
            self._rest += os.read(self._file, 65_536)


@contextlib.contextmanager
def worker(heard: Listener, *, warm: bool = False) -> Iterator[None]:
    """Run a worker inside, ``warm`` after its first job; killed after the checks."""
    log = DIRECTORY / "worker.log"
    with log.open("ab") as output:
        words = (sys.executable, *caller.worker)
        process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        if warm:
            caller.call("stamp", 0)
            heard.hear("stamp")
        yield
    except HangsError as error:
        last = log.read_text(encoding="utf-8", errors="replace")[-300:]
        raise HangsError(f"{error}; the worker's last words: {last!r}") from None
    finally:
        process.kill()
        process.wait()


def settled(jobs: int) -> float:
    """Return the moment at which the store says that all succeeded and none is left."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        ended, left = caller.counts()
        if left == 0 and ended in {jobs, None}:
            return time.monotonic()
        assert time.monotonic() < until, f"{ended} of {jobs} succeeded, {left} did not end"
        time.sleep(0.005)


def cycle(heard: Listener, jobs: int) -> dict[str, Any]:
    """Many callers and a worker in another process, from the first call until all is settled."""
    with worker(heard, warm=True):
        begin = time.monotonic()
        caller.enqueue_at_once(jobs)
        heard.hear("last")
        return {"seconds": settled(jobs + 1) - begin}


def drain(heard: Listener, jobs: int) -> dict[str, Any]:
    """A backlog, from its first job's start until all is settled: the worker's is not in it."""
    caller.fill("noop", jobs)
    with worker(heard):
        begin = heard.hear("first")
        heard.hear("last")
        return {"seconds": settled(jobs) - begin}


def lone(_: Listener, jobs: int) -> dict[str, Any]:
    assert caller.counts()[1] == 0  # opens the store
    latencies = []
    for number in range(jobs):
        begin = time.monotonic()
        caller.call("noop", number)
        latencies.append(time.monotonic() - begin)
    taken = {"seconds": sum(latencies), "latencies": latencies}
    ended, left = caller.counts()
    assert (ended or 0, left) == (0, jobs), (ended, left)
    begin = time.monotonic()
    if caller.await_each(jobs):
        taken["awaited"] = jobs / (time.monotonic() - begin)
        assert caller.counts()[1] == 2 * jobs
    return taken


def latency(heard: Listener, jobs: int) -> dict[str, Any]:
    """From the call of an enqueue to its task's first line; the worker is idle before each."""
    latencies = []
    with worker(heard, warm=True):
        for _ in range(jobs):
            time.sleep(random.uniform(*PAUSE_SECONDS))
            called = time.monotonic()
            caller.call("stamp", 0)
            latencies.append(heard.hear("stamp") - called)
        settled(jobs + 1)
    return {"latencies": latencies}


def start(heard: Listener, jobs: int) -> dict[str, Any]:
    caller.fill("stamp", jobs)
    begin = time.monotonic()
    with worker(heard):
        seconds = heard.hear("stamp") - begin
        settled(jobs)
    return {"seconds": seconds}


def takeover(heard: Listener, jobs: int) -> dict[str, Any]:
    """From kill -9 of a worker within a job until that runs again, in a worker started at once."""
    caller.fill("hold", jobs)
    with worker(heard):
        heard.hear("held")
        killed = time.monotonic()
    with worker(heard):
        return {"seconds": heard.hear("held") - killed}


SCENARIOS: Final[dict[str, Callable[[Listener, int], dict[str, Any]]]] = {
    item.__name__: item for item in (cycle, drain, lone, latency, start, takeover)
}


def main() -> None:
    """Take the sample that the arguments name; fails loudly if the end state is wrong."""
    scenario, jobs = sys.argv[1:]
    print(json.dumps(SCENARIOS[scenario](Listener(), int(jobs))))
