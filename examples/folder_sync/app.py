"""The app and its one task: upload a file. Run it with ``taskq worker folder_sync.app:app``.

The environment names the directory (``SYNC_SOURCE``), the receiver (``SYNC_URL``) and the queue
(``TASKQ_DATA_DIR``), so that a job names only the file to send.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import aiofiles
import aiofiles.os
import httpx

from taskq import Discard, TaskQ, retry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Smaller files are sent in one piece, larger ones in blocks of this size.
BLOCK_BYTES: Final = 256 * 1024
#: Statuses of a file that the receiver refuses for good.
REFUSALS: Final = frozenset({400, 409, 413, 422})

app = TaskQ()


def key(path: str, digest: str, size: int) -> str:
    """Return a key for path and content: a hash, since a path may be too long for a key."""
    del size
    return hashlib.sha256(f"{digest} {path}".encode()).hexdigest()


@app.task(
    name="folder_sync.upload",
    queue="uploads",
    key=key,
    # Many attempts: an evening offline or a bad link must not end a job.
    retry=retry.exponential(attempts=200, base=0.2, cap=2, jitter="equal"),
)
async def upload(path: str, digest: str, size: int) -> None:
    """Send one file; any error is raised, and the retry policy tries again."""
    source = Path(os.environ["SYNC_SOURCE"], path)
    response = await client().put(
        f"/files/{quote(path)}",
        content=await content(source, size),
        headers={"content-length": str(size), "x-content-sha256": digest},
    )
    if response.status_code in REFUSALS:
        raise Discard(f"the receiver refuses {path}: {response.text}")
    response.raise_for_status()


async def content(source: Path, size: int) -> bytes | AsyncIterator[bytes]:
    """Return the file's bytes, or its blocks when it is large.

    Raises:
        Discard: the file is gone or has another size; the next scan queues its new state.
    """
    try:
        if (await aiofiles.os.stat(source)).st_size != size:
            raise Discard(f"{source} changed since it was queued")
        if size > BLOCK_BYTES:
            return blocks(source)
        async with aiofiles.open(source, "rb") as file:
            return await file.read()
    except FileNotFoundError:
        raise Discard(f"{source} is gone since it was queued") from None


async def blocks(source: Path) -> AsyncIterator[bytes]:
    """Yield a large file in blocks, read on a thread."""
    async with aiofiles.open(source, "rb") as file:
        while block := await file.read(BLOCK_BYTES):
            yield block


@cache
def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=os.environ["SYNC_URL"], timeout=30, trust_env=False)
