"""A backup is of one moment, despite writers, and becomes a log of its own."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskq import State, TaskQ
from taskq.cli.main import main
from taskq.core.errors import LogError, WrongLog
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.backup import back_up, restore
from tests.processes.harness import Child

#: The smallest that a log may have.
SEGMENT_BYTES = 64 * 1024

WRITER = """
import sys
from taskq import TaskQ
app = TaskQ(sys.argv[1], segment_bytes=65536, keep=0, upkeep=False)
while True:
    kept = [app.enqueue_by_name_sync("keep", "x" * 200).id for _ in range(8)]
    for _ in range(8):
        app.enqueue_by_name_sync("drop", "y" * 3000).cancel_sync()
    print(*kept, flush=True)
"""
COMPACTOR = """
import sys
from taskq import TaskQ
app = TaskQ(sys.argv[1], segment_bytes=65536, keep=0, upkeep=False)
while True:
    if app.compact_sync(keep=0).segments:
        print("gone", flush=True)
"""


def run(*words: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def stands(path: Path | str) -> tuple[dict[str, State], int, int]:
    """(state of each job, end, epoch) of a log that verifies clean."""
    with LogReader.open(str(path)) as reader:
        report = reader.verify()
        assert not report.damage
        assert not report.torn_bytes
        jobs = {view.job_id: view.state for view in reader.jobs(None, None, None, 10**6)}
        return jobs, reader.journal.next_lsn, reader.journal.epoch


def test_a_backup_beside_writers_and_a_compactor_holds_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """Three processes write, one compacts; what is restored elsewhere verifies clean."""
    data, target, again = (tmp_path / name for name in ("data", "backup", "again"))
    TaskQ(data, segment_bytes=SEGMENT_BYTES).store().close()
    acknowledged: set[str] = set()
    reports = []
    with contextlib.ExitStack() as stack:
        *writers, compactor = (
            stack.enter_context(Child(sys.executable, "-c", program, data))
            for program in (WRITER, WRITER, WRITER, COMPACTOR)
        )
        for _ in range(2):
            assert compactor.line() == "gone"
            for writer in writers:
                for _ in range(3):
                    acknowledged.update(writer.line().split())
            before = set(acknowledged)
            reports.append(back_up(str(data), str(target)))
            jobs, next_lsn, epoch = stands(target)
            assert {jobs.get(entry) for entry in before} == {State.READY}
            assert next_lsn == reports[-1].next_lsn
        assert len(before) == 2 * 3 * 3 * 8
    report = restore(str(target), str(again))
    restored, restored_lsn, restored_epoch = stands(again)
    assert restored == jobs
    assert restored_epoch != epoch
    assert restored_lsn == report.next_lsn
    with TaskQ(again) as app:
        new = app.enqueue_by_name_sync("keep", "z")
    assert int(new.id.partition("-")[2]) >= restored_lsn
    assert new.id in stands(again)[0]


def test_what_compaction_takes_behind_the_copied_end_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    opened = 0
    with TaskQ(data, segment_bytes=SEGMENT_BYTES, keep=0, upkeep=False) as app:
        kept = {app.enqueue_by_name_sync("keep", "k").id}
        for _ in range(90):
            app.enqueue_by_name_sync("drop", "y" * 3_000).cancel_sync()
        kept |= {app.enqueue_by_name_sync("keep", "y" * 3_000).id for _ in range(50)}
        genuine = LogReader.open

        def open_and_compact(path: str) -> LogReader:
            nonlocal opened
            reader = genuine(path)
            opened += 1
            if opened == 2:  # the first one looks whose backup it is
                assert app.compact_sync(keep=0).segments
            return reader

        monkeypatch.setattr(LogReader, "open", open_and_compact)
        back_up(str(data), str(target))
        monkeypatch.undo()
    assert stands(target)[0] == dict.fromkeys(kept, State.READY)


def test_positions_of_sources_and_readers_come_along(tmp_path: Path) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    with TaskQ(data, upkeep=False) as app:
        large = "x" * (2 << 20)
        job = app.enqueue_by_name_sync("keep", large)
        app.ingest_sync("file", [], [7])
    run("reader", "seek", "billing", "end", "-d", data)
    run("backup", data, tmp_path / "backup")
    run("restore", tmp_path / "backup", again)
    with LogReader.open(str(again)) as reader:
        view = reader.job(reader.parse_id(job.id))
        assert view is not None
        assert json.loads(view.payload)["*"] == [large]
        assert [source.position for source in reader.sources()] == [[7]]
    assert json.loads(run("reader", "ls", "-d", again, "--json").stdout)[0]["name"] == "billing"
    assert not stands(again)[0].keys() - {job.id}


def test_nobody_writes_to_a_backup_and_read_commands_open_it(tmp_path: Path) -> None:
    with TaskQ(tmp_path / "data") as app:
        job = app.enqueue_by_name_sync("keep", "x")
    run("backup", "-d", app.data_dir, tmp_path / "backup")
    assert job.id in run("ls", tmp_path / "backup").stdout
    with pytest.raises(LogError, match=r"is a backup, and nobody writes to it.*restore"):
        TaskQ(tmp_path / "backup").store()
    assert run("restore", tmp_path / "backup", "-d", tmp_path / "again").stdout.count("again") == 2
    with TaskQ(tmp_path / "again") as app:
        app.enqueue_by_name_sync("keep", "x")


def test_what_a_lost_log_gave_after_the_backup_is_not_given_again(tmp_path: Path) -> None:
    with TaskQ(tmp_path / "data") as app:
        kept = app.enqueue_by_name_sync("keep", "x").id
        run("backup", tmp_path / "data", tmp_path / "backup")
        lost = {app.enqueue_by_name_sync("keep", "x").id for _ in range(3)}
    run("restore", tmp_path / "backup", tmp_path / "again")
    with TaskQ(tmp_path / "again") as app:
        assert app.enqueue_by_name_sync("keep", "x").id not in lost
        assert app.job(kept).view_sync().job_id == kept
        for job in lost:
            with pytest.raises(WrongLog, match="as well: open the directory"):
                app.job(job)


def test_a_backup_goes_nowhere_but_to_its_place(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for path in (data, other):
        TaskQ(path).store().close()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.txt").write_text("x")
    back_up(str(other), str(tmp_path / "backup"))
    for target, item in (
        (other, "is a task log and no backup"),
        (tmp_path / "backup", "is the backup of another log"),
        (tmp_path / "thesis", "holds what is no backup"),
        (data / "backup", "lie within each other"),
    ):
        with pytest.raises(LogError, match=item):
            back_up(str(data), str(target))
    with pytest.raises(LogError, match="is not empty"):
        restore(str(data), str(other))
    assert (tmp_path / "thesis" / "one.txt").read_text() == "x"


def test_a_log_that_lacks_segments_leaves_the_older_backup_alone(tmp_path: Path) -> None:
    with TaskQ(tmp_path / "data", segment_bytes=SEGMENT_BYTES) as app:
        for _ in range(8):
            app.enqueue_by_name_sync("keep", "x" * 30_000)
    back_up(str(app.data_dir), str(tmp_path / "backup"))
    min((app.data_dir / "log").glob("*.log")).unlink()
    with pytest.raises(LogError, match="An older backup is left as it is"):
        back_up(str(app.data_dir), str(tmp_path / "backup"))
    assert len(stands(tmp_path / "backup")[0]) == 8


def test_a_backup_that_is_cut_short_at_any_file_is_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backup"
    with TaskQ(tmp_path / "data", segment_bytes=SEGMENT_BYTES) as app:
        for _ in range(4):
            app.enqueue_by_name_sync("keep", "x" * 30_000)
        back_up(str(app.data_dir), str(target))
        seen = len(stands(target)[0])
        rename, left = LocalDisk.rename, 0

        def failing(disk: LocalDisk, old: str, new: str) -> None:
            nonlocal left
            if new.startswith(str(target)):
                if not left:
                    raise OSError(5, "the line is cut")
                left -= 1
            rename(disk, old, new)

        for _ in range(6):
            app.enqueue_by_name_sync("keep", "y" * 30_000)
        monkeypatch.setattr(LocalDisk, "rename", failing)
        steps = 0
        while True:
            left = steps
            try:
                back_up(str(app.data_dir), str(target))
                break
            except LogError:
                now = len(stands(target)[0])
                assert seen <= now <= 10
                seen, steps = now, steps + 1
    assert steps >= 3
    assert len(stands(target)[0]) == 10
