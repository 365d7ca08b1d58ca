"""Processes that open, use and close a log, each killed one step later than its predecessor.

Usage: die_anywhere.py DIRECTORY fresh|shared NTH

A step is an audit event of the interpreter: an open, a rename, a lock, a removal and so on. After
each kill this process opens the log and checks that everything acknowledged is there. fresh: in a
new directory each time; shared: in one; at each NTH step. Prints "killed N" at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.requests import ClaimRequest, Settlement
from taskq.log.store.store import open_store
from tests.processes.harness import log_records, of_kind, put
from tests.processes.striker import strike

STEPS_MAX = 500
CONFIG = LogConfig(durability=Durability.FSYNC, lock_wait_seconds=5)


def live(path: str, step: int, number: int) -> None:
    """A process's life; never returns."""
    strike("events", step)
    store = open_store(path, CONFIG)
    os.write(number, f"{put(store, b'x')}\n".encode())
    port = store.thread_port
    taken = port.claim(ClaimRequest(1)).result(5)
    port.settle([Settlement(Kind.SUCCEEDED, delivery) for delivery in taken]).result(5)
    os.write(number, f"{put(store, b'x')}\n".encode())
    store.close()
    os._exit(0)


def run(path: str, step: int) -> tuple[int, list[int]]:
    """(exit code, acknowledged jobs) of one process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        live(path, step, writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        numbers = [int(line) for line in file]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), numbers


def check(path: str, numbers: list[int]) -> int:
    store = open_store(path, CONFIG)
    fresh = put(store, b"x")
    store.close()
    lsns = [record.lsn for record in of_kind(log_records(Path(path)), Kind.ENQUEUED)]
    assert set(numbers) <= set(lsns), f"lost {set(numbers) - set(lsns)}"
    assert fresh == max(lsns)
    left = os.listdir(f"{path}/owners")  # noqa: PTH208 - names are all that is wanted
    assert left == ["board"], left
    return fresh


def main() -> None:
    base, how, nth = sys.argv[1:]
    acknowledged: list[int] = []
    for step in range(1, STEPS_MAX, int(nth)):
        path = f"{base}/{step}" if how == "fresh" else base
        code, output = run(path, step)
        if code == 0:
            os.write(1, f"killed {step - 1}\n".encode())
            return
        assert code == -signal.SIGKILL, f"at step {step} it ended with {code}"
        acknowledged = output if how == "fresh" else [*acknowledged, *output]
        acknowledged.append(check(path, acknowledged))
        if how == "fresh":
            shutil.rmtree(path)


main()
