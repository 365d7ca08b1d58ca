"""When a storage thread may wait, and how long."""

from __future__ import annotations

from typing import Final

from taskq.core.model import SECOND_NS
from taskq.log.commit.answers import SOON
from taskq.log.commit.committer import LOOK_AROUND_NS, Committer
from taskq.log.commit.owners import CHECK_NS
from taskq.log.commit.survey import BatchNeeds
from taskq.log.requests import Request, Trait, ops_that

#: How soon settlements that the disk refused are tried again, and what waits for the next frame.
_HELD_SECONDS: Final = 0.5
#: Requests that outlive a wait for the lock: nobody waits for their answer with a time in mind.
PATIENT: Final = ops_that(Trait.PATIENT)
_KEPT_MAX: Final = 64


def seconds_until_due(committer: Committer) -> float:
    """Return seconds until something of the log falls due; infinite when nothing will."""
    clock, waiters = committer.journal.clock, committer.waiters
    limits = [float("inf")]
    if committer.undecided.held:
        limits.append(_HELD_SECONDS)
    listens = waiters.outcomes or waiters.growth or committer.operations.asks
    if listens or waiters.claims:
        # A sleeper looks by itself, too, should a wake-up ever be lost.
        limits.append(LOOK_AROUND_NS / SECOND_NS)
    if is_behind(committer):
        # A pause, should the disk refuse it again and again.
        limits.append(0.0 if waiters.claims else _HELD_SECONDS)
    if waiters.claims:
        agenda = committer.facets.agenda
        if agenda is not None:
            wall = clock.wall_ns()
            moments = (
                agenda.next_due_ns(), agenda.next_expiry_ns(), agenda.leases.next_ns(),
                agenda.next_rate_ns(),
            )  # fmt: skip
            limits += [(at - wall) / SECOND_NS for at in moments if at is not None]
        if committer.owners.all():
            limits.append(0.0 if committer.owners.left else CHECK_NS / SECOND_NS)
        steady = clock.steady_ns()
        limits += [
            (claim[0].wait_until_ns - steady) / SECOND_NS
            for claim in waiters.claims
            if claim[0].wait_until_ns is not None
        ]
    # Due work is tried at once, but not again and again on a full disk.
    return min(limits) if committer.room.refused is None else max(min(limits), _HELD_SECONDS)


def is_behind(committer: Committer) -> bool:
    """Return whether jobs are to be released or cancelled: the last frame had no room."""
    agenda = committer.facets.agenda
    return agenda is not None and bool(agenda.flows.todo or agenda.steps.orphans)


def may_wait(committer: Committer, requests: list[Request], needs: BatchNeeds) -> bool:
    """Return whether a batch of ``PATIENT`` requests may wait a moment for company.

    With few producers every other batch would hold nothing but the settlements of the jobs
    that the one before has handed out, while the next enqueues are a moment away.
    """
    if committer.waiters.outcomes:
        return False
    agenda = committer.facets.agenda
    if agenda is None or agenda.queues.any_ready() or len(requests) > _KEPT_MAX:
        return False
    return not needs.ops.isdisjoint(SOON)
