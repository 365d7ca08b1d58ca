"""Records and the files that they name, through crashes at any step and collections at any time."""

from __future__ import annotations

import random
from typing import Final

import pytest

from taskq.core.errors import LogError, SpillMissing
from taskq.core.records import Flag, Kind
from taskq.log.requests import ClaimRequest, EnqueueSpec, OldFile, Op, Settlement
from taskq.log.segments.spill import Spill, collect, decode_reference, old_files
from tests.effort import grows, some
from tests.log.tending import finish
from tests.log.world import PATH, Process, World, cuts
from tests.machine.crashable import PowerLost, ProcessKilled

pytestmark = grows

SPILLED: Final = int(Flag.SPILLED)
SPEC: Final = EnqueueSpec(task="mail.send", attempts=0).packed(SPILLED)
HOUR: Final = 3_600.0
BODIES: Final = [b"large body %d " % number * 40 for number in range(4)]


def files_of(process: Process) -> Spill:
    return Spill(PATH, lambda: process.disk)


def digest(stored: bytes) -> bytes:
    return decode_reference(stored, "it").digest


def named(world: World) -> set[bytes]:
    """Return what the records in the log say of files."""
    return {
        record.body
        for record in world.records()
        if record.flags & SPILLED and record.body is not None
    }


def check(world: World, process: Process) -> set[bytes]:
    """Every file that a record names reads back; returns what the records say."""
    stored = named(world)
    for record in stored:
        assert files_of(process).get(record, "it") in BODIES
    return stored


@pytest.mark.parametrize("power", [True, False])
def test_no_crash_leaves_a_record_that_names_a_file_which_is_not_there(power: bool) -> None:
    """At every step of: put a payload, enqueue it, claim it, put a result, settle."""
    for cut in cuts(power=power):
        for seed in range(some(3, 8)):
            world = World(seed)
            process = world.process()
            process.enqueue(b"first")
            kept: set[bytes] = set()
            with cut.during(world, process):
                stored = files_of(process).put(BODIES[0])
                process.enqueue(stored, spec=SPEC)
                kept.add(stored)
                delivery = process.claim(2)[-1]
                result = files_of(process).put(BODIES[1])
                process.settle(delivery, body=result, flags=SPILLED)
                kept.add(result)
            if not cut.came:
                world.lose_power()
            again = world.process()
            again.journal.unlock()
            records = check(world, again)
            assert kept <= records
            # What no record names is collected, the rest stays.
            world.clock.advance(2 * HOUR)
            old = finish(old_files(again.disk, PATH, world.clock.wall_ns()))
            finish(collect(again.disk, PATH, old, {digest(record) for record in records}))
            assert len(again.disk.names(f"{PATH}/spill")) == len(records)
            check(world, again)
    assert cut.step > 12


