"""A TaskQ used before a fork, and then on both sides of it, as by a preloading web server.

Usage: fork.py DIRECTORY HOW CHILDREN

HOW is os, fork or spawn (the latter two: of multiprocessing), or async: loops on both sides.
Threads of the parent enqueue without a pause while it forks. Each child enqueues, prints "child PID
OWNER LSN", and lives until a signal ends it; the parent prints "parent PID OWNER LSN", and waits.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import threading

from taskq import TaskQ

DURABILITY = "fsync" if sys.argv[2] == "async" else "os"
app = TaskQ(sys.argv[1], durability=DURABILITY, lock_wait="5s")


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


async def serve() -> None:
    async with app.worker(concurrency=2):
        jobs = await asyncio.gather(*(work.enqueue(number) for number in range(20)))
        results = await asyncio.gather(*(job.result(timeout=20) for job in jobs))
        assert results == list(range(20))
        tell(f"served {os.getpid()} {app.store().owner}")


def serve_on_both_sides(count: int) -> None:
    """As a server does that opens its log before it forks its workers."""
    asyncio.run(serve())
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            asyncio.run(serve())
            sys.exit(0)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    asyncio.run(serve())
    assert codes == [0] * len(children)


def main() -> None:
    _, _, how, count = sys.argv
    if how == "async":
        serve_on_both_sides(int(count))
        return
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
