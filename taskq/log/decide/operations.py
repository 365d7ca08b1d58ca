"""From a request to records in the batch, and the same change applied to the facets.

The writer lock is held and the facets are caught up, so every decision sees the whole log. A
decider either raises before it has added anything, or adds everything of its request. Each holds
the ``Context`` and the deciders above it in ``Operations.__init__``, none below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskq.log.decide.cancel import Cancels
from taskq.log.decide.carry import Edits, Rewrites
from taskq.log.decide.claim import Claims
from taskq.log.decide.context import Batch, Context
from taskq.log.decide.dead import DeadLetters
from taskq.log.decide.ends import Ends
from taskq.log.decide.enqueue import Enqueues, Keys, Uploads
from taskq.log.decide.listeners import Asks, Deaths
from taskq.log.decide.queues import Queues, Ticks
from taskq.log.decide.settle import Elsewhere, Settles, Transactions
from taskq.log.decide.steps import Steps
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import Op

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import Facets


class Operations:
    """The deciders of one process.

    Attributes:
        table: operation -> decider. Claims and settlements without an answer are missing: they have
            more than one answer or none; so are operations without a decision.
    """

    def __init__(self, journal: Journal, facets: Facets, owner: int, description: bytes) -> None:
        self.context = context = Context(journal, facets, owner)
        self.deaths = Deaths(context.tag)
        self.asks = Asks(context)
        self.ends = ends = Ends(context, self.deaths)
        keys = Keys(context, ends)
        self.enqueues = enqueues = Enqueues(context, keys)
        self.claims = Claims(context, ends, description)
        steps = Steps(context, ends, enqueues)
        self.settles = Settles(context, ends, enqueues, self.deaths, steps)
        self.cancels = Cancels(context, ends)
        queues, ticks = Queues(context), Ticks(context, enqueues)
        letters, rewrites = DeadLetters(context, ends, keys), Rewrites(context)
        bundles = Transactions(context, enqueues, self.cancels, self.settles)
        self.table: dict[int, Callable[[Batch, Any], object]] = {
            Op.ENQUEUE: enqueues.one,
            Op.ENQUEUE_RUN: enqueues.run,
            Op.ENQUEUE_MANY: enqueues.many,
            Op.ADOPT: Uploads(context, enqueues).adopt,
            Op.EXTEND: self.claims.extend,
            Op.SETTLE: self.settles.settle_each,
            Op.SETTLE_PARENTS: self.settles.settle_each,
            Op.SETTLE_FOR: Elsewhere(context, ends, self.claims, self.settles).settle_for,
            Op.TRANSACT: bundles.transact,
            Op.CANCEL: self.cancels.cancel,
            Op.WITHDRAW: self.cancels.withdraw,
            Op.EDIT: Edits(context, keys).edit,
            Op.STEP: steps.step,
            Op.ASK: steps.step,
            Op.WAIT: steps.begin,
            Op.ROOM: lambda *_: None,
            Op.SIGNAL: steps.signal,
            Op.FORK: steps.fork,
            Op.PAUSE: queues.pause,
            Op.RESUME: queues.resume,
            Op.TICK: ticks.tick,
            Op.ENROL: ticks.enrol,
            Op.STEER: ticks.steer,
            Op.REQUEUE: letters.requeue,
            Op.PURGE: letters.purge,
            Op.CARRY: rewrites.carry,
            Op.TALLY: rewrites.tally,
            Op.COMPACTED: rewrites.finish,
            Op.DROP: lambda _, segment: rewrites.drop(segment),
        }

    @property
    def has_listeners(self) -> bool:
        """Return whether anybody listens for deaths, or for requests to stop a job."""
        return bool(self.asks) or self.deaths.has_listeners

    def forget(self) -> None:
        self.context.recent.clear()
        self.deaths.forget()
        self.claims.forget()

    def tell_of_deaths(self, batch: Batch) -> None:
        if self.deaths:
            self.deaths.enqueue(batch, self.enqueues)

    def close(self, batch: Batch) -> None:
        """Add what stands at the end of a batch, and say whom else to wake for it."""
        agenda = self.context.facets.agenda
        if agenda is not None and agenda.groups.freed and agenda.groups.is_freed():
            batch.interest |= INTEREST_READY  # a place is free that nobody here takes
        batch.close()
