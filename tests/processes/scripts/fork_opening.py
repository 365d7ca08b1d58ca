"""Fork while other threads open and close logs; each child prints its open lock files.

Usage: fork_opening.py DIRECTORY CHILDREN
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.store.store import open_store


def open_and_close(path: str, stop: threading.Event) -> None:
    while not stop.is_set():
        open_store(path, LogConfig(durability=Durability.OS)).close()


def inherited() -> int:
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            names.append(entry.readlink().name)
    return sum(name.endswith(".lock") for name in names)


def main() -> None:
    stop = threading.Event()
    paths = [f"{sys.argv[1]}/{number}" for number in range(3)]
    threads = [threading.Thread(target=open_and_close, args=(path, stop)) for path in paths]
    for thread in threads:
        thread.start()
    result = 0
    for _ in range(int(sys.argv[2])):
        child = os.fork()
        if not child:
            os._exit(min(inherited(), 100))
        result += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stop.set()
    for thread in threads:
        thread.join()
    os.write(1, f"inherited {result}\n".encode())


main()
