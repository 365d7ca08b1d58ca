"""Arrivals and endings in each minute of the last hour, from new records alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from taskq import State, TaskQ, retry
from taskq.engine import Moment
from taskq.log.format import record
from taskq.log.format.frames import Frame
from taskq.log.read import gauges
from taskq.log.read.reader import LogReader
from taskq.testing import FakeClock
from taskq.views import STATES

MINUTE_NS = 60 * 10**9


def total(reader: LogReader) -> Counter[str]:
    counts: Counter[str] = Counter()
    for minute in reader.last_hour().minutes():
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
        minutes = reader.last_hour().minutes()
        assert len(minutes) == gauges.MINUTES
        assert minutes[-1].begin_ns <= clock.wall_ns() < minutes[-1].begin_ns + MINUTE_NS
        assert [b.begin_ns - a.begin_ns for a, b in pairwise(minutes)] == (
            [MINUTE_NS] * (gauges.MINUTES - 1)
        )
        assert minutes[-1].counts == {"enqueued": 1, "succeeded": 1}
        clock.advance((gauges.MINUTES - 1) * 60)
        reader.refresh()
        assert [*reader.last_hour().paces()] == [("default", "work")]
        clock.advance(60)
        reader.refresh()
        assert not reader.last_hour().paces()


def test_of_a_busy_log_the_first_minutes_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "1", tmp_path / "2"):
        fill(path, 3, 0)
        with LogReader.open(str(path)) as reader:
            if sum(any(minute.counts.values()) for minute in reader.last_hour().minutes()) == 1:
                break  # else a minute ended in the midst of it
    monkeypatch.setattr(gauges, "_READ_BYTES_MAX", 1)
    with LogReader.open(str(path)) as reader:
        minutes = reader.last_hour().minutes()
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


@pytest.mark.parametrize("names_max", [100_000, 0])
def test_each_queue_and_task_has_a_pace_of_its_own(
    tmp_path: Path, names_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of jobs whose birth was not kept in mind: it is looked up."""
    monkeypatch.setattr(gauges, "_NAMES_MAX", names_max)
    fill(tmp_path, 5, 2)
    with TaskQ(tmp_path, durability="os", upkeep=False) as app:

        @app.task(name="rest", queue="night")
        async def rest() -> None: ...

        rest.enqueue_sync()
    with LogReader.open(str(tmp_path)) as reader:
        hour = reader.last_hour()
        assert sum(minute.waiting for minute in hour.minutes()) == 1
        assert sum(minute.running for minute in hour.minutes()) == 0
        paces = hour.paces()
        assert set(paces) == {("default", "work"), ("night", "rest")}
        work = paces["default", "work"]
        assert work.counts == {"enqueued": 7, "succeeded": 5, "retried": 2, "dead": 2}
        assert sum(work.minutes) == len(work.took_ns) == 9
        assert 0 < min(work.took_ns) <= max(work.took_ns) < MINUTE_NS
        failed = reader.job(work.failed[1])
        assert failed is not None
        assert failed.state is State.DEAD
        assert paces["night", "rest"] == ({"enqueued": 1}, (0,) * gauges.MINUTES, (), (0, 0))
        assert reader.lanes()["default", "work"] == {
            **dict.fromkeys(STATES, 0), "succeeded": 5, "dead": 2
        }  # fmt: skip


def test_processes_of_today_are_told_when_they_are_gone(tmp_path: Path) -> None:
    fill(tmp_path, 3, 0)
    with LogReader.open(str(tmp_path)) as reader:
        ((owner, seen_ns),) = reader.gone()
        assert (owner.pid, owner.alive) == (os.getpid(), False)
        assert "Python 3" in owner.version
        assert owner.started_ns < seen_ns <= reader.journal.time_ns
        assert sum(reader.last_hour().work()[owner.owner]) == 3
