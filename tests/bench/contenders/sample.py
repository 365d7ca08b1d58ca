"""One sample of one scenario of one contender, by the contender's own interpreter.

``peers.py`` starts these in turn: ``python -m tests.bench.contenders.sample APP SCENARIO JOBS``
with the directory and the mode in the environment. The result is a line of JSON. Nothing here but
the app's module is imported that a bare interpreter lacks.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench.contenders import told
from tests.bench.harness import ROOT

#: After this time a worker, or a job that has not run, hangs.
HANGS_SECONDS = 90
#: The store's counts must be right this long after the last job ran.
SETTLE_SECONDS = 30
#: How long a killed worker's job is waited for.
TAKEOVER_SECONDS = float(os.environ.get("PEERS_TAKEOVER_SECONDS", "90"))
#: A job that has not run again by then, and is not in the store, is lost.
LOST_SECONDS = 10
#: Pauses between the jobs whose latency is taken: a worker is idle before each.
PAUSE_SECONDS = (0.1, 0.4)


class Stage:
    """A contender in its directory, and the reports of its tasks."""

    def __init__(self, app: str) -> None:
        self._listener = told.Listener()
        self.caller: told.Caller = importlib.import_module(f"tests.bench.contenders.{app}").make()

    def hear(self, word: str, seconds: float = HANGS_SECONDS) -> float:
        return self._listener.hear(word, seconds)

    @contextlib.contextmanager
    def worker(self, *, warm: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker inside, ``warm`` after its first job; killed after the checks."""
        log = told.DIRECTORY / "worker.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.caller.worker, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            if warm:
                self.caller.call("stamp", 0)
                self.hear("stamp")
            yield process
        except told.HangsError as error:
            last = log.read_text(encoding="utf-8", errors="replace")[-300:]
            raise told.HangsError(f"{error}; the worker's last words: {last!r}") from None
        finally:
            process.kill()
            process.wait()

    def settled(self, jobs: int) -> float:
        """Return the moment at which the store says that all succeeded and none is left."""
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            ended, left = self.caller.counts()
            if left == 0 and ended in {jobs, None}:
                return time.monotonic()
            assert time.monotonic() < until, f"{ended} of {jobs} succeeded, {left} did not end"
            time.sleep(0.005)


def cycle(stage: Stage, jobs: int) -> dict[str, Any]:
    """Many callers and a worker in another process, from the first call until all is settled."""
    with stage.worker(warm=True):
        begin = time.monotonic()
        stage.caller.enqueue_at_once(jobs)
        stage.hear("last")
        return {"seconds": stage.settled(jobs + 1) - begin}


def drain(stage: Stage, jobs: int) -> dict[str, Any]:
    """A backlog, from its first job's start until all is settled: the worker's is not in it."""
    stage.caller.fill("noop", jobs)
    with stage.worker():
        begin = stage.hear("first")
        stage.hear("last")
        return {"seconds": stage.settled(jobs) - begin}


def lone(stage: Stage, jobs: int) -> dict[str, Any]:
    begin = time.monotonic()
    latencies = stage.caller.enqueue_each(jobs)
    taken = {"seconds": time.monotonic() - begin, "latencies": latencies}
    ended, left = stage.caller.counts()
    assert (ended or 0, left) == (0, jobs), (ended, left)
    if await_each := getattr(stage.caller, "await_each", None):
        begin = time.monotonic()
        await_each(jobs)
        taken["awaited"] = jobs / (time.monotonic() - begin)
        assert stage.caller.counts()[1] == 2 * jobs
    return taken


def latency(stage: Stage, jobs: int) -> dict[str, Any]:
    """From the call of an enqueue to its task's first line; the worker is idle before each."""
    latencies = []
    with stage.worker(warm=True):
        for _ in range(jobs):
            time.sleep(random.uniform(*PAUSE_SECONDS))
            called = time.monotonic()
            stage.caller.call("stamp", 0)
            latencies.append(stage.hear("stamp") - called)
        stage.settled(jobs + 1)
    return {"latencies": latencies}


def start(stage: Stage, jobs: int) -> dict[str, Any]:
    stage.caller.fill("stamp", jobs)
    begin = time.monotonic()
    with stage.worker():
        seconds = stage.hear("stamp") - begin
        stage.settled(jobs)
    return {"seconds": seconds}


def takeover(stage: Stage, jobs: int) -> dict[str, Any]:
    """From kill -9 of a worker within a job until that runs again, in a worker started at once."""
    stage.caller.fill("hold", jobs)
    with stage.worker():
        stage.hear("held")
        killed = time.monotonic()
    with stage.worker():
        for seconds in (min(LOST_SECONDS, TAKEOVER_SECONDS), TAKEOVER_SECONDS):
            with contextlib.suppress(told.HangsError):
                left = killed + seconds - time.monotonic()
                return {"seconds": stage.hear("held", left) - killed}
            if stage.caller.counts()[1] == 0:
                return {"never": "never: lost"}
    return {"never": f"> {TAKEOVER_SECONDS:.0f} s"}


SCENARIOS: dict[str, Callable[[Stage, int], dict[str, Any]]] = {
    item.__name__: item for item in (cycle, drain, lone, latency, start, takeover)
}


def main() -> None:
    """Run what the arguments say; fails loudly if the end state is wrong."""
    app, scenario, jobs = sys.argv[1:]
    stage = Stage(app)
    result = SCENARIOS[scenario](stage, int(jobs))
    stage.caller.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
