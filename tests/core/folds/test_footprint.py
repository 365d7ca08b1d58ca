"""Memory of a waiting job: no object, 64 bytes at most, 40 more with a key."""

import sys
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from taskq.core.folds import jobtable
from taskq.core.folds.agenda import Agenda, apply_waiting
from taskq.core.folds.dedup import Dedup
from taskq.core.folds.jobtable import META_EXPIRES, JobTable
from taskq.core.folds.lanes import Lane
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import TIME_NS_MAX
from taskq.core.records import Kind

JOBS = 20_000
NOW = 10**18
DAY = 86_400 * 10**9


def a_lane(agenda: Agenda) -> Lane:
    return agenda.queues.lane(5, b"\x07\x04defaultsend")


def ready(agenda: Agenda, _: Dedup, lane: Lane) -> None:
    for job in range(1, JOBS + 1):
        agenda.apply_enqueued(job, job << 8, lane, 0)


def scheduled(agenda: Agenda, _: Dedup, lane: Lane) -> None:
    for job in range(1, JOBS + 1):
        agenda.apply_scheduled(job, job << 8, lane, 0, NOW + job * 1_000, is_wall=False)


def scheduled_at_random(agenda: Agenda, _: Dedup, lane: Lane) -> None:
    moments = Random(1)
    for job in range(1, JOBS + 1):
        due = NOW + moments.randrange(DAY)
        agenda.apply_scheduled(job, job << 8, lane, 0, due, is_wall=job % 2 == 0)


def scheduled_backwards(agenda: Agenda, _: Dedup, lane: Lane) -> None:
    for job in range(1, JOBS + 1):
        agenda.apply_scheduled(job, job << 8, lane, 0, NOW + DAY - job, is_wall=True)


def scheduled_and_expiring(agenda: Agenda, _: Dedup, lane: Lane) -> None:
    for job in range(1, JOBS + 1):
        agenda.apply_scheduled(job, job << 8, lane, META_EXPIRES, NOW + job, is_wall=False)
        agenda.apply_expiry(job, NOW + DAY + job, is_wall=False)


def waiting_within_a_run(agenda: Agenda, _: Dedup, lane: Lane) -> None:
    for job in range(1, JOBS + 1):
        agenda.apply_enqueued(job, job << 8, lane, 0)
        agenda.apply_claimed(job, job, 1, 1, 1)
        waits = pack_waits([Wait(Form.EVENT, "paid", 1)])
        apply_waiting(agenda, job, 0, TIME_NS_MAX, NOW, waits, None)


def retried(agenda: Agenda, dedup: Dedup, lane: Lane) -> None:
    """Claimed, failed, and due again at once: all were given back."""
    ready(agenda, dedup, lane)
    while taken := agenda.order.take(1_000, None, None):
        if taken.attempts[0] > 1:
            break
        for job, *_ in taken:
            agenda.apply_back(job, 1, NOW + 1, NOW)
    for job, *_ in taken:
        agenda.apply_back(job, 1, NOW + 1, NOW)
    agenda.promote(NOW + 1, JOBS)


def left_over_of_many(agenda: Agenda, dedup: Dedup, lane: Lane, *, backwards: bool) -> None:
    """Nine in ten are ended by another process, in the midst of the others."""
    ready(agenda, dedup, lane)
    for job in sorted(range(1, JOBS + 1), key=lambda job: job * 7_919 % 30_011 * (not backwards)):
        if job % 10:
            agenda.apply_claimed(job, 1, 1, 7, 1)
            agenda.apply_ended(Kind.SUCCEEDED, job)


def cancelled(agenda: Agenda, dedup: Dedup, lane: Lane, *, backwards: bool) -> None:
    ready(agenda, dedup, lane)
    for job in range(1, JOBS + 1)[:: -1 if backwards else 1]:
        agenda.apply_ended(Kind.CANCELLED, job)


def cancelled_before_they_are_due(
    agenda: Agenda, dedup: Dedup, lane: Lane, *, backwards: bool
) -> None:
    """Reminders set a year ahead and taken back."""
    for job in range(1, JOBS + 1):
        agenda.apply_scheduled(job, job << 8, lane, 0, NOW + job * 10**9, is_wall=backwards)
        agenda.apply_ended(Kind.CANCELLED, max(job - 9, 1))
    for job in range(JOBS - 8, JOBS + 1):
        agenda.apply_ended(Kind.CANCELLED, job)


