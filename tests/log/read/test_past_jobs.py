"""Past jobs for a replay: enqueued since a moment, wherever their records are now."""

from __future__ import annotations

from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read.jobs import JobFilter, past_jobs
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import World


def test_jobs_since_a_moment_are_those_enqueued_then_or_later_however_they_were_carried() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    jobs, moments = [], []
    for _ in range(3):
        moments.append(world.clock.wall_ns())
        jobs.append(process.enqueue())
        process.settle(process.claim()[0], Kind.DEAD, cause=Cause.REJECTED)
        world.clock.advance(10)
    for is_compacted in (False, True):
        if is_compacted:
            for _ in range(5):
                fill_segment(process)
            tend(process)
            assert process.journal.files.lsns[0] > jobs[-1], "they were not written again"
        for number, moment in enumerate(moments):
            for since, first in ((moment, number), (moment + 1, number + 1)):
                past = JobFilter(frozenset({State.DEAD}), since_ns=since)
                listed = [past_job.record.job for past_job in past_jobs(world.reader(), past)]
                assert listed == jobs[first:], (is_compacted, number)
