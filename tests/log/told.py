"""The contents of a process's folds, in a form that two processes can compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from taskq.core.folds.jobtable import META_BACK, JobTable
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.journal.journal import Journal
from taskq.log.requests import EnqueueSpec
from taskq.log.state.facets import Facets
from taskq.log.upkeep.snapshots import Snapshots
from tests.log.world import PLAIN, Process, World

_SPANS_NS: Final = (0, 10**9, 60 * 10**9, 3_600 * 10**9, 10**17)
_OFFSET: Final = 2**32
OTHER: Final = EnqueueSpec("mail", "send", 9, 2)
_HOUR: Final = Extras(due_ns=3_600 * SECOND_NS)


def folded(world: World, *, trusts_snapshots: bool) -> Facets:
    return fold_of(world.reader(), trusts_snapshots=trusts_snapshots)


def fold_of(journal: Journal, *, trusts_snapshots: bool) -> Facets:
    facets = Facets(journal)
    facets.trusts_snapshots = trusts_snapshots
    facets.need_agenda()
    facets.need_dedup()
    return facets


def told(facets: Facets, now_ns: int) -> dict[str, Any]:
    agenda, dedup = facets.agenda, facets.dedup
    assert agenda is not None
    assert dedup is not None
    ready = []
    for span_ns in _SPANS_NS:
        agenda.promote(now_ns + span_ns, 2**62)
        ready.append(agenda.order.next_ready(10**6, None))
    return {
        "jobs": _rows(facets, agenda.table),
        "dead": _rows(facets, agenda.dead),
        "running": agenda.running,
        "leases": agenda.leases.all(),
        "asked": agenda.leases.asked,
        "stats": agenda.queues.stats(),
        "steps": _steps(facets),
        "floor": agenda.floor_lsn,
        "sources": agenda.sources,
        "ready": ready,
        "keys": [
            (hashed, job, _place(facets, location), until)
            for page in dedup._pages
            for hashed, job, location, until in zip(*page.columns(), strict=True)
            if until < 0 or until + dedup.shift_ns > now_ns
        ],
        "expired": sorted(agenda.expired(2**62, 2**62)),
    }


def _steps(facets: Facets) -> list[object]:
    agenda = facets.agenda
    assert agenda is not None
    steps = agenda.steps
    return [
        {job: [_place(facets, at) for at in places] for job, places in steps.places.items()},
        {
            job: [(it[:3], _place(facets, it.location)) for it in many]
            for job, many in steps.signals.items()
        },
        steps.taken, steps.waits, steps.begun,
    ]  # fmt: skip


def _rows(facets: Facets, table: JobTable) -> list[tuple[object, ...]]:
    agenda = facets.agenda
    assert agenda is not None
    # A place by number or beside the numbers is the same: see "ready".
    return [
        (chunk.ids[at], _place(facets, chunk.locations[at]), chunk.metas[at] & ~META_BACK,
         agenda.lanes[chunk.lanes[at]].key)
        for chunk, at in table
    ]  # fmt: skip


def _place(facets: Facets, location: int) -> tuple[int, int]:
    return facets._journal.files.segment_at(location), location % _OFFSET


class Folded(NamedTuple):
    """Counts of records that two folds of one log met: one began with a snapshot, one did not."""

    behind: int
    total: int


def check_same(world: World, *, loosely: bool = False) -> Folded:
    """With snapshots and without the folds say the same.

    ``loosely``: the clock may have fallen, and a process seen a job ready that waits again.
    """
    now_ns = world.clock.wall_ns()
    some = folded(world, trusts_snapshots=True)
    every = folded(world, trusts_snapshots=False)
    told_some, told_all = told(some, now_ns), told(every, now_ns)
    if loosely:
        for row in (told_some, told_all):
            row["ready"] = row["stats"] = None
            row["jobs"] = [(job, place) for job, place, *_ in row["jobs"]]
    assert told_some == told_all
    return Folded(some.caught_up, every.caught_up)


def write(process: Process) -> list[str]:
    for _ in Snapshots(process.committer).write_steps():
        pass
    return names(process.world)


def names(world: World) -> list[str]:
    seen = [path.rpartition("/")[2] for path in world.machine.paths() if "/snapshot/" in path]
    return [name for name in seen if name != "lock"]


def fill(process: Process) -> None:
    for number in range(12):
        process.enqueue(b"plain %d" % number, spec=OTHER if number % 3 else PLAIN)
    for number in range(4):
        process.offer(b"keyed", Extras(key=b"key %d" % number, window_ns=number * 10**10))
    process.enqueue(b"later", _HOUR)
    process.enqueue(b"soon", Extras(due_ns=SECOND_NS, expires_ns=60 * SECOND_NS))
    for number, delivery in enumerate(process.claim(6)):
        kind = (Kind.SUCCEEDED, Kind.DEAD, Kind.RETRIED)[number % 3]
        process.settle(delivery, kind, delay_ns=SECOND_NS if kind is Kind.RETRIED else 0)
    process.claim(2)
    process.catch_up()


def grow(process: Process) -> None:
    for delivery in process.claim(3):
        process.settle(delivery)
    process.enqueue(b"after", Extras(key=b"key of %d" % process.journal.next_lsn))
    process.catch_up()


def exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
