"""Put, claim and settle jobs by several coroutines; note each answer as it comes.

Usage: answered.py DIRECTORY DURABILITY ROUNDS ANSWERS

Lines of ANSWERS: "put LSN SHA256 MARK" for a job that is acknowledged, whose payload begins with
the mark, and "done LSN" for a success.
"""

import asyncio
import hashlib
import os
import random
import sys

from taskq import Put, TaskLog
from taskq.log.config import SEGMENT_BYTES_MIN


def lsn_of(job_id: str) -> str:
    return job_id.rpartition("-")[2]


async def put(log: TaskLog, note: int, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    for number in range(rounds):
        size = 1_100_000 if number % 20 == seed else chance.randrange(2_000)
        mark = f"<{seed}:{number}>"
        body = mark.encode() + chance.randbytes(size)
        if number % 3:
            ids = [await log.put(body)]
        else:
            ids = await log.put_many([Put(payload=body)] * 3)
        digest = hashlib.sha256(body).hexdigest()
        for job_id in ids:
            os.write(note, f"put {lsn_of(job_id)} {digest} {mark}\n".encode())


async def work(log: TaskLog, note: int, rounds: int) -> None:
    for number in range(rounds):
        for delivery in await log.claim(2, wait=0.2):
            if number % 4:
                await log.ack(delivery, result=b"r")
                os.write(note, f"done {lsn_of(delivery.job_id)}\n".encode())
            else:
                await log.nack(delivery, reason="again", delay=0)


async def main() -> None:
    path, durability, rounds, answers = sys.argv[1:]
    note = os.open(answers, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    log = TaskLog.open(path, durability=durability, interval=3_600, segment_bytes=SEGMENT_BYTES_MIN)
    async with log:
        jobs = [put(log, note, seed, int(rounds)) for seed in range(3)]
        await asyncio.gather(*jobs, *(work(log, note, int(rounds)) for _ in range(2)))


if __name__ == "__main__":
    asyncio.run(main())
