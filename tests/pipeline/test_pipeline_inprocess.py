"""``taskq pipeline run`` of little: without Java."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest import mock

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from taskq_plugins.spark import session
from taskq_plugins.spark.lake import store
from taskq_plugins.spark.lake.store import DERIVED, Lake, LakeWriter
from taskq_plugins.spark.run.increment import RunOptions
from taskq_plugins.spark.run.increment import run as run_increment
from taskq_plugins.spark.run.progress import reached
from tests.cli.helpers import taskq, taskq_json
from tests.pipeline.lakes import fold_rows
from tests.pipeline.rowmaking import live, rows_of

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("it starts Java")

    monkeypatch.setattr(session, "open_session", refuse)


def run(tmp_path: Path, *words: object) -> Any:
    where = ("--journals", tmp_path / "hub", "--lake", tmp_path / "lake")
    return taskq("pipeline", "run", *where, *words)


def tables(lake: Lake) -> list[list[Row]]:
    result = []
    for name in ("records", "jobs", "attempts"):
        rows = lake.dataset(name).to_table()
        keys = [key for key in ("log_id", "lsn", "job", "number") if key in rows.column_names]
        plain = rows.sort_by([(key, "ascending") for key in keys]).to_pylist()
        result.append(plain)
    return result


def whole(tmp_path: Path) -> list[list[Row]]:
    lake = Lake.open(tmp_path / "whole", create=True)
    fold_rows(lake, pa.concat_tables([rows_of(tmp_path / "hub")]), 0)
    return tables(lake)


def test_what_is_new_is_read_and_where_nothing_is_that_is_said(tmp_path: Path) -> None:
    for turn, seed in enumerate((1, 2, 3)):
        asyncio.run(live(tmp_path / "hub" / f"edge-{seed % 2}", seed, 8))
        shown = run(tmp_path)
        assert shown.exit_code == 0, shown.output
        assert f"; batch {turn}\n" in shown.stdout
    assert run(tmp_path).stdout == "nothing new; the tables stand at batch 2\n"
    lake = Lake.open(tmp_path / "lake")
    assert tables(lake) == whole(tmp_path)
    rows = {holding.table: holding.rows for holding in lake.holdings()}
    assert rows["device_lag"] == 2
    assert rows["rollup_hour"] > 0


def test_small_batches_are_read_one_after_the_other(tmp_path: Path) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 12))
    shown = run(tmp_path, "--max-bytes", "20k", "--json")
    assert shown.exit_code == 0, shown.output
    lake = Lake.open(tmp_path / "lake")
    last = lake.batch()
    assert last is not None
    assert last.number > 1
    assert tables(lake) == whole(tmp_path)


@pytest.mark.parametrize("table", ["records", "attempts", "_open", "jobs", None])
def test_a_run_that_was_killed_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str | None
) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 4))
    assert run(tmp_path, "duplicates").exit_code == 0
    lake = Lake.open(tmp_path / "lake")
    before = tables(lake)
    asyncio.run(live(tmp_path / "hub" / "edge-1", 2, 4))
    real = LakeWriter.commit

    def killed(self: LakeWriter, name: str, *args: Any, **options: Any) -> bool:
        if name == table:
            raise KeyboardInterrupt
        done = real(self, name, *args, **options)
        if table is None and name == "jobs":
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as crash:
        crash.setattr(LakeWriter, "commit", killed)
        assert run(tmp_path, "duplicates").exit_code != 0
    assert (reached(lake).begun is not None) == (table in {"attempts", "_open", "jobs"})
    assert (tables(lake.pinned()) == before) == (table is not None), "readers see none of it"
    assert run(tmp_path, "duplicates").exit_code == 0
    assert tables(lake) == whole(tmp_path)
    assert run(tmp_path, "duplicates").stdout == "nothing new; the tables stand at batch 1\n"


def test_records_may_lack_payloads_and_jobs_have_them_all_the_same(tmp_path: Path) -> None:
    for seed in (1, 2):
        asyncio.run(live(tmp_path / "hub" / "edge-1", seed, 8))
        assert run(tmp_path, "--payloads", "drop").exit_code == 0
    lake = Lake.open(tmp_path / "lake")
    _, jobs, attempts = whole(tmp_path)
    assert tables(lake)[1:] == [jobs, attempts]
    records = lake.dataset("records").to_table()
    assert len(records)
    assert records["value"].null_count == records["result"].null_count == len(records)
    files = {file.path for file in lake.data_files("records")}
    there = (lake.path / "records").rglob("*.parquet")
    assert {path.relative_to(lake.path / "records").as_posix() for path in there} == files


def test_what_is_behind_is_computed_without_new_records(tmp_path: Path) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 5))
    assert run(tmp_path, "duplicates").exit_code == 0
    assert Lake.open(tmp_path / "lake").tables() == ["attempts", "duplicates", "jobs", "records"]
    assert run(tmp_path).exit_code == 0
    shown = taskq_json("pipeline", "status", "--lake", tmp_path / "lake")
    assert len(shown["tables"]) == 9
    for table in DERIVED:
        columns = DeltaTable(str(tmp_path / "lake" / table)).schema().fields
        assert all(column.metadata.get("comment") for column in columns), columns


def test_an_increment_looks_only_at_what_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour has 720: none opens a table as it was before, nor looks at all of its files."""
    opened: list[int] = []

    class Opened(DeltaTable):
        def __init__(self, where: str, version: int | None = None) -> None:
            super().__init__(where, version=version)
            if version is not None:
                opened.append(version)

    connected = mock.Mock(wraps=duckdb.connect)
    vacuumed = mock.Mock(return_value=0)
    monkeypatch.setattr(LakeWriter, "vacuum", vacuumed)
    lake = Lake.open(tmp_path / "lake", create=True)
    options = RunOptions(journals=tmp_path / "hub", max_bytes=2**26)
    with lake.writer() as writer:
        for seed in range(4):
            asyncio.run(live(tmp_path / "hub" / "edge-1", seed, 4))
            if seed == 2:
                monkeypatch.setattr(store, "DeltaTable", Opened)
                monkeypatch.setattr(duckdb, "connect", connected)
            done = run_increment(writer, options, mock.Mock())
            assert done.refreshed == DERIVED
    assert not opened, "no version that is long gone"
    assert connected.call_count == 2, "once in each of two increments"
    assert sorted(call.args[0] for call in vacuumed.mock_calls) == ["_open", *lake.tables()]


def test_a_lake_and_its_logs_may_be_below_paths_with_spaces(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    lake = Lake.open(root / "lake", create=True)
    for seed in (1, 2):
        asyncio.run(live(root / "hub" / "edge 1", seed, 4))
        assert run(root).exit_code == 0
    assert run(root, "--rebuild", "jobs").exit_code == 0
    assert tables(lake) == whole(root)
    shown = taskq_json("sql", "--lake", lake.path, "FROM jobs")
    assert len(shown) == lake.dataset("jobs").count_rows()
    assert taskq("pipeline", "erase", "--lake", lake.path, "--where", "true").exit_code == 0
    read = pl.scan_delta(str(lake.path / "jobs"), use_pyarrow=True).collect()
    assert len(read) == len(shown)
