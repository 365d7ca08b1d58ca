from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from taskq.core.errors import UsageError
from taskq_plugins.spark.lake.errors import (
    LakeBusy,
    LakeConflict,
    LakeDamaged,
    LakeDiskError,
    LakeError,
    NotALake,
)
from taskq_plugins.spark.lake.files import OPEN, OVER
from taskq_plugins.spark.lake.store import SMALL_FILES_MAX, Change, Lake, LakeBatch, compact

if TYPE_CHECKING:
    from taskq_plugins.spark.lake.files import Staged
    from taskq_plugins.spark.lake.store import LakeWriter

DAYS = ("2026-05-01", "2026-05-02")


def write(
    writer: LakeWriter, rows: list[int], table: str = "jobs", part: str = OVER, day: str = DAYS[0]
) -> Staged:
    directory = writer.new_directory(table)
    target = directory / f"part={part}" / f"date={day}"
    target.mkdir(parents=True)
    headers = pa.array([[("a", "b")]] * len(rows), pa.map_(pa.string(), pa.string()))
    columns = pa.table({"job": pa.array(rows, pa.int64()), "headers": headers})
    parquet.write_table(columns, target / "part-0.parquet")
    (target / "._SUCCESS").write_bytes(b"")
    return writer.stage(table, directory)


def append(writer: LakeWriter, rows: list[int], number: int | None = None, **where: str) -> bool:
    staged = write(writer, rows, **where)
    batch = None if number is None else LakeBatch("s", number, f"offsets {number}")
    table = where.get("table", "jobs")
    return writer.commit(table, Change(staged.files, schema=staged.schema), batch, dates=True)


def jobs(lake: Lake, table: str = "jobs") -> list[int]:
    rows: list[int] = lake.dataset(table).to_table().sort_by("job")["job"].to_pylist()
    return rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for the disk: tests of many commits are not about that."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_every_reader_counts_the_same_rows_after_open_ones_were_replaced(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1, 2], 0)
        for number, rows in enumerate(([3, 4], [5]), 1):
            staged = write(writer, rows, part=OPEN, day=DAYS[1])
            gone = tuple(file for file in lake.data_files("jobs") if file.part == OPEN)
            writer.commit("jobs", Change(staged.files, gone, staged.schema), LakeBatch("s", number))
        write(writer, [99])  # a killed run's
    where = str(lake.path / "jobs")
    assert jobs(lake) == [1, 2, 5]
    plain = DeltaTable(where)
    days = plain.to_pyarrow_table()["date"].unique().cast(pa.string())
    assert sorted(days.to_pylist()) == list(DAYS)
    assert plain.to_pandas()["job"].sum() == 8
    assert pl.scan_delta(where).filter(pl.col("job") > 1).collect()["job"].sum() == 7
    duck = duckdb.connect()
    duck.register("jobs", plain.to_pyarrow_dataset())
    assert duck.execute("SELECT sum(job) FROM jobs WHERE job > 1").fetchall() == [(7,)]
    paths = lake.paths("jobs")
    assert len(duckdb.read_parquet(paths).fetchall()) == 3
    assert len(pd.concat(pd.read_parquet(path) for path in paths)) == 3
    assert len(list((lake.path / "jobs").rglob("*.parquet"))) == 4, "Delta lists two of them"


def test_a_batch_is_committed_once_however_often_it_is_run(lake: Lake) -> None:
    with lake.writer() as writer:
        assert append(writer, [1], 0)
        assert not append(writer, [1], 0)
        assert append(writer, [2], 1)
    with Lake.open(lake.path).writer() as writer:
        assert not append(writer, [1], 0)
        assert not append(writer, [2], 1)
        writer.keep_short("jobs")
        DeltaTable(str(lake.path / "jobs")).create_checkpoint()
        assert not append(writer, [2], 1)
    assert jobs(lake) == [1, 2]
    assert lake.batch() == LakeBatch("s", 1, "offsets 1")


def test_what_came_and_went_since_a_batch_is_told_by_the_tables_log(lake: Lake) -> None:
    def shown(number: int) -> list[list[int]] | None:
        changes = lake.changes("jobs", number)
        if changes is None:
            return None
        files = (map(parquet.read_table, sorted(paths)) for paths in changes)
        return [sorted(row for item in rows for row in item["job"].to_pylist()) for rows in files]

    with lake.writer() as writer:
        append(writer, [1], 0)
        append(writer, [2], 1, part=OPEN)
        append(writer, [9])  # beside the batches: as the one before left the rows
        staged = write(writer, [2, 3], part=OPEN)
        gone = tuple(file for file in lake.data_files("jobs") if file.part == OPEN)
        writer.commit("jobs", Change(staged.files, gone, staged.schema), LakeBatch("s", 2))
        assert shown(2) == [[], []]
        assert shown(1) == [[2, 3], [2]]
        assert shown(0) == [[2, 3, 9], []], "what came and went since is neither"
        (lake.path / "jobs" / gone[0].path).unlink()
        assert shown(0) == [[2, 3, 9], []]
        assert shown(1) is None
        next((lake.path / "jobs" / "_delta_log").glob("*2.json")).unlink()
        assert shown(0) is None


