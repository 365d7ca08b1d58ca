"""Scan a tree and enqueue one durable job per file: ``python -m folder_sync.enqueue DIRECTORY``.

Repeated runs do no harm: a waiting file with the same content is not queued twice. The program
prints one JSON document of counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .app import app, upload
from .scan import scan

if TYPE_CHECKING:
    from .scan import Entry

#: Jobs in one transaction, which is on disk before the next one begins.
CHUNK: Final = 500
_TOP_PRIORITY: Final = 9
#: Files up to 2^10 bytes come first; each fourfold size lowers the priority by 1.
_SMALL_BITS: Final = 10


def priority(size: int) -> int:
    """Return a higher priority for a smaller file, so that most files arrive early."""
    return max(0, _TOP_PRIORITY - max(0, size.bit_length() - _SMALL_BITS + 1) // 2)


async def enqueue(entries: list[Entry]) -> int:
    """Enqueue a job per entry; return the number of already queued entries."""
    duplicates = 0
    async with app:
        for start in range(0, len(entries), CHUNK):
            jobs = await app.enqueue_many(
                upload.options(priority=priority(entry.size)).call(
                    entry.path, entry.digest, entry.size
                )
                for entry in entries[start : start + CHUNK]
            )
            duplicates += sum(job.duplicate for job in jobs)
    return duplicates


def main() -> None:
    tree = scan(Path(sys.argv[1]))
    duplicates = asyncio.run(enqueue(tree.entries))
    counts = {
        "files": len(tree.entries),
        "bytes": tree.size,
        "queued": len(tree.entries) - duplicates,
        "already_queued": duplicates,
        "skipped": len(tree.skipped),
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
