"""Deciding what becomes of a slice of an upload; under the writer lock.

Each job is decided by what decides every other enqueue, and how far the upload has come is written
in the same frame: whoever is killed when, no job is left out and none comes twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import TaskqError
from taskq.core.model import SECOND_NS
from taskq.log.adopted import UploadProgress
from taskq.log.requests import Duplicate, Plain

if TYPE_CHECKING:
    from taskq.log.batch import Batch
    from taskq.log.context import Context
    from taskq.log.enqueues import Enqueues
    from taskq.log.requests import Item, Slice

#: A slice ends when it took so long: others wait for the lock.
_SLICE_NS: Final = SECOND_NS // 250
#: Jobs between two looks at the clock: plain ones, and those with options.
_PLAIN_STEP: Final = 512
_ITEMS_STEP: Final = 32


class Uploads:
    """The decisions about uploads."""

    def __init__(self, context: Context, enqueues: Enqueues) -> None:
        self._clock = context.journal.clock
        self._facets = context.facets
        self._enqueues = enqueues

    def adopt(self, batch: Batch, piece: Slice) -> UploadProgress:
        """Enqueue as many of these as time allows; returns how far the upload has come.

        Nothing is done if it has not come to where the slice begins: somebody else was there.

        Raises:
            TaskqError: the first of them cannot be enqueued now.
        """
        before = self._progress(batch, piece)
        if before.done != piece.start:
            return before
        done, duplicates = 0, 0
        deadline_ns = self._clock.steady_ns() + _SLICE_NS
        try:
            for run in piece.runs:
                step = _PLAIN_STEP if isinstance(run, Plain) else _ITEMS_STEP
                count = len(run.bodies) if isinstance(run, Plain) else len(run)
                for start in range(0, count, step):
                    if done and self._clock.steady_ns() > deadline_ns:
                        return self._note(batch, before, done, duplicates)
                    duplicates += self._add(batch, run, start, start + step)
                    done += min(step, count - start)
        except TaskqError:
            if not done:
                raise
        return self._note(batch, before, done, duplicates)

    def _progress(self, batch: Batch, piece: Slice) -> UploadProgress:
        begun = batch.adopted.get(piece.upload)
        if begun is not None:
            return begun
        seen = self._facets.uploads
        seen.catch_up()
        found = seen.progress(piece.upload)
        if found is not None:
            return found[1]
        return UploadProgress(piece.upload, 0, piece.total, 0, batch.first_lsn)

    def _note(
        self, batch: Batch, before: UploadProgress, done: int, duplicates: int
    ) -> UploadProgress:
        after = before._replace(done=before.done + done, duplicates=before.duplicates + duplicates)
        batch.adopted[before.upload] = after
        return after

    def _add(self, batch: Batch, run: Plain | list[Item], start: int, stop: int) -> int:
        """Enqueue these; returns how many were left out."""
        if isinstance(run, Plain):
            self._enqueues.enqueue_run(batch, run.spec, run.bodies[start:stop])
            return 0
        answers = self._enqueues.many(batch, run[start:stop])
        return sum(isinstance(answer, Duplicate) for answer in answers)
