"""Tasks that fork, and let the child return as the task does."""

import asyncio
import os
import sys

from taskq import TaskQ
from tests.workers.afar_jobs import on_all

app = TaskQ(sys.argv[1] if len(sys.argv) > 1 else "unused", durability="os")


def fork() -> int:
    child = os.fork()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 99


async def fork_and_wait() -> int:
    code = fork()
    await asyncio.sleep(0)
    return code


@app.task(name="forks at once")
async def at_once() -> int:
    return fork()


FORKS = [at_once, *on_all(app, "forks", fork, fork_and_wait).values()]


@app.task(name="plain")
async def plain() -> int:
    os.write(1, b"plain ran\n")
    return 0


if __name__ == "__main__":
    app.run_worker(burst=True, concurrency=1)
