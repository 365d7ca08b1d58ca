"""What the tasks of all contenders do: run, and tell their moments through a named pipe.

A contender's app module makes tasks of these; the sample that started the worker listens. Moments
are ``time.monotonic()``, one clock for all processes of a machine (Linux).
"""

from __future__ import annotations

import functools
import itertools
import os
import select
import time
from pathlib import Path
from typing import Final

#: Where a sample and its worker keep everything.
DIRECTORY: Final = Path(os.environ.get("PEERS_DIRECTORY", "."))
#: The no-ops that are to run.
JOBS: Final = int(os.environ.get("PEERS_JOBS", "0"))
#: How long a held job goes on: longer than any sample.
HOLD_SECONDS: Final = 3_600
_PIPE: Final = DIRECTORY / "told"
_ran = itertools.count(1)


class HangsError(Exception):
    """Nobody told what was waited for."""


def tell(word: str) -> None:
    """Write one line, at once."""
    os.write(_writer(), f"{word} {time.monotonic()!r}\n".encode())


@functools.cache
def _writer() -> int:
    return os.open(_PIPE, os.O_WRONLY)


def ran() -> None:
    """Count one no-op; the first and the last are told. Safe in threads: one call of C."""
    number = next(_ran)
    if number == 1:
        tell("first")
    if number == JOBS:
        tell("last")


def noop(i: int, subject: str) -> None:
    """Do what jobs of cycles and drains do, which is nothing."""
    ran()


def stamp(i: int, subject: str) -> None:
    """Tell the moment of a job."""
    tell("stamp")


def hold(i: int, subject: str) -> None:
    """Tell that a job began, and keep its thread."""
    tell("held")
    time.sleep(HOLD_SECONDS)


#: The tasks of all contenders that take sync functions.
FUNCTIONS: Final = {"noop": noop, "stamp": stamp, "hold": hold}


class Listener:
    """The reading end, kept open for writing too, so that no process's end closes it."""

    def __init__(self) -> None:
        os.mkfifo(_PIPE)
        self._file = os.open(_PIPE, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def hear(self, word: str, seconds: float) -> float:
        """Wait for the next line of that word, and give its moment; others are passed over."""
        until = time.monotonic() + seconds
        while True:
            line, result, rest = self._rest.partition(b"\n")
            if result:
                self._rest = rest
                said, moment = line.decode().split()
                if said == word:
                    return float(moment)
                continue
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                raise HangsError(f"no {word!r} within {seconds:.0f} s")
            self._rest += os.read(self._file, 65_536)
