"""Race others for keys; print for each key "new LSN" or "duplicate LSN".

Usage: race_keys.py DIRECTORY DURABILITY KEYS THREADS [CONFLICT]     (starts at a line on stdin)

Every thread enqueues every key once, each in an order of its own.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from taskq.core.errors import DuplicateKey
from taskq.core.model import Conflict, Durability, Extras
from taskq.log.config import LogConfig
from taskq.log.requests import Duplicate, EnqueueSpec
from taskq.log.store.store import Store, open_store

SPEC = EnqueueSpec()


def race(store: Store, keys: list[str], conflict: Conflict, lines: list[str]) -> None:
    port = store.thread_port
    extras = {key: Extras(key=key.encode(), on_conflict=conflict) for key in keys}
    futures = [(key, port.enqueue(SPEC, b"x", extras[key])) for key in keys]
    for key, future in futures:
        try:
            answer = future.result()
        except DuplicateKey as error:
            lines.append(f"duplicate {key} {error.job_id.rpartition('-')[2]}")
            continue
        if isinstance(answer, Duplicate):
            lines.append(f"duplicate {key} {answer.lsn}")
        else:
            lines.append(f"new {key} {answer}")


def main() -> None:
    path, durability, count, threads = sys.argv[1:5]
    conflict = Conflict(sys.argv[5] if len(sys.argv) > 5 else "first")
    store = open_store(path, LogConfig(durability=Durability(durability)))
    keys = [f"key-{number}" for number in range(int(count))]
    lines: list[str] = []
    racers = []
    for _ in range(int(threads)):
        order = random.sample(keys, len(keys))
        racers.append(threading.Thread(target=race, args=(store, order, conflict, lines)))
    os.write(1, b"open\n")
    sys.stdin.readline()
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    sys.stdout.write("\n".join([*lines, "finished"]) + "\n")
    sys.stdout.flush()
    store.close()


main()