class Town:
    """Processes that put, enqueue, settle and collect at random, on a machine that may fail.

    A settled job is forgotten at once, as if compaction had removed all that was said of it.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed)
        self.processes = [self.world.process()]
        #: put, and not enqueued yet
        self.loose: list[tuple[Process, bytes]] = []
        self.enqueued: set[int] = set()
        self.collecting: tuple[Process, list[OldFile], set[bytes] | None] | None = None
        self.removed = self.refused = 0

    def act(self) -> None:
        acts = [
            self.put, self.put, self.enqueue, self.enqueue, self.settle, self.pass_time,
            self.collect, self.collect, self.collect, self.appear, self.crash, self.step_clock,
        ]  # fmt: skip
        try:
            self.chance.choice(acts)()
        except PowerLost:
            self._power_is_gone()
        except ProcessKilled:
            for process in [process for process in self.processes if process.disk.is_dead]:
                self._bury(process)
        if not self.processes:
            self.appear()

    def put(self) -> None:
        process = self.chance.choice(self.processes)
        self.loose.append((process, files_of(process).put(self.chance.choice(BODIES))))

    def enqueue(self) -> None:
        """What was put long ago may be gone: then the caller is told, and nothing is written."""
        if not self.loose:
            return
        process, stored = self.loose.pop(self.chance.randrange(len(self.loose)))
        try:
            self.enqueued.add(process.enqueue(stored, spec=SPEC))
        except SpillMissing:
            self.refused += 1

    def settle(self) -> None:
        process = self.chance.choice(self.processes)
        answer = process.ask(Op.CLAIM, ClaimRequest(1, wait_until_ns=0))
        for delivery in answer:
            assert files_of(process).get(delivery.stored_payload, "it") in BODIES
            process.ask(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery)])

    def pass_time(self) -> None:
        self.world.clock.advance(self.chance.choice((1.0, HOUR / 2, 2 * HOUR)))

    def step_clock(self) -> None:
        self.world.clock.step(self.chance.choice((-50, -2, 2, 50)) * HOUR)

    def appear(self) -> None:
        if len(self.processes) < 3:
            self.processes.append(self.world.process())

    def crash(self) -> None:
        machine = self.world.machine
        machine.stop_at(
            machine.steps + self.chance.randrange(1, 12), power=self.chance.random() < 0.3
        )

    def collect(self) -> None:
        """One step of the collection that runs, or the first of another."""
        if self.collecting is None:
            process = self.chance.choice(self.processes)
            old = finish(old_files(process.disk, PATH, self.world.clock.wall_ns()))
            self.collecting = process, old, None
            return
        process, old, referenced = self.collecting
        if referenced is None:
            process.journal.refresh()
            referenced = {digest(stored) for stored in self._still_named()}
            self.collecting = process, old, referenced
            return
        if not old:
            self.collecting = None
            return
        process.journal.lock()
        try:
            self.removed += finish(collect(process.disk, PATH, old[:1], referenced))
        finally:
            process.journal.unlock()
        self.collecting = process, old[1:], referenced

    def _still_named(self) -> list[bytes]:
        """Return what unsettled jobs name, those of callers who were never answered among them."""
        ended = {record.job for record in self.world.records() if record.kind == Kind.SUCCEEDED}
        return [
            record.body
            for record in self.world.records()
            if record.flags & SPILLED and record.body is not None and record.lsn not in ended
        ]

    def check(self) -> None:
        reader = files_of(self.processes[0])
        assert self.enqueued <= {record.lsn for record in self.world.records()}
        for stored in self._still_named():
            assert reader.get(stored, "it") in BODIES

    def _bury(self, process: Process) -> None:
        process.kill()
        self.processes.remove(process)
        self.loose = [item for item in self.loose if item[0] is not process]
        if self.collecting is not None and self.collecting[0] is process:
            self.collecting = None

    def _power_is_gone(self) -> None:
        self.world.everyone_is_gone()
        self.processes.clear()
        self.loose.clear()
        self.collecting = None


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 70), marks=pytest.mark.slow)])
def test_no_unsettled_job_ever_loses_its_file(seeds: range) -> None:
    """Whoever puts, enqueues late, dies or collects; whatever the clock says meanwhile."""
    removed = refused = 0
    for seed in seeds:
        town = Town(seed)
        for _ in range(120):
            town.act()
        town.world.machine.stop_at(None)
        town.check()
        removed += town.removed
        refused += town.refused
    assert removed > 20
    assert refused


def test_a_log_error_is_what_a_late_enqueue_gets(world: World) -> None:
    """Its neighbours in the batch are enqueued all the same."""
    process = world.process()
    stored = files_of(process).put(BODIES[0])
    process.disk.remove(f"{PATH}/spill/{digest(stored).hex()}")
    first, late, last = (
        process.send(Op.ENQUEUE, (spec, body, None))
        for spec, body in ((EnqueueSpec(), b"a"), (SPEC, stored), (EnqueueSpec(), b"b"))
    )
    many = process.send(Op.ENQUEUE_MANY, [(EnqueueSpec(), b"c", None), (SPEC, stored, None)])
    process.sync()
    assert (first.result(0), last.result(0)) == (1, 2)
    for refused in (late, many):
        with pytest.raises(LogError, match="nothing was written, try again"):
            refused.result(0)
    assert len([record for record in world.records() if record.kind == Kind.ENQUEUED]) == 2
