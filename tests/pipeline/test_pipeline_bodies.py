"""Large payloads and results: what of them is stored, and how much of them at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from taskq import Put, TaskLog
from taskq_plugins.spark.lake import files
from taskq_plugins.spark.lake.store import Lake
from tests.cli.helpers import taskq

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_java")
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


def test_all_are_stored_when_they_are_to_be(tmp_path: Path) -> None:
    asyncio.run(lived(tmp_path / "hub" / "edge", [], NAMED))
    assert run(tmp_path, "--payloads", "full").exit_code == 0
    for table, column in (("records", "value"), ("jobs", "payload")):
        bodies = [row[column] for row in rows(tmp_path, table) if row[column]]
        assert bodies == [b"x" * LARGE] * NAMED


def test_a_file_has_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BYTES_MAX", 3 * LARGE)
    table = pa.table({"value": [b"x" * LARGE] * NAMED})
    made = files.write_rows(files.Folder(str(tmp_path)), table, ())
    assert sum(file.rows for file in made) == NAMED
    assert max(file.rows for file in made) <= 3
