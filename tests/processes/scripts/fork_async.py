"""A server that opens its log before it forks its workers, each of which runs an event loop.

Usage: fork_async.py DIRECTORY CHILDREN
"""

from __future__ import annotations

import asyncio
import os
import sys

from taskq import TaskQ

app = TaskQ(sys.argv[1], durability="fsync")


@app.task(name="fork.work")
async def work(number: int) -> int:
    return number


async def serve() -> None:
    async with app.worker(concurrency=2):
        jobs = await asyncio.gather(*(work.enqueue(number) for number in range(20)))
        results = await asyncio.gather(*(job.result(timeout=20) for job in jobs))
        assert results == list(range(20))
        os.write(1, f"served {os.getpid()} {app.store().owner}\n".encode())


def main() -> None:
    asyncio.run(serve())
    children = []
    for _ in range(int(sys.argv[2])):
        child = os.fork()
        if not child:
            asyncio.run(serve())
            sys.exit(0)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    asyncio.run(serve())
    assert codes == [0] * len(children)


main()
