"""Large payloads and results: what of them is stored, and how much of them at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyarrow import parquet

from taskq import Put, TaskLog
from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.store import Lake, LakeWriter
from taskq_plugins.spark.run import batch
from taskq_plugins.spark.source.planning import Following
from tests.cli.helpers import taskq

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.source.planning import ReadLimits
    from taskq_plugins.spark.source.positions import Offsets

LARGE = 2 * 2**20
NAMED = 20


async def lived(path: Path, sizes: list[int], names: int = 0) -> None:
    """Enqueue jobs of these payloads, and large ones."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.put_many([Put(payload=bytes([n]) * size) for n, size in enumerate(sizes)])
        for _ in range(names):
            await log.put_many([Put(payload=b"x" * LARGE)])
        for delivery in await log.claim(len(sizes)) if sizes else ():
            await log.ack(delivery, b"r" * len(delivery.payload))


def run(tmp_path: Path, *words: object) -> Any:
    where = ("--journals", tmp_path / "hub", "--lake", tmp_path / "lake")
    return taskq("pipeline", "run", *where, *words)


def rows(tmp_path: Path, table: str = "jobs") -> list[dict[str, Any]]:
    data = Lake.open(tmp_path / "lake").dataset(table)
    result: list[dict[str, Any]] = data.to_table().to_pylist()
    return result


def test_of_a_body_above_64_kib_hash_and_size_are_stored(tmp_path: Path) -> None:
    asyncio.run(lived(tmp_path / "hub" / "edge", [65_536, 65_537], NAMED))
    shown = run(tmp_path)
    assert shown.exit_code == 0, shown.output
    small, large, *named = sorted(rows(tmp_path), key=lambda row: row["job"])
    assert small["payload"] == bytes(65_536)
    assert small["result"] == b"r" * 65_536
    body = bytes([1]) * 65_537
    left_out = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
    assert json.loads(large["payload"]) == {"left out": left_out}
    assert json.loads(large["result"])["left out"]["size"] == 65_537
    assert {json.loads(row["payload"])["left out"]["size"] for row in named} == {LARGE}
    words = ("replay", "--lake", tmp_path / "lake", "--where", f"job = {large['job']}")
    refused = taskq("pipeline", *words, "--to", tmp_path / "to", "--yes")
    assert "too large for the lake" in refused.output


def test_all_are_stored_when_they_are_to_be_in_files_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a batch are written group by group, and folded share by share."""
    shares: list[int] = []
    real = batch.fold_share

    def noted(share: batch.FoldShare) -> None:
        shares.append(share.number)
        real(share)

    monkeypatch.setattr(batch, "fold_share", noted)
    monkeypatch.setattr(files, "BYTES_MAX", 3 * LARGE)
    monkeypatch.setattr(batch, "SHARE_BYTES", 5 * LARGE)
    asyncio.run(lived(tmp_path / "hub" / "edge", [], NAMED))
    assert run(tmp_path, "--payloads", "full").exit_code == 0
    for table, column in (("records", "value"), ("jobs", "payload")):
        bodies = [row[column] for row in rows(tmp_path, table) if row[column]]
        assert bodies == [b"x" * LARGE] * NAMED
        paths = Lake.open(tmp_path / "lake").paths(table)
        assert len(paths) >= NAMED // 4
        assert max(parquet.read_table(path, columns=[column]).nbytes for path in paths) <= (
            4.1 * LARGE
        )
    assert len(shares) > 2


def test_a_batch_that_ran_out_of_memory_is_smaller_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("duplicates", "--max-bytes", "4m")
    asyncio.run(lived(tmp_path / "hub" / "edge", [1000]))
    assert run(tmp_path, *words).exit_code == 0
    asyncio.run(lived(tmp_path / "hub" / "edge", [1000] * 10))
    planned: list[int] = []
    real = Following.next

    def noted(self: Following, offsets: Offsets, limits: ReadLimits) -> Offsets:
        planned.append(limits.size_bytes)
        return real(self, offsets, limits)

    def full(self: LakeWriter, *given: Any, **options: Any) -> bool:
        raise MemoryError

    folded = mock.Mock(wraps=batch.fold_share)
    monkeypatch.setattr(Following, "next", noted)
    monkeypatch.setattr(batch, "fold_share", folded)
    with monkeypatch.context() as small:
        small.setattr(LakeWriter, "commit", full)
        for _ in range(3):
            assert run(tmp_path, *words).exit_code != 0
    assert run(tmp_path, *words).exit_code == 0
    assert planned[:4] == [2**22, 2**21, 2**20, 2**19]
    assert folded.call_count == 4, "so few records are one share, however often"
    asyncio.run(lived(tmp_path / "hub" / "edge", [1000]))
    planned.clear()
    assert run(tmp_path, *words).exit_code == 0
    assert planned[0] == 2**22, "the one that follows is as large as ever"
    assert len(rows(tmp_path)) == 12
