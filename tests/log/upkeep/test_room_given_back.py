"""Compaction frees the room of removed files: nobody keeps one open."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from taskq import State, TaskLog
from taskq.log.config import SEGMENT_BYTES_MIN


def _open_files(path: Path) -> list[str]:
    targets: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(link.readlink()))
    return [target.rpartition("/")[2] for target in targets if target.startswith(str(path))]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
async def test_no_removed_file_of_a_compacted_log_stays_open(tmp_path: Path) -> None:
    async with TaskLog.open(
        tmp_path, segment_bytes=SEGMENT_BYTES_MIN, durability="os", keep="1h"
    ) as log:
        jobs = []
        for _ in range(40):
            jobs.append(await log.put(b"." * 10_000))
            (delivery,) = await log.claim()
            await log.ack(delivery)
        await log.compact()  # by then upkeep has written the indexes
        for job in jobs:
            assert (await log.get(job)).state is State.SUCCEEDED
        assert any(name.endswith(".idx") for name in _open_files(tmp_path)), "none is looked into"
        assert [segment for segment in (await log.compact(keep=0)).segments if segment.removed]
        assert [name for name in _open_files(tmp_path) if name.endswith("(deleted)")] == []
