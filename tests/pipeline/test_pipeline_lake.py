from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from taskq_plugins.spark.lake import OPEN, OVER, Change, Lake
from taskq_plugins.spark.lake.errors import (
    LakeBusy,
    LakeConflict,
    LakeDamaged,
    LakeDiskError,
    LakeError,
    LakeFormatError,
    NotALake,
)
from taskq_plugins.spark.lake.history import manifest_path
from taskq_plugins.spark.lake.hours import HOUR_NS, RANGES_MAX, overlap, ranges, union
from taskq_plugins.spark.lake.manifest import FULL_EVERY, Batch, Refresh
from taskq_plugins.spark.lake.merging import SMALL_FILES_MAX, merge_small_files
from taskq_plugins.spark.lake.vacuum import vacuum

if TYPE_CHECKING:
    from taskq_plugins.spark.lake import LakeWriter, Manifest
    from taskq_plugins.spark.lake.staging import Staged


def write(writer: LakeWriter, rows: list[int], table: str = "jobs", part: str = OVER) -> Staged:
    directory = writer.new_directory(table)
    target = directory / f"part={part}"
    target.mkdir(parents=True)
    settled = [row * HOUR_NS for row in rows]
    columns = pa.table({"job": pa.array(rows, pa.int64()), "settled_ns": settled})
    parquet.write_table(columns, target / "part-0.parquet")
    (target / "._SUCCESS").write_bytes(b"")
    return writer.stage(table, directory)


def append(writer: LakeWriter, rows: list[int], batch: Batch | None = None) -> Manifest:
    staged = write(writer, rows)
    return writer.commit({"jobs": Change(staged.files, schema=staged.schema)}, batch=batch)


def jobs(lake: Lake, part: str | None = None) -> list[int]:
    rows: list[int] = lake.dataset("jobs", part).to_table().sort_by("job")["job"].to_pylist()
    return rows


def test_a_commit_is_seen_by_a_reader_that_was_open_before(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        for version in range(1, 2 * FULL_EVERY + 3):
            append(writer, [version], Batch("s", version, f"offsets {version}"))
            if version % 7 == 0:
                assert jobs(lake) == list(range(1, version + 1))
    reader = Lake.open(tmp_path / "lake")
    assert reader.manifest() == lake.manifest()
    assert jobs(reader) == list(range(1, 2 * FULL_EVERY + 3))
    last = reader.manifest()
    assert last.batch == Batch("s", 2 * FULL_EVERY + 2, f"offsets {2 * FULL_EVERY + 2}")
    assert last.table("jobs").rows == 2 * FULL_EVERY + 2
    assert len(reader.manifest(5).table("jobs").files) == 5


def test_open_rows_are_replaced_and_those_that_are_over_stay(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [1, 2])
        for rows in ([3, 4], [5]):
            staged = write(writer, rows, part=OPEN)
            change = Change(staged.files, frozenset({OPEN}), schema=staged.schema)
            manifest = writer.commit({"jobs": change})
    assert jobs(lake) == [1, 2, 5]
    assert jobs(lake, OVER) == [1, 2]
    assert manifest.table("jobs").files[-1].hours == ((5, 5),)


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [])
    assert lake.dataset("jobs").schema.names == ["job", "settled_ns"]
    assert jobs(lake) == []
    assert lake.manifest().table("jobs").files == ()
    with pytest.raises(LakeError, match="no table 'jbos'; there are: jobs"):
        lake.dataset("jbos")


def test_a_file_that_no_manifest_names_is_not_read_and_is_vacuumed(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [1])
        orphan = write(writer, [2])
        assert jobs(lake) == [1]
        assert vacuum(writer).files == 0, "it may be somebody's who still writes"
        done = vacuum(writer, keep_seconds=-1)
    assert (done.files, done.size_bytes) == (1, orphan.files[0].size_bytes)
    assert jobs(lake) == [1]
    assert [path.name for path in (tmp_path / "lake/jobs").iterdir()] == [
        Path(lake.manifest().table("jobs").files[0].path).parts[1]
    ]


def test_a_reader_of_a_version_replaced_a_moment_ago_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    hour_ago = time.time_ns() - 3_700 * 1_000_000_000
    with lake.writer() as writer:
        with monkeypatch.context() as clock:
            clock.setattr(time, "time_ns", lambda: hour_ago)
            append(writer, [1])
            staged = write(writer, [2])
            writer.commit({"jobs": Change(staged.files, frozenset({OVER}))})
        old = lake.manifest()
        for file in tmp_path.rglob("*.parquet"):
            os.utime(file, ns=(hour_ago, hour_ago))
        opened = lake.dataset("jobs")
        staged = write(writer, [3])
        writer.commit({"jobs": Change(staged.files, frozenset({OVER}))})
        assert vacuum(writer).files == 1, "the one that was replaced an hour ago"
        assert opened.to_table()["job"].to_pylist() == [2]
        assert lake.manifest(old.version) == old