@pytest.mark.usefixtures("unsynced")
def test_tables_are_read_as_of_the_batch_that_all_have(lake: Lake) -> None:
    with lake.writer() as writer:
        for number in range(3):
            append(writer, [number], number, table="records")
            if number < 2:
                append(writer, [number], number)
        append(writer, [7], 0, table="_open")
        pinned = lake.pinned()
        assert (jobs(pinned), jobs(pinned, "records")) == ([0, 1], [0, 1])
        assert jobs(lake, "records") == [0, 1, 2]
        assert jobs(lake.pinned(0), "records") == [0]
        assert not lake.pinned(-1).has("jobs") or jobs(lake.pinned(-1)) == []
        for row in range(SMALL_FILES_MAX):
            append(writer, [10 + row], table="records")
        assert compact(writer, "records") == SMALL_FILES_MAX + 3
        assert lake.batch("records") == LakeBatch("s", 2, "offsets 2"), (
            "it has no later batch for it"
        )


@pytest.mark.usefixtures("unsynced")
def test_many_small_files_of_a_day_are_written_together(lake: Lake) -> None:
    with lake.writer() as writer:
        for row in range(SMALL_FILES_MAX - 1):
            append(writer, [row])
        append(writer, [77], part=OPEN)
        append(writer, [78], day=DAYS[1])
        assert compact(writer, "jobs") == 0
        append(writer, [SMALL_FILES_MAX - 1])
        opened = lake.dataset("jobs")
        assert compact(writer, "jobs") == SMALL_FILES_MAX
        assert compact(writer, "jobs") == 0
        assert writer.vacuum("jobs") == 0
        assert opened.to_table().num_rows == SMALL_FILES_MAX + 2, "a reader keeps its files"
        assert writer.vacuum("jobs", keep_hours=0) == SMALL_FILES_MAX
    assert jobs(lake) == [*range(SMALL_FILES_MAX), 77, 78]
    by_day = {file.date: file.ranges["job"] for file in lake.data_files("jobs") if file.rows > 1}
    assert by_day == {DAYS[0]: (0, SMALL_FILES_MAX - 1)}
    (merged,) = [file.path for file in lake.data_files("jobs") if file.rows > 1]
    assert parquet.ParquetFile(lake.path / "jobs" / merged).num_row_groups == 1


@pytest.mark.usefixtures("unsynced")
def test_the_log_of_a_table_is_kept_short(lake: Lake) -> None:
    log = lake.path / "jobs" / "_delta_log"
    with lake.writer() as writer:
        for number in range(45):
            append(writer, [number], number)
            writer.keep_short("jobs")
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    assert Lake.open(lake.path).batch() == LakeBatch("s", 44, "offsets 44")


def test_a_table_of_an_earlier_version_is_named_with_what_it_lacks(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1], 1)
        schema = lake.schema("jobs")
        lake.check_columns("jobs", schema)
        lake.check_columns("records", schema)  # no file yet
        with pytest.raises(
            LakeError, match=r"jobs: an earlier version .* without place, step: fill"
        ):
            lake.check_columns("jobs", pa.schema([*schema, ("step", "int64"), ("place", "string")]))


def test_an_empty_table_is_an_empty_table(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [], 0)
    assert lake.dataset("jobs").schema.names == ["job", "headers", "date"]
    assert jobs(lake) == []
    assert pl.read_delta(str(lake.path / "jobs")).shape == (0, 3)
    with pytest.raises(LakeError, match="no table 'jbos'; there are: jobs"):
        lake.dataset("jbos")


def test_what_a_killed_run_left_is_not_read_and_goes(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1])
        left = write(writer, [2])
        (writer.new_directory("jobs") / "part=over").mkdir(parents=True)
        assert jobs(lake) == [1]
        assert writer.vacuum("jobs") == 0, "it may be somebody's who still writes"
        old = time.time() - 7_200
        os.utime(lake.path / "jobs" / left.files[0].path, (old, old))
        assert writer.vacuum("jobs") == 1
    with lake.writer():
        assert not (lake.path / "_staging").exists()
    assert jobs(lake) == [1]


