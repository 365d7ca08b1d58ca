"""Shared by all contenders: tasks that report times through a named pipe, and a caller.

A contender's app module makes tasks of these; the sample that started the worker listens. Moments
are ``time.monotonic()``, one clock for all processes of a machine (Linux).
"""

from __future__ import annotations

import functools
import itertools
import os
import select
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Files of a sample and its worker.
DIRECTORY = Path(os.environ.get("PEERS_DIRECTORY", "."))
#: The no-ops that are to run.
JOBS = int(os.environ.get("PEERS_JOBS", "0"))
#: Callers at once in a full cycle.
CALLERS = 64
#: How long a held job goes on: longer than any sample.
HOLD_SECONDS = 3_600
_PIPE = DIRECTORY / "told"
_ran = itertools.count(1)


class HangsError(Exception):
    """The awaited word did not come."""


def tell(word: str) -> None:
    os.write(_writer(), f"{word} {time.monotonic()!r}\n".encode())


@functools.cache
def _writer() -> int:
    return os.open(_PIPE, os.O_WRONLY)


def ran() -> None:
    number = next(_ran)
    if number == 1:
        tell("first")
    if number == JOBS:
        tell("last")


def noop(i: int, subject: str) -> None:
    ran()


def stamp(i: int, subject: str) -> None:
    tell("stamp")


def hold(i: int, subject: str) -> None:
    tell("held")
    time.sleep(HOLD_SECONDS)


#: The tasks of all contenders that take sync functions.
FUNCTIONS = {"noop": noop, "stamp": stamp, "hold": hold}


class Listener:
    """The reading end, kept open for writing too, so that no process's end closes it."""

    def __init__(self) -> None:
        os.mkfifo(_PIPE)
        self._file = os.open(_PIPE, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def hear(self, word: str, seconds: float) -> float:
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


class Caller:
    """A program that enqueues from threads. Tasks are called by name: noop, stamp or hold."""

    #: the command of a worker, from the contender's documentation
    worker: Sequence[str]

    def call(self, task: str, number: int) -> object:
        """Enqueue one job, durable as the contender promises it when this returns."""
        raise NotImplementedError

    def fill(self, task: str, jobs: int) -> None:
        raise NotImplementedError

    def counts(self) -> tuple[int | None, int]:
        """Return jobs (succeeded, not ended) as the store says; None if it keeps no such count.

        Fails if one ended otherwise.
        """
        raise NotImplementedError

    def close(self) -> None: ...

    def enqueue_each(self, jobs: int) -> list[float]:
        """Enqueue no-ops, each after the answer to the last; return the seconds of each."""
        taken = []
        for number in range(jobs):
            start = time.perf_counter()
            self.call("noop", number)
            taken.append(time.perf_counter() - start)
        return taken

    def enqueue_at_once(self, jobs: int) -> None:
        """Enqueue no-ops from ``CALLERS`` callers."""

        def call(first: int) -> None:
            for number in range(first, jobs, CALLERS):
                self.call("noop", number)

        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(call, range(CALLERS)))
