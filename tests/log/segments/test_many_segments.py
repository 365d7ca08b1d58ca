"""Long logs: no segment is opened twice, no job is passed over."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.journal.journal import Journal
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op
from tests.log.tending import FILLER
from tests.log.told import write
from tests.log.world import PATH, PLAIN, Process, World
from tests.machine.crashable import CrashableDisk

LOW = EnqueueSpec("default", "mail.send", 0, 3)
HIGH = EnqueueSpec("default", "mail.send", 9, 3)


def backlog(process: Process, segments: int, spec: EnqueueSpec = PLAIN) -> list[int]:
    jobs = [process.enqueue(FILLER, None, spec)]
    while len(process.world.segments()) < segments:
        jobs.append(process.enqueue(FILLER, None, spec))
    return jobs


def _opened(monkeypatch: pytest.MonkeyPatch, world: World) -> Counter[str]:
    opened: Counter[str] = Counter()
    open_file = CrashableDisk.open

    def counted(self: CrashableDisk, path: str, **options: Any) -> int:
        opened[path] += path in segments
        return open_file(self, path, **options)

    segments = set(world.segments())
    monkeypatch.setattr(CrashableDisk, "open", counted)
    return opened


def test_at_most_so_many_segments_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq.log.segments.segments._DESCRIPTORS_MAX", 3)
    world = World()
    process = world.process()
    backlog(process, 8)
    files = process.journal.files
    files.close_others()
    last, before = files.descriptor(files.lsns[-1]), process.disk.open_files
    for lsn in files.lsns * 2:
        files.descriptor(lsn)
        assert process.disk.open_files <= before + 2
    assert files.descriptor(files.lsns[-1]) == last


def test_a_writers_opening_looks_once_into_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it finds its place in the log, it asks no file twice but the last, which it keeps."""
    world = World()
    writer = world.process()
    backlog(writer, 50)
    writer.close()
    opened = _opened(monkeypatch, world)
    writer = world.process()
    *others, _ = world.segments()
    assert {opened[path] for path in others} == {1}
    opened.clear()
    assert not writer.journal.lost
    assert not opened.total()


def test_reading_opens_no_segment_but_the_last_until_somebody_asks_for_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.is_whole = False
    writer = world.process()
    jobs = backlog(writer, 50)
    writer.close()
    *others, last = world.segments()
    world.machine.unlink(others.pop(20))
    opened = _opened(monkeypatch, world)
    journal = Journal(CrashableDisk(world.machine), world.clock, PATH, world.config, None)
    journal.open_for_reading()
    assert +opened == {last: 1}
    lost = {lsn for gap in journal.lost for lsn in range(gap.first_lsn, gap.next_lsn)}
    assert lost.intersection(jobs)
    assert set(others) <= set(opened)


def test_claiming_opens_each_segment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and whichever a claim goes to: what it costs does not grow."""
    world = World()
    writer = world.process()
    left, right = EnqueueSpec("left"), EnqueueSpec("right")
    jobs = {item.queue: backlog(writer, count, item) for item, count in ((left, 5), (right, 10))}
    writer.close()
    worker = world.process()
    opened: Counter[str] = Counter()
    open_file = worker.disk.open

    def counted(path: str, **options: Any) -> int:
        opened[path] += path.endswith(".log")
        return open_file(path, **options)

    monkeypatch.setattr(worker.disk, "open", counted)
    requests = {
        queue: ClaimRequest(1, queues=frozenset({queue}), wait_until_ns=0) for queue in jobs
    }
    for pair in zip(*jobs.values(), strict=False):
        for queue, job in zip(jobs, pair, strict=True):  # from one end of the log to the other
            assert [delivery.job for delivery in worker.ask(Op.CLAIM, requests[queue])] == [job]
    assert max(opened.values()) == 1
    assert opened.total() <= len(world.segments())


@pytest.mark.parametrize("is_snapped", [False, True])
def test_old_jobs_of_low_priority_are_claimed_after_a_restart(is_snapped: bool) -> None:
    world = World()
    process = world.process()
    low = [process.enqueue(b"low", None, LOW) for _ in range(3)]
    backlog(process, 4)
    high = [process.enqueue(b"high", None, HIGH) for _ in range(3)]
    assert [delivery.job for delivery in process.claim(3)] == high
    if is_snapped:
        write(process)
    process.kill()
    world.lose_power()
    again = world.process()
    claimed = again.claim(10_000)
    assert [delivery.job for delivery in claimed[:3]] == high  # their claims went with the power
    assert [delivery.job for delivery in claimed[-3:]] == low
    assert len(claimed) == len({delivery.job for delivery in claimed})


def test_thousands_of_expired_jobs_do_not_delay_a_valid_one() -> None:
    """They end in a few batches, and the claim that waits meanwhile gets the first valid job."""
    process = World().process()
    count = 2_500
    for _ in range(count):
        process.offer(b"late", Extras(expires_ns=SECOND_NS), HIGH)
    valid = process.enqueue(b"valid")
    process.world.clock.advance(2)
    future: Future[list[Delivery]] = Future()
    process.commit([(Op.CLAIM, None, future, ClaimRequest(1, wait_until_ns=0))])
    batches = 1
    while not future.done():
        process.commit([])
        batches += 1
    assert [delivery.job for delivery in future.result(0)] == [valid]
    assert batches <= 3
    (queue,) = process.catch_up().need_agenda().queues.stats()
    assert (queue.expired, queue.running) == (count, 1)
    assert process.world.kinds().count(Kind.EXPIRED) == count
