"""Tasks that fork, and let the child return as the task does."""

import asyncio
import os
import sys

from taskq import TaskQ

app = TaskQ(sys.argv[1] if len(sys.argv) > 1 else "unused", durability="os")


def fork() -> int:
    child = os.fork()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 99


@app.task
async def on_loop() -> int:
    return fork()


@app.task
async def that_waits() -> int:
    code = fork()
    await asyncio.sleep(0)
    return code


@app.task
def in_thread() -> int:
    return fork()


@app.task(runs_in="process")
def in_process() -> int:
    return fork()


@app.task
async def plain() -> int:
    os.write(1, b"plain ran\n")
    return 0


if __name__ == "__main__":
    app.run_worker(burst=True, concurrency=1)
