"""The commits of a table in its Delta log, by the protocol."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from taskq_plugins.spark.lake import store
from taskq_plugins.spark.lake.store import Lake, compact
from tests.pipeline.lakes import fold_rows
from tests.pipeline.rowmaking import cut, live, rows_of

if TYPE_CHECKING:
    from pathlib import Path

INCREMENTS = 12


class Stream:
    """Reads what each version of a table adds, as a streaming reader of Delta's does."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._version = -1
        self.operations: list[str] = []

    def lsns(self) -> list[int]:
        """Return the lsns of the rows that came since it was asked last."""
        lsns: list[int] = []
        while (commit := self._commit(self._version + 1)).exists():
            self._version += 1
            actions = list(map(json.loads, commit.read_text().splitlines()))
            (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
            self.operations.append(info["operation"])
            added = [action["add"] for action in actions if "add" in action]
            for path in (self._table / add["path"] for add in added if add["dataChange"]):
                rows = parquet.read_table(path, columns=["lsn"], partitioning=None)
                lsns += rows["lsn"].to_pylist()
            removed = [action["remove"] for action in actions if "remove" in action]
            # Such a reader stops at removed rows, unless it may pass over whole days.
            if any(remove["dataChange"] for remove in removed):
                assert self.operations[-1] == "DELETE"
        return lsns

    def _commit(self, version: int) -> Path:
        return self._table / "_delta_log" / f"{version:020}.json"


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for the disk: tests of many commits are not about that."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_a_streaming_reader_sees_each_record_once_while_files_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a retention that lets days go is a DELETE, which such readers may pass over."""
    monkeypatch.setattr(store, "SMALL_FILES_MAX", 4)
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 8))
    rows = rows_of(tmp_path / "hub")
    lake = Lake.open(tmp_path / "lake", create=True)
    stream = Stream(lake.path / "records")
    seen: list[int] = []
    for number, part in enumerate(cut(rows, INCREMENTS)):
        fold_rows(lake, part, number)
        with lake.writer() as writer:
            for table in ("records", "jobs", "_open"):
                compact(writer, table)
                writer.keep_short(table)
        seen += stream.lsns()
    assert sorted(seen) == sorted(rows["lsn"].to_pylist())
    with lake.writer() as writer:
        assert writer.drop_days("records", "2100-01-01")
    assert stream.lsns() == []
    assert {"WRITE", "OPTIMIZE", "DELETE"} <= set(stream.operations)
    jobs = {entry["operation"] for entry in lake.delta("jobs").history()}
    assert {"WRITE", "MERGE"} <= jobs
    assert lake.dataset("jobs").count_rows()


def test_tables_say_what_is_in_them_and_for_how_long(tmp_path: Path) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 3))
    lake = Lake.open(tmp_path / "lake", create=True)
    fold_rows(lake, rows_of(tmp_path / "hub"), 0)
    for table in ("records", "jobs", "attempts"):
        delta = DeltaTable(str(lake.path / table))
        kept = delta.metadata().configuration
        assert kept["delta.logRetentionDuration"] == kept["delta.deletedFileRetentionDuration"]
        assert delta.metadata().description
        fields = {field.name: field for field in delta.schema().fields}
        assert not fields["log_id"].nullable
        assert fields["device"].metadata["comment"]
        (entry, *_) = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        assert (entry["min.device"], entry["max.device"]) == ("edge-1", "edge-1")
    jobs: list[dict[str, Any]] = lake.dataset("jobs").to_table().to_pylist()
    for job in jobs:
        dead = DeltaTable(str(lake.path / "jobs")).to_pyarrow_table(
            filters=[("enqueued_at", "=", job["enqueued_at"]), ("state", "=", job["state"])]
        )
        assert job["job_id"] in dead["job_id"].to_pylist()


def test_a_table_of_an_earlier_version_is_given_what_it_lacks(tmp_path: Path) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 3))
    lake = Lake.open(tmp_path / "lake", create=True)
    fold_rows(lake, rows_of(tmp_path / "hub"), 0)
    log = lake.path / "jobs/_delta_log" / f"{0:020}.json"
    key = "delta.deletedFileRetentionDuration"
    log.write_text(log.read_text().replace(key, "delta.forgotten"))
    with lake.writer() as writer:
        writer.keep_short("jobs")
        writer.keep_short("jobs")
    assert lake.delta("jobs").metadata().configuration[key] == "interval 1 hours"
    assert lake.batch() is not None
