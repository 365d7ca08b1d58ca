"""Who holds a dedup key, and what becomes of it when another job comes with the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.dedup import key_hash
from taskq.core.errors import DuplicateKey, LogDamaged
from taskq.core.model import WAITING_STATES, Conflict
from taskq.core.records import Cause, Kind
from taskq.log.options import enqueue_extras, queue_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq.core.model import Extras
    from taskq.log.batch import Batch
    from taskq.log.context import Context
    from taskq.log.ends import Ends
    from taskq.log.requests import EnqueueSpec

_NOBODY: Final[frozenset[int]] = frozenset()


class Wanted:
    """The key of a job to be enqueued.

    Attributes:
        queue, key: what it is, in bytes.
        hashed: what the table knows it by.
        window_ns, until_settled: for how long it will be held.
        conflict: what to do if somebody else holds it.
    """

    __slots__ = ("conflict", "hashed", "key", "queue", "until_settled", "window_ns")

    def __init__(self, spec: EnqueueSpec, key: bytes, extras: Extras) -> None:
        self.queue = spec.route[: spec.lane_key[0]]
        self.key = key
        self.hashed = key_hash(self.queue, key)
        self.window_ns = extras.window_ns
        self.until_settled = extras.until_settled or not extras.window_ns
        self.conflict = extras.on_conflict


class Keys:
    """The decisions about keys."""

    def __init__(self, context: Context, ends: Ends) -> None:
        self._context = context
        self._ends = ends
        self._keys_max = context.journal.config.keys_max

    def check(
        self, batch: Batch, wanted: Iterable[Wanted], ending: frozenset[int] = _NOBODY
    ) -> None:
        """Refuse jobs that are to be enqueued together, before anything of them is added.

        ``ending`` are jobs that will be settled before these are added.

        Raises:
            UsageError: the table of keys has no room for them.
            DuplicateKey: a key is held, and its job asked to be refused then.
        """
        places: dict[tuple[bytes, bytes], Wanted] = {}
        for one in wanted:
            place = one.queue, one.key
            if one.conflict is Conflict.RAISE:
                holder = self._holder(batch, one, ending)
                if holder is not None or place in places:
                    raise self._error(one, holder)
            places[place] = one
        count = len(places)
        if self._context.dedup.size + count > self._keys_max:
            # Only now it matters which of them are in the table, and bring no key more.
            count = sum(self._holder(batch, one) is None for one in places.values())
        if count:
            self.check_room(batch, count)

    def check_room(self, batch: Batch, count: int) -> None:
        """Refuse so many more keys.

        Raises:
            UsageError: the table of keys has no room for them.
        """
        self._context.dedup.check_room(batch.time_ns, count, self._keys_max)

    def make_way(self, batch: Batch, wanted: Wanted) -> tuple[int | None, int]:
        """(the job that keeps the key, the job that gives it up); None and 0 for nobody.

        One that is asked to give the key up does so unless it runs; if it waits, it is cancelled.
        """
        holder = self._holder(batch, wanted)
        if holder is None or wanted.conflict is not Conflict.REPLACE:
            return holder, 0
        agenda = self._context.agenda
        if agenda.table.find(holder) is not None:
            if agenda.table.state(holder) not in WAITING_STATES:
                return holder, 0
            attempt = agenda.attempt(holder)
            self._ends.end(batch, Kind.CANCELLED, Cause.REPLACED, holder, 0, attempt, None)
        self._context.dedup.apply_dropped(wanted.hashed, holder)
        return None, holder

    def take(self, batch: Batch, wanted: Wanted, job: int, location: int) -> None:
        """The job that is being added holds its key from now on."""
        self._context.dedup.apply_taken(
            wanted.hashed, job, location, wanted.window_ns, batch.time_ns,
            until_settled=wanted.until_settled,
        )  # fmt: skip

    def _error(self, wanted: Wanted, holder: int | None) -> DuplicateKey:
        job_id = "" if holder is None else f"{self._context.tag}-{holder}"
        return DuplicateKey(wanted.queue.decode("utf-8", "replace"), wanted.key, job_id)

    def _holder(self, batch: Batch, wanted: Wanted, ending: frozenset[int] = _NOBODY) -> int | None:
        return self.holder(wanted.queue, wanted.key, wanted.hashed, batch.time_ns, ending)

    def holder(
        self,
        queue: bytes,
        key: bytes,
        hashed: int,
        now_ns: int,
        ending: frozenset[int] = _NOBODY,
        itself: int = 0,
    ) -> int | None:
        """The job that holds a key, verified against its record; ``itself`` does not count.

        Nor do those that are ``ending``, if that frees the key.
        """
        dedup = self._context.dedup
        for job, location in dedup.holders(hashed, now_ns):
            if job == itself or (job in ending and dedup.would_free(hashed, job, now_ns)):
                continue
            try:
                record = self._context.recent.record(job, location)
            except LogDamaged:
                return job  # it cannot be verified; running it twice would be worse
            if queue_of(record) == queue and enqueue_extras(record).key == key:
                return job
        return None
