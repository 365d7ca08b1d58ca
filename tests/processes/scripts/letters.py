"""An app whose task fails until a file is there; and, as a program, one that requeues its letters.

Usage: letters.py DIRECTORY

Prints the id of each requeued dead letter until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from taskq import TaskLog, TaskQ, retry
from taskq.errors import NotDead

app = TaskQ("unused", durability="os")


@app.task(queue="mail", retry=retry.exponential(attempts=1))
def send(needed: str) -> int:
    if not Path(needed).exists():
        raise ConnectionError("the mail server is away")
    return os.getpid()


async def main() -> None:
    async with TaskLog.open(sys.argv[1], durability="os") as log:
        print("open", flush=True)  # noqa: T201 - the parent reads it
        while letters := await log.dead.list(limit=1):
            try:
                await log.dead.requeue(letters[0].job_id)
            except NotDead:  # another process was faster
                continue
            print(letters[0].job_id, flush=True)  # noqa: T201 - likewise


if __name__ == "__main__":
    asyncio.run(main())
