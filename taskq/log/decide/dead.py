"""Requeue and purge of dead letters, decided under the writer lock.

Requeued letters were read from the log before, without the lock (``letters``). So each is looked at
again here: of several processes that requeue the same one, the first does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import KeyHeld, LogDamaged, NotDead, TaskqError
from taskq.core.folds.agenda import forget_dead
from taskq.core.folds.dedup import UNTIL_SETTLED, key_hash
from taskq.core.kinds import REMOVAL, REVIVAL, after
from taskq.core.model import State
from taskq.core.records import Flag
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried
from taskq.log.format.flows import is_of_flow
from taskq.log.format.options import enqueue_extras, queue_of, unexpiring
from taskq.log.machine.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.state.fold import fold_carried

if TYPE_CHECKING:
    from taskq.log.decide.context import Batch, Context
    from taskq.log.decide.ends import Ends
    from taskq.log.decide.enqueue import Keys
    from taskq.log.requests import Letter

_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
_AGAIN: Final = after(State.DEAD, REVIVAL)


class DeadLetters:
    """The decisions of one process about dead letters."""

    def __init__(self, context: Context, ends: Ends, keys: Keys) -> None:
        self._context = context
        self._facets = context.facets
        self._recent = context.recent
        self._ends = ends
        self._keys = keys

    def requeue(self, batch: Batch, letters: list[Letter]) -> list[TaskqError | None]:
        """Make dead letters ready again: for each None, or why it was not done."""
        answers: list[TaskqError | None] = []
        for letter in letters:
            try:
                self._requeue(batch, letter)
            except TaskqError as refusal:
                answers.append(refusal)
            else:
                answers.append(None)
        return answers

    def purge(self, batch: Batch, jobs: list[int]) -> list[TaskqError | None]:
        """Forget dead letters: for each None, or why it was not done."""
        agenda = self._context.agenda
        answers: list[TaskqError | None] = []
        for job in jobs:
            if agenda.dead.find(job) is None:
                answers.append(self._not_dead(job))
                continue
            options = self._purged(batch, job)
            batch.add(codec.encode_job(REMOVAL, 0, 0, job, 0, options=options))
            forget_dead(agenda, job)
            agenda.steps.drop(job)
            batch.interest |= INTEREST_OUTCOME
            answers.append(None)
        return answers

    def _requeue(self, batch: Batch, letter: Letter) -> None:
        """Make one ready again.

        Raises:
            TaskqError: it is not dead any more, or may not hold its key; nothing was added.
        """
        job = letter.job
        agenda = self._context.agenda
        if agenda.dead.find(job) is None:
            raise self._not_dead(job)
        key_until_ns = self._check_key(batch, letter) if letter.has_options else 0
        born = unexpiring(letter.born, job)
        location = batch.where + batch.size
        carried = Carried(
            job=job, state=_AGAIN, born=born, enqueued_ns=letter.enqueued_ns,
            history=letter.history, key_until_ns=key_until_ns, waited=self._ends.again(born),
            awaiting=agenda.steps.awaiting(job, agenda.times.shift_ns),
        )  # fmt: skip
        batch.add(encode_carried(REVIVAL, carried, batch.lsn))
        fold_carried(REVIVAL, carried, location, batch.time_ns, agenda, self._facets.dedup)
        # It may be claimed in this very batch, when it is in no file yet.
        self._recent.add(job, born)
        batch.interest |= INTEREST_READY

    def _purged(self, batch: Batch, job: int) -> bytes:
        flows, dead = self._context.agenda.flows, self._context.agenda.dead
        chunk = dead.find(job)
        if not flows.held or chunk is None:
            return b""
        try:
            record = self._recent.record(job, chunk.locations[dead.index])
        except LogDamaged:
            return b""
        return self._ends.ending(batch, REMOVAL, job, record) if is_of_flow(record) else b""

    def _check_key(self, batch: Batch, letter: Letter) -> int:
        """Make sure that the job may hold its key again, if it has one.

        Returns:
            Wall time at which its window for the key ends; 0 if it has none.

        Raises:
            KeyHeld: another job holds the key.
            UsageError: the table of keys is full.
        """
        key = enqueue_extras(letter.born).key
        if key is None:
            return 0
        dedup, queue = self._context.dedup, queue_of(letter.born)
        hashed = key_hash(queue, key)
        until_ns = dedup.until_ns(hashed, letter.job)
        if codec.PREFIX.unpack_from(letter.born)[4] & _KEYED:
            holder = self._keys.holder(queue, key, hashed, batch.time_ns, itself=letter.job)
            if holder is not None:
                tag = self._context.tag
                raise KeyHeld(f"{tag}-{letter.job}", f"{tag}-{holder}")
            if not until_ns:
                self._keys.check_room(batch, 1)
        # A window alone began when the job was enqueued, and says nothing of running it again.
        return 0 if until_ns == UNTIL_SETTLED else until_ns

    def _not_dead(self, job: int) -> NotDead:
        state = self._context.agenda.table.state(job)
        return NotDead(
            f"{self._context.tag}-{job}", state.name.lower() if state else "", self._facets.path
        )
