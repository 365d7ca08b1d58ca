"""Keeping the log in order while it is used: indexes, snapshots, compaction.

All of it is done in steps of about a millisecond on the storage thread, between batches and while
there is nothing else to do; nothing of it is needed for correctness, and it may end at any step.
What has to be written goes through ordinary batches. One process of those that share a directory
does it at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.errors import LogDamaged, TaskqError
from taskq.core.model import SECOND_NS
from taskq.log.compaction import Compaction
from taskq.log.errand import Errand, Errands
from taskq.log.keeper import Keeper
from taskq.log.requests import Op
from taskq.log.retention import Due, Pinned, due
from taskq.log.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Generator

    from taskq.log.committer import Committer
    from taskq.log.survey import Request

    Steps = Generator[Errand | None, None, None]

_log: Final = logging.getLogger("taskq")
#: How often a process looks whether there is anything to do, besides after each new segment.
LOOK_NS: Final = 10 * SECOND_NS
#: After trouble (disk full, log locked) upkeep waits so long.
TROUBLE_NS: Final = 30 * SECOND_NS


class Compacted(NamedTuple):
    """What a compaction did."""

    #: segments that went
    segments: int
    #: their bytes
    freed_bytes: int
    #: jobs that were written again
    carried: int


class Upkeep:
    """What one process does for the log."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._journal = committer.journal
        self._errands = Errands()
        self._steps: Steps | None = None
        self._lock = -1
        self._look_at_ns = 0
        self._looked_segment = 0
        #: a size of the log before which it does not pay to try again to make it smaller
        self._patience_bytes = 0
        self._complained: set[object] = set()

    @property
    def busy(self) -> bool:
        """Whether there are steps to do now."""
        return self._steps is not None

    def seconds_until_look(self) -> float:
        """Until there may be something to do; infinite in a process that leaves it to others."""
        if self._committer.facets.agenda is None:
            return float("inf")
        return max(self._look_at_ns - self._journal.clock.steady_ns(), 0) / SECOND_NS

    def step(self) -> list[Request]:
        """Do a millisecond's worth; returns what is to be committed in the next batch, mostly none.

        Raises nothing: trouble is logged, and looked at again later.
        """
        if self._steps is None and not self._wants_to_look():
            return []
        if self._steps is None:
            self._steps = self._work()
        try:
            errand = next(self._steps)
        except StopIteration:
            self._stop()
            return []
        except LogDamaged as error:
            self._complain(error.args, "%s", error)
            self._stop(TROUBLE_NS)
            return []
        except (TaskqError, OSError) as error:
            _log.warning("%s: upkeep waits a while: %s", self._journal.path, error)
            self._stop(TROUBLE_NS)
            return []
        return [] if errand is None else [errand.request]

    def close(self) -> None:
        """Let another process do it."""
        self._stop()

    def _wants_to_look(self) -> bool:
        if self._committer.facets.agenda is None:
            return False  # whoever only enqueues leaves it to the workers
        now = self._journal.clock.steady_ns()
        if now < self._look_at_ns and self._looked_segment == self._journal.segment:
            return False
        self._look_at_ns = now + LOOK_NS
        self._looked_segment = self._journal.segment
        return True

    def _stop(self, pause_ns: int = LOOK_NS) -> None:
        self._steps = None
        if self._lock >= 0:
            self._journal.disk.close(self._lock)  # and with it the lock goes
            self._lock = -1
        self._look_at_ns = self._journal.clock.steady_ns() + pause_ns

    def _take_turn(self) -> bool:
        """Whether this process is the one that does it."""
        disk = self._journal.disk
        self._lock = disk.open(f"{self._journal.path}/upkeep.lock", create=True)
        if disk.try_lock(self._lock):
            return True
        disk.close(self._lock)
        self._lock = -1
        return False

    # -- what there is to do ----------------------------------------------------------------------

    def _work(self) -> Steps:
        if not self._take_turn():
            return
        yield from self._compact(self._journal.config.keep_seconds)

    def _compact(self, keep_seconds: float | None) -> Steps:
        """Let segments go for as long as the policy says that the oldest may."""
        yield from self._drop()
        while True:
            journal = self._journal
            found = due(
                journal,
                journal.clock.wall_ns(),
                is_pressed=self._committer.room.pressed,
                keep_seconds=keep_seconds,
            )
            if isinstance(found, Pinned):
                self._complain(
                    found,
                    "%s: %s stays although it is due: the reader %r has not read it",
                    journal.path, segment_name(found.segment), found.reader,
                )  # fmt: skip
                return
            if found is None or not self._may_pay(found):
                return
            if not (yield from self._compact_one(found, keep_seconds)):
                return

    def _may_pay(self, found: Due) -> bool:
        return found.needed_bytes_max is None or (
            self._journal.files.total_size() >= self._patience_bytes
        )

    def _compact_one(
        self, found: Due, keep_seconds: float | None
    ) -> Generator[Errand | None, None, bool]:
        """Whether the segment went."""
        keeper = Keeper(
            self._committer,
            keep_seconds=keep_seconds,
            drops_finished=found.drops_finished,
            now_ns=self._journal.clock.wall_ns(),
        )
        compaction = Compaction(self._committer, self._errands, found.segment, keeper)
        files = self._journal.files
        total = files.total_size()
        yield from compaction.steps(found.needed_bytes_max)
        went = yield from self._drop()
        if not went:
            # Most of it is needed still: once the log has grown by as much, it may be otherwise.
            self._patience_bytes = total + self._journal.config.segment_bytes_now
        return went > 0

    def _drop(self) -> Generator[Errand | None, None, int]:
        """Remove the segments that the log itself says may go; returns how many went."""
        went = 0
        while True:
            floor_lsn = self._committer.facets.need_agenda().floor_lsn
            self._journal.files.refresh()
            lsns = self._journal.files.lsns
            if len(lsns) < 2 or lsns[1] > floor_lsn:  # noqa: PLR2004 - the last one stays
                return went
            # Whether another process has synced what says so is not known here.
            self._committer.sync()
            errand = self._errands.make(Op.DROP, lsns[0])
            yield from errand.wait()
            if not errand.value:
                return went
            went += 1

    def _complain(self, about: object, text: str, *values: object) -> None:
        """Warn once."""
        if about not in self._complained:
            self._complained.add(about)
            _log.warning(text, *values)
