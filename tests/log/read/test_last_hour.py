"""What came and how attempts ended in each minute of the last hour, by what is new alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from taskq import TaskQ, retry
from taskq.engine import Moment
from taskq.log.format import record
from taskq.log.read import gauges
from taskq.log.read.reader import LogReader
from taskq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from taskq.log.format.frames import Frame

MINUTE_NS = 60 * 10**9


def total(reader: LogReader) -> Counter[str]:
    counts: Counter[str] = Counter()
    for minute in reader.last_hour():
        counts.update(minute.counts)
    return counts


def fill(path: Path, good: int, bad: int) -> None:
    with TaskQ(path, durability="os", upkeep=False) as app:

        @app.task(name="work", retry=retry.fixed(2, 0))
        async def work(fails: bool) -> None:
            if fails:
                raise ValueError

        work.enqueue_many_sync([(number < bad,) for number in range(good + bad)])
        app.run_worker(burst=True)


def test_outcomes_are_counted_once_and_only_what_is_new_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 5, 2)
    with LogReader.open(str(tmp_path)) as reader:
        assert total(reader) == {"enqueued": 7, "succeeded": 5, "retried": 2, "dead": 2}
        fill(tmp_path, 1, 0)
        looked: list[int] = []
        places = record.places

        def watched(frame: Frame) -> Iterator[tuple[int, int, int]]:
            looked.append(frame.header.first_lsn)
            return places(frame)

        monkeypatch.setattr(gauges, "places", watched)
        before = reader.extent.lsn
        reader.refresh()
        assert total(reader) == {"enqueued": 8, "succeeded": 6, "retried": 2, "dead": 2}
        assert min(looked) >= before
        assert total(reader) == {"enqueued": 8, "succeeded": 6, "retried": 2, "dead": 2}


def test_an_hour_is_sixty_minutes_that_move_on(tmp_path: Path) -> None:
    fill(tmp_path, 1, 0)
    with LogReader.open(str(tmp_path)) as reader:
        clock = FakeClock(reader.journal.time_ns / 10**9)
    with LogReader.open(str(tmp_path), clock) as reader:
        minutes = reader.last_hour()
        assert len(minutes) == gauges.MINUTES
        assert minutes[-1].begin_ns <= clock.wall_ns() < minutes[-1].begin_ns + MINUTE_NS
        assert [b.begin_ns - a.begin_ns for a, b in pairwise(minutes)] == (
            [MINUTE_NS] * (gauges.MINUTES - 1)
        )
        assert minutes[-1].counts == {"enqueued": 1, "succeeded": 1}


def test_of_a_busy_log_the_first_minutes_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 3, 0)
    monkeypatch.setattr(gauges, "_READ_BYTES_MAX", 1)
    with LogReader.open(str(tmp_path)) as reader:
        minutes = reader.last_hour()
        assert len(minutes) in {1, 2}
        assert total(reader)["succeeded"] == 3


def test_a_moment_has_an_hour_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, 2, 0)
    with LogReader.open(str(tmp_path)) as reader:
        lsn = reader.extent.lsn - 1
    fill(tmp_path, 4, 0)
    with LogReader.open(str(tmp_path), at=Moment(lsn=lsn)) as reader:
        assert total(reader)["succeeded"] == 2


def test_after_a_night_what_is_older_than_an_hour_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was left open, or is opened again, has its last hour at once."""
    fill(tmp_path, 1, 0)
    with LogReader.open(str(tmp_path)) as reader:
        clock = FakeClock(reader.journal.time_ns / 10**9)
    with LogReader.open(str(tmp_path), clock) as reader:
        reader.last_hour()
        before = reader.extent.lsn
        fill(tmp_path, 20, 0)
        clock.advance(2 * 3_600)
        looked: list[int] = []
        places = record.places

        def watched(frame: Frame) -> Iterator[tuple[int, int, int]]:
            looked.append(frame.header.first_lsn)
            return places(frame)

        monkeypatch.setattr(gauges, "places", watched)
        reader.refresh()
        assert reader.extent.lsn > before
        assert not total(reader)
        assert not looked
