"""When a storage thread that has nothing to do must look again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.model import SECOND_NS
from taskq.log import otherowners

if TYPE_CHECKING:
    from taskq.log.committer import Committer

#: A sleeper looks by itself this often, should a wake-up ever be lost.
_FALLBACK_SECONDS: Final = 5.0
#: How soon settlements that the disk refused are tried again.
_HELD_SECONDS: Final = 0.5


def seconds_until_due(committer: Committer) -> float:
    """Seconds until something of the log falls due; infinite when nothing will."""
    clock = committer.journal.clock
    limits = [float("inf")]
    if committer.held:
        limits.append(_HELD_SECONDS)
    if committer.watchers or committer.waiting or committer.followers:
        limits.append(_FALLBACK_SECONDS)
    if committer.waiting:
        agenda = committer.facets.agenda
        if agenda is not None:
            wall = clock.wall_ns()
            moments = (agenda.next_due_ns(), agenda.next_expiry_ns(), agenda.leases.next_ns())
            limits += [(at - wall) / SECOND_NS for at in moments if at is not None]
        if committer.owners.all():
            limits.append(otherowners.CHECK_NS / SECOND_NS)
        steady = clock.steady_ns()
        limits += [
            (claim[0].wait_until_ns - steady) / SECOND_NS
            for claim in committer.waiting
            if claim[0].wait_until_ns is not None
        ]
    return min(limits)