def test_one_process_writes_at_a_time_and_the_other_is_told_which(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1])
        with pytest.raises(LakeBusy, match=f"process {os.getpid()} .*writes to this lake") as shown:
            lake.writer().__enter__()
        assert shown.value.holder_pid == os.getpid()
    program = (
        "import sys; from taskq_plugins.spark.lake.store import Lake\n"
        "with Lake.open(sys.argv[1]).writer(): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lake.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(LakeBusy, match=f"process {other.pid} "):
            lake.writer().__enter__()
        other.kill()
    with lake.writer():
        pass


def test_files_that_somebody_else_removed_meanwhile_are_not_removed_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lake.writer() as writer:
        append(writer, [1])
        old = tuple(lake.data_files("jobs"))
        opened = lake.delta("jobs")
        staged = write(writer, [2])
        DeltaTable(str(lake.path / "jobs")).delete("job = 1")
        monkeypatch.setattr(lake, "delta", lambda _: opened)
        with pytest.raises(LakeConflict, match="Nothing was committed"):
            writer.commit("jobs", Change(staged.files, old))
    assert jobs(Lake.open(lake.path)) == []


def test_a_full_disk_fails_the_commit_and_the_last_batch_stands(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lake.writer() as writer:
        append(writer, [1], 0)

        def refuse(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(os, "fsync", refuse)
            with pytest.raises(LakeDiskError, match=r"No space left.*the batch before stands"):
                append(writer, [2], 1)
        assert jobs(Lake.open(lake.path)) == [1]
        append(writer, [2], 1)
    assert jobs(lake) == [1, 2]


def test_what_is_promised_is_on_disk(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        commits = len(list((lake.path / "jobs/_delta_log").glob("*.json")))
        synced.append((path.relative_to(lake.path).as_posix(), commits))
        real(descriptor)

    with lake.writer() as writer:
        append(writer, [1])
        monkeypatch.setattr(os, "fsync", note)
        append(writer, [2])
    (new,) = {file.path for file in lake.data_files("jobs") if file.ranges["job"] == (2, 2)}
    for name in (f"jobs/{new}", f"jobs/date={DAYS[0]}", "jobs"):
        assert (name, 2) in synced, name
    assert any(name.startswith("_staging/commit-") and seen == 2 for name, seen in synced)
    assert ("jobs/_delta_log", 3) in synced


def test_no_lake_is_no_lake(tmp_path: Path) -> None:
    with pytest.raises(NotALake, match=r"is not a lake.*taskq pipeline run"):
        Lake.open(tmp_path)
    with pytest.raises(NotALake):
        Lake.open(tmp_path / "missing")
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(LakeError, match=r"is not empty.*precious.txt"):
        Lake.open(tmp_path, create=True)
    for odd in ("a%20b", "la[k]e", "{a,b}*"):
        with pytest.raises(UsageError, match="takes a path with"):
            Lake.open(tmp_path / odd, create=True)


def test_damage_is_told_with_the_file(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1])
    (name,) = lake.paths("jobs")
    file = Path(name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(LakeDamaged, match=rf"{file.name}: has {len(whole) - 1} bytes, the table"):
        lake.dataset("jobs")
    file.unlink()
    with pytest.raises(LakeDamaged, match=rf"{file.name}: is missing, although"):
        lake.paths("jobs")
    (lake.path / "jobs/_delta_log/00000000000000000001.json").write_bytes(b"{")
    with pytest.raises(LakeDamaged, match="_delta_log: does not read"):
        Lake.open(lake.path).dataset("jobs")


@pytest.mark.parametrize("path", ["/etc/passwd", "../far/x", "date=1/../../far/x"])
def test_a_table_names_no_file_outside_of_it(lake: Lake, path: str) -> None:
    with lake.writer() as writer:
        staged = write(writer, [1])
        forged = staged.files[0]._replace(path=path)
        writer.commit("jobs", Change((forged,), schema=staged.schema), dates=True)
    with pytest.raises(LakeDamaged, match="is no path of a file in the table"):
        lake.dataset("jobs")


@pytest.mark.parametrize("depth", [1, 2])
def test_no_file_of_a_table_is_reached_through_a_link(
    lake: Lake, tmp_path: Path, depth: int
) -> None:
    with lake.writer() as writer:
        append(writer, [1])
    (tmp_path / "named").symlink_to(lake.path)
    assert jobs(Lake.open(tmp_path / "named")) == [1]
    (file,) = lake.data_files("jobs")
    moved = lake.path / "jobs" / Path(*Path(file.path).parts[:depth])
    moved.rename(tmp_path / "far")
    moved.symlink_to(tmp_path / "far")
    with pytest.raises(LakeDamaged, match="is a symbolic link, or below one"):
        lake.dataset("jobs")


def test_rows_without_a_moment_have_no_day(lake: Lake) -> None:
    with lake.writer() as writer:
        append(writer, [1], day="__HIVE_DEFAULT_PARTITION__")
        append(writer, [2])
    rows: list[dict[str, Any]] = lake.dataset("jobs").to_table(columns=["job", "date"]).to_pylist()
    assert sorted((row["job"], row["date"] is None) for row in rows) == [(1, True), (2, False)]
