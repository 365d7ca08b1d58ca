"""Enqueue without end; Ctrl-Z (SIGTSTP) stops the process only between two batches.

Usage: ctrl_z.py DIRECTORY
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import Store, open_store

SPEC = EnqueueSpec()


def produce(store: Store) -> None:
    while True:
        store.thread_port.enqueue(SPEC, b"x" * 1_000).result()


def main() -> None:
    store = open_store(sys.argv[1], LogConfig(durability=Durability.OS))

    def stop() -> None:
        # To the storage thread itself: a signal to the process may take effect some instructions
        # later, and then this thread holds the lock again.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    signal.signal(signal.SIGTSTP, lambda *_: store.between_batches(stop))
    signalled, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for _ in range(4):
        threading.Thread(target=produce, args=(store,), daemon=True).start()
    os.write(1, b"ready\n")
    while os.read(signalled, 1):
        pass


main()
