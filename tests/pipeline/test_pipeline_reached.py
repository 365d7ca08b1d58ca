"""Positions of the logs in the tables are written for moved logs alone, at any number of logs."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final
from unittest import mock

import pytest

pytest.importorskip("deltalake")

from taskq_plugins.spark.lake.errors import LakeDamaged
from taskq_plugins.spark.lake.store import Change, Lake, LakeBatch
from taskq_plugins.spark.run.increment import RunOptions, run
from taskq_plugins.spark.run.progress import BASE, reached, reference
from taskq_plugins.spark.source.positions import LogPosition
from tests.fleet.made_logs import MadeLog
from tests.pipeline.rowmaking import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.lake.store import LakeWriter
    from taskq_plugins.spark.source.positions import Offsets

LOGS: Final = 30
_DAYS_AGO: Final = 1_700_000_000


def commit(writer: LakeWriter, batch: LakeBatch, *tables: str) -> None:
    for table in tables or BASE:
        writer.commit(table, Change(schema=COLUMNS), batch)


def log_files(lake: Lake) -> dict[Path, int]:
    """Return the commits of all tables, and their bytes."""
    return {path: path.stat().st_size for path in lake.path.rglob("_delta_log/*.json")}


def moved(draw: random.Random, offsets: Offsets) -> Offsets:
    logs = (f"log-{draw.randrange(LOGS)}" for _ in range(3))
    ends = {log: LogPosition("edge", 1, 64, draw.randrange(2**40), 7) for log in logs}
    return offsets | ends


def test_offsets_of_many_batches_are_read_back_after_the_log_was_cut(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    draw, wanted = random.Random(1), dict[str, LogPosition]()
    wholes, count = 0, 70
    with lake.writer() as writer:
        for number in range(count):
            wanted = moved(draw, wanted)
            at = reached(lake)
            batch = at.next(wanted)
            assert at.ends(batch) == wanted
            commit(writer, batch)
            wholes += batch.is_whole
            assert reached(lake).offsets == wanted, "as the process knows it"
            if number % 7:
                continue
            for path in log_files(lake):
                os.utime(path, (_DAYS_AGO, _DAYS_AGO))
            for table in BASE:
                writer.keep_short(table)
            assert reached(Lake.open(tmp_path)).offsets == wanted, "as the next reads it"
    assert 3 < wholes < count / 2
    assert len(log_files(lake)) < 3 * count, "else nothing was cut"


def test_a_batch_that_was_begun_is_made_again_of_the_logs_that_moved(tmp_path: Path) -> None:
    """Though ``jobs`` does not know of it yet; and whichever of the two tables was lost."""
    lake = Lake.open(tmp_path, create=True)
    draw, before = random.Random(2), dict[str, LogPosition]()
    with lake.writer() as writer:
        for _ in range(12):
            before = moved(draw, before)
            commit(writer, reached(lake).next(before))
        ends = moved(draw, before)
        batch = reached(lake).next(ends)
        commit(writer, batch, *BASE[:2])
    assert not batch.is_whole
    there = reached(Lake.open(tmp_path))
    assert (there.offsets, there.begun) == (before, batch)
    assert there.ends(batch) == ends
    for lost in ("records", "jobs", "attempts"):
        batch = reference(lake, [lost])
        assert (batch.number, batch.is_whole) == (11, True)
        assert there.then(batch).offsets == before, lost
    with pytest.raises(LakeDamaged, match="none of its tables says"):
        reference(lake, ["records", "jobs"])


def test_a_table_whose_log_lost_what_told_of_all_is_named(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, create=True)
    with lake.writer() as writer:
        commit(writer, LakeBatch("s", 4, "v1\n{}\n{}", is_whole=False))
    with pytest.raises(LakeDamaged, match=r"jobs.*does not tell how far all logs were read"):
        reached(lake)


def test_an_increment_writes_as_much_log_for_many_devices_as_for_few(tmp_path: Path) -> None:
    written = []
    for count in (5, LOGS):
        root = tmp_path / f"{count}"
        logs = [MadeLog(root / "hub" / f"d{number}") for number in range(count)]
        for log in logs:
            log.enqueue(3)
        options = RunOptions(journals=root / "hub", max_bytes=2**26)
        lake = Lake.open(root / "lake", create=True)
        with lake.writer() as writer:
            run(writer, options, mock.Mock())
            before = log_files(lake)
            logs[0].enqueue(1)
            assert run(writer, options, mock.Mock()).records == 1
        new = log_files(lake)
        written.append(sum(size for path, size in new.items() if path not in before))
    assert abs(written[0] - written[1]) < 300, "some numbers have more digits"
