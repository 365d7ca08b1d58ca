"""Use a log so that every kind of file comes to be in it, as one of the machine's users.

Usage: use_all.py DIRECTORY [UMASK [UID GID GROUP…]]

Prints when the log is open, keeps it open until a line comes, and prints "closed". With a UID it
works as that user from then on, in a log elsewhere before that, which loads the late imports.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from taskq import Put, TaskLog
from taskq.core.views import ProgressView
from taskq.log.upkeep import snapshots

_SEGMENT_BYTES = 64 * 1024


async def use(path: Path, *, hold: bool) -> None:
    snapshots.CLOSE_BYTES_MIN = 1  # type: ignore[misc]
    options = {"durability": "os", "segment_bytes": _SEGMENT_BYTES, "reserve": 4_096}
    async with TaskLog.open(path, **options) as log:  # type: ignore[arg-type]
        for _ in range(3):
            await log.put(os.urandom(_SEGMENT_BYTES))
        await log.put(os.urandom(2**20 + 1), key=os.urandom(8))
        (delivery,) = await log.claim(wait=10)
        store = log._connection.store()
        store.progress.tell(log, 1, 1, ProgressView(0.5, "half", 0))
        await log.ingest("file", [Put(payload=b"a line")], 1)
        async with log.stream(reader=f"reader-{os.getpid()}") as stream:
            async for _ in stream:
                await stream.commit()
                break
        if hold:
            print("open", flush=True)  # noqa: T201 - the test reads it
            await asyncio.to_thread(sys.stdin.readline)
        await log.ack(delivery, b"done")
        await log.compact()
    tail = max((path / "log").glob("*.log"))
    with tail.open("ab") as file:
        file.write(b"torn")
    (path / "write.lock").write_bytes(b"")
    async with TaskLog.open(path, **options):  # type: ignore[arg-type]
        pass


def main() -> None:
    path, *rest = sys.argv[1:]
    if rest:
        os.umask(int(rest[0], 8))
    if rest[1:]:
        with tempfile.TemporaryDirectory() as elsewhere:
            asyncio.run(use(Path(elsewhere) / "log", hold=False))
        user, group, *groups = map(int, rest[1:])
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    asyncio.run(use(Path(path), hold=True))
    print("closed", flush=True)  # noqa: T201 - likewise


if __name__ == "__main__":
    main()
