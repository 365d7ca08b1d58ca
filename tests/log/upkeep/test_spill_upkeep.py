"""Upkeep removes the files of large bodies once nothing names them, and never a moment earlier."""

from __future__ import annotations

from typing import Final

import pytest

from taskq.core.records import Cause, Flag, Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import EnqueueSpec
from taskq.log.segments.spill import Spill, decode_reference
from tests.effort import grows
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import PATH, Process, World, cuts

pytestmark = grows

HOUR: Final = 3_600
SMALL: Final = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None, starvation_seconds=None)
SPILLED: Final = int(Flag.SPILLED)
#: After all the jobs that fill segments.
SPEC: Final = EnqueueSpec(task="mail.send", priority=0).packed(SPILLED)
BODIES: Final = [b"%d " % number * 500 for number in range(4)]


def spill_of(process: Process) -> Spill:
    return Spill(PATH, lambda: process.disk)


class Jobs:
    """A finished job with a result, a dead letter, and a job that waits; all of it in files."""

    def __init__(self, process: Process) -> None:
        stored = [spill_of(process).put(body) for body in BODIES]
        self.names = [decode_reference(record, "it").name for record in stored]
        self.finished = process.enqueue(stored[0], spec=SPEC)
        process.settle(process.claim()[0], body=stored[1], flags=SPILLED)
        self.dead = process.enqueue(stored[2], spec=SPEC)
        process.settle(process.claim()[0], Kind.DEAD, body=b"no", cause=Cause.EXHAUSTED)
        self.waiting = process.enqueue(stored[3], spec=SPEC)

    def check(self, world: World, process: Process) -> None:
        """What is not settled for good has its file."""
        for job, body in ((self.dead, BODIES[2]), (self.waiting, BODIES[3])):
            view = world.view(job)
            assert view is not None
            assert view.payload_flags == SPILLED
            assert spill_of(process).get(view.payload, "it") == body


def outgrow(world: World, process: Process) -> None:
    """The log is over its limit, and the files are old."""
    for _ in range(4):
        fill_segment(process)
    world.clock.advance(2 * HOUR)


def test_files_go_with_the_last_record_that_names_them() -> None:
    """Those of jobs that wait stay, and those of dead letters that are kept."""
    world = World(config=SMALL)
    process = world.process()
    jobs = Jobs(process)
    world.clock.advance(2 * HOUR)
    tend(process)
    assert process.disk.names(f"{PATH}/spill") == sorted(jobs.names)
    outgrow(world, process)
    tend(process)
    assert world.view(jobs.finished) is None
    assert process.disk.names(f"{PATH}/spill") == sorted(jobs.names[2:])
    jobs.check(world, process)
    (delivery,) = process.claim()
    assert (delivery.job, delivery.payload_flags) == (jobs.waiting, SPILLED)
    assert spill_of(process).get(delivery.stored_payload, "it") == BODIES[3]


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_upkeep_costs_no_file_that_is_named(power: bool) -> None:
    """And the next process that looks after the log comes to the end of it."""
    for cut in cuts(power=power, stride=31):
        world = World(cut.step, config=SMALL)
        process = world.process()
        jobs = Jobs(process)
        outgrow(world, process)
        with cut.during(world, process):
            tend(process)
        again = world.process()
        jobs.check(world, again)
        world.clock.advance(2 * HOUR)
        tend(again)
        jobs.check(world, again)
        assert again.disk.names(f"{PATH}/spill") == sorted(jobs.names[2:])
    assert cut.step > 20
