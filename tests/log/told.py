"""What the folds of a process say, in words that two processes can compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskq.log.facets import Facets
from taskq.log.snapshots import Snapshots

if TYPE_CHECKING:
    from taskq.core.jobtable import JobTable
    from tests.log.world import Process, World

_SPANS_NS: Final = (0, 10**9, 60 * 10**9, 3_600 * 10**9, 10**17)
_OFFSET: Final = 2**32


def folded(world: World, *, trusts_snapshots: bool) -> Facets:
    """The folds of somebody who wrote nothing, with the help of snapshots or without."""
    facets = Facets(world.reader())
    facets.trusts_snapshots = trusts_snapshots
    facets.need_agenda()
    facets.need_dedup()
    return facets


def told(facets: Facets, now_ns: int) -> dict[str, Any]:
    """All that a decision is made from, now and later. The folds are of no use afterwards."""
    agenda, dedup = facets.agenda, facets.dedup
    assert agenda is not None
    assert dedup is not None
    ready = []
    for span_ns in _SPANS_NS:
        agenda.promote(now_ns + span_ns, 2**62)
        ready.append(agenda.next_ready(10**6, None))
    return {
        "jobs": _rows(facets, agenda.table),
        "dead": _rows(facets, agenda.dead),
        "running": agenda.running,
        "leases": agenda.leases.all(),
        "stats": agenda.stats(),
        "floor": agenda.floor_lsn,
        "ready": ready,
        "keys": [
            (hashed, job, _place(facets, location), until)
            for page in dedup._pages
            for hashed, job, location, until in zip(*page.columns(), strict=True)
            if until + dedup.shift_ns > now_ns
        ],
        "expired": sorted(agenda.expired(2**62, 2**62)),
    }


def _rows(facets: Facets, table: JobTable) -> list[tuple[object, ...]]:
    agenda = facets.agenda
    assert agenda is not None
    return [
        (chunk.ids[at], _place(facets, chunk.locations[at]), chunk.metas[at],
         agenda.lanes[chunk.lanes[at]].key)
        for chunk, at in table
    ]  # fmt: skip


def _place(facets: Facets, location: int) -> tuple[int, int]:
    return facets._journal.files.segment_at(location), location % _OFFSET


def check_same(world: World) -> Facets:
    """With snapshots and without: the same. Returns the folds that were begun with them."""
    now_ns = world.clock.wall_ns()
    with_snapshots = folded(world, trusts_snapshots=True)
    told_with = told(with_snapshots, now_ns)
    assert told_with == told(folded(world, trusts_snapshots=False), now_ns)
    return with_snapshots


def write(process: Process) -> list[str]:
    """Write a snapshot of what the process has folded; returns the names that there are then."""
    for _ in Snapshots(process.committer).write_steps():
        pass
    return names(process.world)


def names(world: World) -> list[str]:
    """The snapshots on the disk, and what is left of writing any."""
    found = [path.rpartition("/")[2] for path in world.machine.paths() if "/snapshot/" in path]
    return [name for name in found if name != "lock"]