def test_vacuum_keeps_what_a_reader_of_the_newest_version_starts_from(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        for row in range(FULL_EVERY * 2 + 5):
            append(writer, [row])
        assert vacuum(writer, keep_seconds=-1) == (0, 0, FULL_EVERY * 2)
        assert jobs(Lake.open(tmp_path / "lake")) == list(range(FULL_EVERY * 2 + 5))
        append(writer, [99])
    assert jobs(Lake.open(tmp_path / "lake"))[-1] == 99


def test_many_small_files_are_written_together_and_count_from_the_same_version(
    tmp_path: Path,
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        for row in range(SMALL_FILES_MAX - 1):
            append(writer, [row])
        staged = write(writer, [77], part=OPEN)
        writer.commit({"jobs": Change(staged.files)})
        assert merge_small_files(writer, ["jobs", "records"]) == 0
        last = append(writer, [SMALL_FILES_MAX - 1])
        opened = lake.dataset("jobs")
        assert merge_small_files(writer, ["jobs", "records"]) == SMALL_FILES_MAX
        assert merge_small_files(writer, ["jobs", "records"]) == 0
    still, merged = lake.manifest().table("jobs").files
    assert (still.part, merged.part, merged.version) == (OPEN, OVER, last.version)
    assert merged.hours == ((0, SMALL_FILES_MAX - 1),)
    assert jobs(lake) == [*range(SMALL_FILES_MAX), 77]
    assert opened.to_table().num_rows == SMALL_FILES_MAX + 1, "a reader keeps its files"


def test_one_process_writes_at_a_time_and_the_other_is_told_which(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer():
        with pytest.raises(LakeBusy, match=f"process {os.getpid()} .*writes to this lake") as told:
            lake.writer().__enter__()
        assert told.value.holder_pid == os.getpid()
    program = (
        "import sys; from taskq_plugins.spark.lake import Lake\n"
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


def test_a_version_that_somebody_else_made_is_not_overwritten(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [1])
        staged = write(writer, [2])
        theirs = manifest_path(lake.path / "_manifests", 2)
        real = lake.manifest()
        theirs.write_bytes(b"theirs")
        writer.lake.manifest = lambda *_: real  # type: ignore[method-assign]
        with pytest.raises(LakeConflict, match="Nothing was committed"):
            writer.commit({"jobs": Change(staged.files)})
    assert theirs.read_bytes() == b"theirs"


def test_a_full_disk_fails_the_commit_and_the_last_version_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [1])
        staged = write(writer, [2])

        def refuse(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(os, "fsync", refuse)
            with pytest.raises(LakeDiskError, match=r"No space left.*version 1 stands"):
                writer.commit({"jobs": Change(staged.files)})
            with pytest.raises(LakeDiskError, match="No space left"):
                write(writer, [3])
        assert jobs(Lake.open(lake.path)) == [1]
        assert [path.suffix for path in (lake.path / "_manifests").iterdir()] == [".json"]
        writer.commit({"jobs": Change(staged.files)})
    assert jobs(lake) == [1, 2]


def test_no_lake_is_no_lake(tmp_path: Path) -> None:
    with pytest.raises(NotALake, match=r"is not a lake.*taskq pipeline run"):
        Lake.open(tmp_path)
    with pytest.raises(NotALake):
        Lake.open(tmp_path / "missing")
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(LakeError, match=r"is not empty.*precious.txt"):
        Lake.open(tmp_path, create=True)
    assert Lake.open(tmp_path / "new", create=True).lake_id == (
        Lake.open(tmp_path / "new", create=True).lake_id
    )


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [1])
    path = manifest_path(lake.path / "_manifests", 1)
    path.write_bytes(path.read_bytes().replace(b'manifest": 1', b'manifest": 2'))
    with pytest.raises(LakeFormatError, match="format 2 is unknown: a newer taskq"):
        Lake.open(lake.path).manifest()
    identity = lake.path / "taskq-lake.json"
    identity.write_text(identity.read_text().replace('"format": 1', '"format": 3'))
    with pytest.raises(LakeFormatError, match="format 3"):
        Lake.open(lake.path)
    identity.write_text("{}")
    with pytest.raises(LakeDamaged, match="does not read"):
        Lake.open(lake.path)


def test_damage_is_told_with_the_file(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        for row in range(3):
            append(writer, [row])
    file = Path(lake.files("jobs")[0])
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(LakeDamaged, match=rf"{file.name}: has {len(whole) - 1} bytes, version 3"):
        lake.dataset("jobs")
    file.unlink()
    with pytest.raises(LakeDamaged, match=rf"{file.name}: is missing, version 3 names it"):
        lake.files("jobs")
    second = manifest_path(lake.path / "_manifests", 2)
    data = bytearray(second.read_bytes())
    data[-20] ^= 1
    second.write_bytes(data)
    with pytest.raises(LakeDamaged, match="checksum does not fit"):
        Lake.open(lake.path).manifest()
    second.write_bytes(b"{")
    with pytest.raises(LakeDamaged, match="is no manifest"):
        Lake.open(lake.path).manifest()
    second.unlink()
    with pytest.raises(LakeDamaged, match=rf"{second.name}: is missing"):
        Lake.open(lake.path).manifest()


@pytest.mark.parametrize("path", ["/etc/passwd", "../far/x", "jobs/../../far/x", "x", "a//x", ""])
def test_a_manifest_names_no_file_outside_of_its_lake(tmp_path: Path, path: str) -> None:
    """Whoever brings a lake along names files in it, and nothing else."""
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        staged = write(writer, [1])
        forged = staged.files[0]._replace(path=path)
        with pytest.raises(LakeDamaged, match="is no path of a file in the lake"):
            writer.commit({"jobs": Change((forged,), schema=staged.schema)})


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_file_of_a_lake_is_reached_through_a_link(tmp_path: Path, depth: int) -> None:
    """Nor is anything removed through one; the lake itself may be named by a link."""
    lake = Lake.open(tmp_path / "lake", create=True)
    with lake.writer() as writer:
        append(writer, [1])
    (tmp_path / "named").symlink_to(lake.path)
    assert jobs(Lake.open(tmp_path / "named")) == [1]
    (name,) = (file.path for file in lake.manifest().table("jobs").files)
    moved = Path(*Path(lake.path, name).parts[: len(lake.path.parts) + depth])
    moved.rename(tmp_path / "far")
    moved.symlink_to(tmp_path / "far")
    with pytest.raises(LakeDamaged, match="is a symbolic link, or below one"):
        lake.dataset("jobs")
    far = tmp_path / "far"
    precious = [one for one in (far, *far.rglob("*")) if one.is_file()]
    for one in precious:
        os.utime(one, (0, 0))
    with lake.writer() as writer:
        writer.commit({"jobs": Change(replaced=frozenset({OVER}))})
        vacuum(writer, keep_seconds=0)
    assert all(one.exists() for one in precious)


def test_manifests_of_two_lakes_make_no_chain(tmp_path: Path) -> None:
    lakes = [Lake.open(tmp_path / name, create=True) for name in "ab"]
    for lake, rows in zip(lakes, ([1], [2]), strict=True):
        with lake.writer() as writer:
            append(writer, rows)
            append(writer, rows)
    manifest_path(lakes[1].path / "_manifests", 2).rename(
        manifest_path(lakes[0].path / "_manifests", 2)
    )
    with pytest.raises(LakeDamaged, match="does not follow the version 1"):
        Lake.open(lakes[0].path).manifest()


def test_what_a_derived_table_was_computed_of_is_kept(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    refresh = Refresh(1, ((1, 4), (9, 9)))
    with lake.writer() as writer:
        append(writer, [1])
        staged = write(writer, [1], table="rollup_hour")
        writer.commit({"rollup_hour": Change(staged.files, schema=staged.schema, refresh=refresh)})
        append(writer, [2])
    assert Lake.open(lake.path).manifest().table("rollup_hour").refresh == refresh


def test_hours_are_never_left_out() -> None:
    assert ranges([5, 3, 4, 9, -2]) == ((-2, -2), (3, 5), (9, 9))
    many = [hour for hour in range(1_000) if hour % 10 < 5]
    few = ranges(many)
    assert len(few) == RANGES_MAX
    assert all(any(first <= hour <= last for first, last in few) for hour in many)
    assert union([((1, 3), (7, 9)), ((4, 5),), ()]) == ((1, 5), (7, 9))
    assert overlap(((1, 3), (7, 9)), ((4, 7),))
    assert not overlap(((1, 3),), ((4, 7),))
