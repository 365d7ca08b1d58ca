"""A TaskQ used before a fork, and then on both sides of it, as by a preloading web server.

Usage: fork.py DIRECTORY HOW CHILDREN

HOW is os, fork or spawn (the latter two: of multiprocessing). Threads of the parent enqueue without
a pause while it forks. Each child enqueues, prints "child PID OWNER LSN", and lives until its stdin
line or a signal ends it; the parent prints "parent PID OWNER LSN" and waits too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

from taskq import TaskQ

app = TaskQ(sys.argv[1], durability="os", lock_wait="5s")


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


@app.task(name="fork.work")
def work(number: int) -> int:
    return number


def enqueue_and_tell(who: str) -> None:
    job = work.enqueue_sync(os.getpid())
    again = work.enqueue_sync(os.getpid())
    assert again.lsn > job.lsn
    tell(f"{who} {os.getpid()} {app.store().owner} {job.lsn}")


def live_on() -> None:
    enqueue_and_tell("child")
    while True:
        signal.pause()


def keep_busy() -> None:
    while True:
        work.enqueue_sync(0)


def start_child(how: str) -> None:
    if how == "os":
        if not os.fork():
            live_on()
    elif how == "fork":
        multiprocessing.get_context("fork").Process(target=live_on, daemon=True).start()
    else:
        multiprocessing.get_context("spawn").Process(target=live_on, daemon=True).start()


def main() -> None:
    _, _, how, count = sys.argv
    work.enqueue_sync(0)
    for _ in range(3):
        threading.Thread(target=keep_busy, daemon=True).start()
    for _ in range(int(count)):
        start_child(how)
    enqueue_and_tell("parent")
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
