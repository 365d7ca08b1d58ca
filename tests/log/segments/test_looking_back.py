"""A waiter for a job gets its end, however old, and holds up nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskq.core.errors import JobNotFound
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import Op
from taskq.log.segments.indexes import RecordFound
from tests.log.world import Process, World


def _old_jobs() -> tuple[Process, list[int]]:
    process = World().process()
    jobs = [process.enqueue(b"%d" % number) for number in range(3)]
    first, second = process.claim(2)
    process.settle(first, body=b"done")
    process.settle(second, Kind.DEAD, body=b"no good")
    for _ in range(2):
        while process.journal.offset < SEGMENT_BYTES_MIN:
            process.enqueue(b"x" * 30_000)
        process.enqueue(b"next")
    return process, jobs


def test_a_number_that_is_no_job_is_refused() -> None:
    process, jobs = _old_jobs()
    claim = jobs[-1] + 1
    other = process.world.process()
    for number in (claim, process.journal.next_lsn + 9, 0):
        with pytest.raises(JobNotFound, match=f"-{number} in "):
            other.ask(Op.OUTCOME, number)


def test_jobs_are_looked_up_without_the_writer_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    process, jobs = _old_jobs()
    other = process.world.process()
    indexes, writer = other.journal.indexes, other.journal.writer
    about = indexes.about
    looked: list[bool] = []

    def watch(job: int) -> Iterator[RecordFound]:
        looked.append(writer.held)
        return about(job)

    monkeypatch.setattr(indexes, "about", watch)
    future = other.send(Op.OUTCOME, jobs[0])
    other.enqueue(b"and something to write")
    assert future.result(0).body == b"done"
    assert looked
    assert not any(looked)


def test_a_segment_that_compaction_takes_away_meanwhile_costs_no_answer() -> None:
    process, _ = _old_jobs()
    young = process.enqueue(b"young")
    reader = process.world.process()
    assert reader.ask(Op.OUTCOME, 1).body == b"done"
    process.journal.files.remove(1)
    reader.disk.close(reader.journal.files._descriptors.pop(1))
    reader.journal.indexes.forget()
    with pytest.raises(JobNotFound):
        reader.ask(Op.OUTCOME, 2)
    future = reader.send(Op.OUTCOME, young)
    assert not future.done()