def succeeded_with_keys(agenda: Agenda, dedup: Dedup, lane: Lane, *, backwards: bool) -> None:
    """Jobs with a key that expire tomorrow run at once, a thousand at a time."""
    hashes = Random(1)
    known = [hashes.getrandbits(64) or 1 for _ in range(1_000)]
    for first in range(1, JOBS // 2, 1_000):
        for job, hashed in enumerate(known, first):
            agenda.apply_enqueued(job, job << 8, lane, META_EXPIRES)
            agenda.apply_expiry(job, NOW + DAY, is_wall=backwards)
            dedup.apply_taken(hashed, job, job << 8, 0, NOW)
        for job, *_ in agenda.order.take(1_000, None, None):
            agenda.apply_ended(Kind.SUCCEEDED, job)
            dedup.apply_free(known[job - first], job, NOW)


def keys(_: Agenda, dedup: Dedup, __: Lane) -> None:
    hashes = Random(1)
    for job in range(1, JOBS + 1):
        dedup.apply_taken(hashes.getrandbits(64) or 1, job, job << 8, 0, NOW)


def size_of(*roots: object) -> int:
    """Bytes of all objects that are reached from the roots, with room that arrays keep to grow."""
    seen: set[int] = set()
    left: list[object] = list(roots)
    total = 0
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        total += sys.getsizeof(value)
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | deque):
            left += value
        elif not isinstance(value, array | int | str | bytes):
            left += vars(value).values() if hasattr(value, "__dict__") else ()
            left += [getattr(value, name) for name in getattr(type(value), "__slots__", ())]
    return total


def measured(fill: Callable[[Agenda, Dedup, Lane], None]) -> tuple[int, Agenda, Dedup]:
    """Return bytes that the folds grew by."""
    agenda, dedup = Agenda(), Dedup()
    lane = a_lane(agenda)
    before = size_of(agenda, dedup)
    fill(agenda, dedup, lane)
    return size_of(agenda, dedup) - before, agenda, dedup


@pytest.mark.parametrize(
    ("fill", "bytes_max"),
    [
        (ready, 36), (scheduled, 46), (scheduled_at_random, 46), (scheduled_backwards, 46),
        (scheduled_and_expiring, 64), (waiting_within_a_run, 180), (retried, 46), (keys, 40),
    ],
)  # fmt: skip
def test_a_waiting_job_costs_few_bytes(
    fill: Callable[[Agenda, Dedup, Lane], None], bytes_max: int
) -> None:
    """The bounds are tighter than the promise, so that a loss is noticed while it is small."""
    size, agenda, dedup = measured(fill)
    assert JOBS in {agenda.table.live, dedup.size}
    assert size <= bytes_max * JOBS, f"{size / JOBS:.1f} bytes a job"


def test_growing_never_takes_room_for_a_second_copy() -> None:
    """Adding one more never allocates more than a chunk: the peak is what stays."""
    agenda, dedup = Agenda(), Dedup()
    lane = a_lane(agenda)
    sizes = []
    for job in range(1, 20_001):
        agenda.apply_enqueued(job, job << 8, lane, 0)
        dedup.apply_taken(job * 0x9E3779B97F4A7C15 % 2**64 or 1, job, job << 8, 0, NOW)
        if job % 100 == 0:
            sizes.append(size_of(agenda, dedup))
    assert max(after - before for before, after in pairwise(sizes)) <= 200_000


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    "fill", [left_over_of_many, cancelled, cancelled_before_they_are_due, succeeded_with_keys]
)
def test_ended_jobs_leave_little(fill: Callable[..., None], backwards: bool) -> None:
    size, agenda, dedup = measured(partial(fill, backwards=backwards))
    assert agenda.table.live == (JOBS // 10 if fill is left_over_of_many else 0)
    assert dedup.size == 0
    assert size <= 64 * agenda.table.live + 420_000


@pytest.mark.parametrize("every", [1, 32, 7 * 32])
def test_a_queue_that_is_always_nearly_empty_does_not_grow(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job is settled before the next comes, but for a few, which come to share chunks."""
    monkeypatch.setattr(jobtable, "CHUNK", 32)
    table = JobTable()
    for job in range(1, 3_201):
        table.add(job, job, 0, 2)
        if every == 1 or job % every:
            chunk = table.find(job)
            assert chunk is not None
            table.remove(chunk, table.index)
    left = [job for job in range(1, 3_201) if every > 1 and not job % every]
    assert [chunk.ids[at] for chunk, at in table] == left
    assert sum(len(chunk.ids) for chunk in table._chunks) <= 64 + 8 * len(left)


def test_rows_come_and_go_at_any_place_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters die in any order: ids far below the last fill its parts, which are split."""
    monkeypatch.setattr(jobtable, "CHUNK", 32)
    table, rows, chance = JobTable(), dict[int, tuple[int, int, int]](), Random(1)
    first, some = range(1, 32), [chance.randrange(1, 900) for _ in range(4_000)]
    last = 0
    for job in (*first, 320, *first, 32, 32, 33, 33, *range(128, 192), *some, *range(900, 1_300)):
        chunk = table.find(job)
        assert (chunk is not None) == (job in rows)
        if chunk is None:
            rows[job] = job * 3, 1, 9
            (table.add if job > last else table.insert)(job, *rows[job])
            last = max(last, job)
        else:
            at = table.index
            assert (chunk.locations[at], chunk.lanes[at], chunk.metas[at]) == rows.pop(job)
            table.remove(chunk, at)
        assert table.live == len(rows)
        assert all(part.live for part in table._chunks[:-1])
    assert [chunk.ids[at] for chunk, at in table] == sorted(rows)
    for first_id, chunk in zip(table._firsts, table._chunks, strict=True):
        assert first_id == chunk.ids[0]
        assert chunk.live == sum(map(bool, chunk.metas[: chunk.used]))
    assert sum(len(chunk.ids) for chunk in table._chunks) <= 128 + 8 * len(rows)
