"""Upkeep driven by tests, step by step, with its requests committed as batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, TypeVar

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.jobtable import META_BACK, META_EXPIRES, STATE_MASK
from taskq.core.kinds import RUNNING
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.flows import decode_step
from taskq.log.state.facets import Facets
from taskq.log.upkeep.upkeep import Upkeep
from tests.log.world import Process

#: More steps than any of the tests needs.
_STEPS_MAX: Final = 500_000
FILLER: Final = b"." * 12_000

T = TypeVar("T")


def keeping(**options: Any) -> LogConfig:
    return LogConfig(segment_bytes=SEGMENT_BYTES_MIN, **options)


def tend(process: Process, upkeep: Upkeep | None = None) -> Upkeep:
    upkeep = upkeep or Upkeep(process.committer)
    process.catch_up()
    for _ in range(_STEPS_MAX):
        requests = upkeep.step()
        if requests:
            process.commit(requests)
            process.sync()
        elif not upkeep.busy:
            return upkeep
    raise AssertionError("upkeep does not come to an end")


def tend_a_while(process: Process, upkeep: Upkeep, steps: int) -> None:
    for _ in range(steps):
        requests = upkeep.step()
        if requests:
            process.commit(requests)
            process.sync()
        elif not upkeep.busy:
            upkeep._look_at_ns = 0
            return


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def fill_segment(process: Process) -> int:
    """Enqueue and finish jobs until a new segment begins; returns the segment that was sealed."""
    segment = process.journal.segment
    while process.journal.segment == segment:
        process.enqueue(FILLER)
        (delivery,) = process.claim()
        process.settle(delivery)
    return segment


Meaning = dict[str, Any]


def meaning(facets: Facets, now_ns: int) -> Meaning:
    agenda, dedup = facets.need_agenda(), facets.need_dedup()
    agenda.promote(now_ns, 10**9)
    table = {
        # A job's place in its lane does not matter.
        chunk.ids[at]: (agenda.lanes[chunk.lanes[at]].key, chunk.metas[at] & ~META_BACK)
        for chunk, at in agenda.table
    }
    keys = {
        (number, job): (dedup.until_ns(number, job), until < 0)
        for page in dedup._pages
        for number, job, until in zip(page.hashes, page.jobs, page.untils, strict=True)
        if until < 0 or until > now_ns - dedup.shift_ns
    }
    dues = sorted(
        (job, moment + (0 if is_wall else agenda.times.shift_ns), is_wall)
        for moments, jobs, is_wall in agenda.times.blocks()
        for moment, job in zip(moments, jobs, strict=True)
        if job in table
    )
    return {
        "jobs": table,
        "running": dict(agenda.running),
        "leases": {job: agenda.leases.deadline_ns(job) for job in agenda.leases.all()},
        "asked": set(agenda.leases.asked),
        "dues": dues,
        "dead": {chunk.ids[at]: chunk.metas[at] for chunk, at in agenda.dead},
        "paused": set(agenda.queues.paused),
        "schedules": dict(agenda.schedules),
        "next": agenda.order.next_ready(10**6, None),
        "counts": [queue for queue in agenda.queues.stats() if any(_counts(queue))],
        "keys": keys,
        "steps": {job: _steps_of(facets, job) for job in _may_run(agenda)},
        "expiries": sorted(
            (job, moment)
            for job, moment in _expiries(agenda)
            if job in table and _may_expire(table[job][1])
        ),
    }


def _may_expire(meta: int) -> bool:
    return bool(meta & META_EXPIRES) and meta & STATE_MASK != RUNNING


def _may_run(agenda: Agenda) -> list[int]:
    tables = agenda.table, agenda.dead
    return [chunk.ids[at] for table in tables for chunk, at in table]


def _steps_of(facets: Facets, job: int) -> tuple[object, ...]:
    agenda = facets.need_agenda()
    steps, files = agenda.steps, facets._journal.files
    places = steps.places.get(job, ())
    return (
        [decode_step(files.unchecked_record(at)) for at in places],
        [
            (it[:3], decode_step(files.unchecked_record(it.location)).body)
            for it in steps.signals.get(job, ())
        ],
        steps.taken.get(job, set()),
        steps.awaiting(job, agenda.times.shift_ns),
    )


def _expiries(agenda: Agenda) -> Iterator[tuple[int, int]]:
    times = agenda.times
    for blocks, shift_ns in ((times._expiries_shifted, times.shift_ns), (times._expiries_wall, 0)):
        for moments, jobs in blocks.blocks():
            yield from ((job, at + shift_ns) for at, job in zip(moments, jobs, strict=True))


def _counts(stats: Any) -> list[int]:
    return [
        stats.scheduled, stats.ready, stats.running, stats.succeeded, stats.dead,
        stats.cancelled, stats.expired,
    ]  # fmt: skip
