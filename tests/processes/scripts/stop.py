"""Stop oneself (SIGSTOP) at a given place, and print the job's lsn after the continuation.

Usage: stop.py DIRECTORY before|half|after|turnstile [WAIT]

before, half, after: while the storage thread holds the writer lock, and its frame is not, partly or
wholly written. turnstile: while it is the next in line for the lock. With WAIT it says "open", and
goes on after a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.format.codec import FRAME_MAGIC_BYTES
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import Store, open_store


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def stop() -> None:
    tell("inside")
    # To this very thread: a signal to the process may stop it a few instructions later.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop_in_write(store: Store, place: str) -> None:
    disk = store._open.journal.disk
    write = disk.write
    share = {"before": 0.0, "half": 0.5, "after": 1.0}[place]

    def write_and_stop(descriptor: int, data: bytes, offset: int) -> int:
        if data[:4] != FRAME_MAGIC_BYTES:
            return write(descriptor, data, offset)
        disk.write = write  # type: ignore[method-assign]
        size = int(len(data) * share)
        if size:
            write(descriptor, data[:size], offset)
        stop()
        return size + (write(descriptor, data[size:], offset + size) if size < len(data) else 0)

    disk.write = write_and_stop  # type: ignore[method-assign]


def stop_in_line(store: Store) -> None:
    """Wait for the lock, which another process holds, and stop as soon as that wait begins."""
    writer = store._open.writer
    on_wait = writer.on_wait

    def wait_and_stop() -> None:
        writer.on_wait = on_wait
        stop()

    writer.on_wait = wait_and_stop


def main() -> None:
    path, place, *waits = sys.argv[1:]
    store = open_store(path, LogConfig(durability=Durability.OS))
    if place == "turnstile":
        stop_in_line(store)
    else:
        stop_in_write(store, place)
    if waits or place == "turnstile":
        tell("open")
        sys.stdin.readline()
    future = store.thread_port.enqueue(EnqueueSpec(), b"stopped")
    tell(f"enqueued {future.result()}")
    tell(f"enqueued {store.thread_port.enqueue(EnqueueSpec(), b'later').result()}")
    store.close()


main()
