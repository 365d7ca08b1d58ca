"""Keep the log in order while it is in use: indexes, snapshots, compaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Final

from taskq.core import errors, model, views
from taskq.log.commit import answers, committer, room
from taskq.log.format.frames import segment_name
from taskq.log.machine.threads import Reporter
from taskq.log.read import history
from taskq.log.requests import Op, Order, Request
from taskq.log.segments.segments import SegmentGone, sweep_gone
from taskq.log.state.job_history import note_dropped
from taskq.log.upkeep import compaction, retention, snapshots


class Report:
    """Work done so far by a compaction."""

    def __init__(self, *, dry_run: bool = False, by_hand: bool = False) -> None:
        self.dry_run: bool = dry_run
        self.by_hand: bool = by_hand
        self.carried = 0
        self._segments: list[views.CompactedSegment] = []

    @property
    def gone(self) -> int:
        return sum(segment.removed for segment in self._segments)

    def note(self, segment: int, size: int, needed: int, reason: str, *, removed: bool) -> None:
        self._segments.append(
            views.CompactedSegment(
                segment=segment_name(segment), size=size, needed=needed, reason=reason,
                removed=removed,
            )
        )  # fmt: skip

    def made(self) -> views.CompactReport:
        return views.CompactReport(
            segments=tuple(self._segments), carried=self.carried, dry_run=self.dry_run
        )


_log: Final = Reporter("taskq")
#: Interval of a process's checks for work, besides one after each new segment.
LOOK_NS: Final = 10 * model.SECOND_NS
#: Pause of upkeep after trouble (disk full, log locked).
TROUBLE_NS: Final = 30 * model.SECOND_NS
#: Interval of checks while the disk is nearly full.
_PRESSED_NS: Final = model.SECOND_NS
#: Interval of checks whether another process is done, for a waiting caller.
_TURN_NS: Final = model.SECOND_NS // 20
#: Limits of the work between two batches: nanoseconds, and number of the smallest steps.
_STEP_NS: Final = model.SECOND_NS // 1_000
STEPS_MAX: Final = 64
#: Part of the log that is removed at once on a nearly full disk.
_SPARE_PARTS: Final = 8


class Upkeep:
    """Upkeep of the log, by one process.

    It runs in steps of about a millisecond on the storage thread, between batches and while the
    thread is idle. No step is needed for correctness, and it may end at any step. Records are
    written in ordinary batches. Processes that share a directory do it one at a time.
    """

    def __init__(self, committer: committer.Committer) -> None:
        self._committer = committer
        self._journal = committer.journal
        self._port = compaction.InnerPort()
        self._steps: compaction.Steps | None = None
        #: descriptor of ``upkeep.lock``, which the working process holds
        self._lock = -1
        self._look_at_ns = self._pause_until_ns = 0
        self._snapshots = snapshots.Snapshots(committer)
        self._endings = retention.Endings(committer.journal)
        self._history: history.History | None = None
        #: end of the log at the last check
        self._tip = (0, 0)
        self._orders: deque[Order] = deque()
        self._looked_ns = self._looked_segment = 0
        #: size of the log, or number of jobs left, at which another try to shrink the log pays off
        self._patience_bytes, self._patience_jobs = 0, 0
        self._complained: set[object] = set()
        #: another program has the oldest segment open, on a system where open files stay
        self._is_held = False

    def order(self, order: Order) -> None:
        """Compact, and answer ``order.future`` through ``order.port``."""
        self._orders.append(order)

    def close(self) -> None:
        """Leave the work to other processes; write a snapshot if it makes the next open faster."""
        self._stop(LOOK_NS)
        closed = errors.LogClosed(f"{self._journal.path}: the log was closed")
        for order in self._orders:
            self._committer.answers.now.append((order.port, order.future, closed))
        self._orders.clear()
        if self._is_ours():
            for _ in self._snapshots.close_steps():
                pass

    @property
    def busy(self) -> bool:
        if self._steps is None:
            return bool(self._orders)
        return self._journal.clock.steady_ns() >= self._pause_until_ns

    def seconds_until_look(self) -> float:
        if self._steps is None and not self._is_ours():
            return float("inf")
        at_ns = self._next_look_ns() if self._steps is None else self._pause_until_ns
        return max(at_ns - self._journal.clock.steady_ns(), 0) / model.SECOND_NS

    def step(self) -> list[Request]:
        """Work for a millisecond; return the requests for the next batch, usually none.

        Raises nothing: trouble is logged, reported to the caller of an order, and retried later.
        """
        try:
            if self._steps is None:
                self._steps = self._next_steps()
            if self._steps is None or not self.busy:
                return []
            clock = self._journal.clock
            until_ns = clock.steady_ns() + _STEP_NS
            for _ in range(STEPS_MAX):  # many steps are much shorter than a millisecond
                inner = next(self._steps)
                if inner is not None:
                    return [inner.request]
                if clock.steady_ns() >= until_ns or not self.busy:
                    break
        except StopIteration:
            self._stop(LOOK_NS)
        except Exception as error:  # noqa: BLE001 - a bug here must not close the log
            self._trouble(error)
        return []

    def _next_steps(self) -> compaction.Steps | None:
        if self._orders:
            return self._carry_out(self._orders.popleft())
        return self._work() if self._wants_to_look() else None

    def _take_turn(self) -> bool:
        disk = self._journal.disk
        self._lock = disk.open(f"{self._journal.path}/upkeep.lock", create=True)
        if disk.try_lock(self._lock):
            return True
        disk.close(self._lock)  # before a pause that may end these steps
        self._lock = -1
        return False

    def _stop(self, pause_ns: int) -> None:
        """End any remaining steps, and check again after the pause."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()
        self._pause_until_ns = 0
        if self._lock >= 0:
            self._journal.disk.close(self._lock)  # this also releases the lock
            self._lock = -1
        self._look_at_ns = self._journal.clock.steady_ns() + pause_ns

    def _trouble(self, error: Exception) -> None:
        if isinstance(error, SegmentGone):  # a lookup found a segment that was removed just now
            self._stop(LOOK_NS)
            return
        if isinstance(error, errors.LogDamaged):
            self._complain(error.args, "%s", error)
        elif isinstance(error, (errors.TaskqError, OSError)):
            _log.warning("%s: upkeep waits a while: %s", self._journal.path, error)
        else:
            _log.error("%s: upkeep waits a while", self._journal.path, exc_info=error)
        self._stop(TROUBLE_NS)

    def _is_ours(self) -> bool:
        journal = self._journal
        return (
            journal.config.upkeep and self._committer.facets.agenda is not None and not journal.gone
        )

    def _next_look_ns(self) -> int:
        """Return the steady time of the next check, which is soon on a nearly full disk."""
        if not self._committer.room.is_sought:
            return self._look_at_ns
        return min(self._look_at_ns, self._looked_ns + _PRESSED_NS)

    def _wants_to_look(self) -> bool:
        if not self._is_ours():
            return False
        now = self._journal.clock.steady_ns()
        if (
            now < self._next_look_ns()
            and self._looked_segment == self._journal.segment
            and not self._snapshots.due()
        ):
            return False
        self._looked_ns, self._look_at_ns = now, now + LOOK_NS
        self._looked_segment = self._journal.segment
        return True

    def _carry_out(self, order: Order) -> compaction.Steps:
        answer: views.CompactReport | errors.TaskqError
        try:
            answer = yield from self._ordered(order)
        except GeneratorExit:
            answer = errors.LogClosed(f"{self._journal.path}: the log was closed")
            raise
        except Exception as error:  # noqa: BLE001 - the caller of the order gets it
            answer = answers.failure(error)
        finally:
            self._committer.answers.now.append((order.port, order.future, answer))

    def _ordered(
        self, order: Order
    ) -> Generator[compaction.InnerRequest | None, None, views.CompactReport]:
        journal = self._journal
        give_up_ns = journal.clock.steady_ns() + int(
            journal.config.lock_wait_seconds * model.SECOND_NS
        )
        while not self._take_turn():
            if journal.clock.steady_ns() > give_up_ns:
                raise errors.LogError(f"{journal.path}: another process is at it; try again later")
            self._pause_until_ns = journal.clock.steady_ns() + _TURN_NS
            yield None
        journal.refresh()
        self._committer.facets.catch_up()
        self._committer.facets.need_agenda()
        self._committer.calendar.believe()
        report = Report(dry_run=order.dry_run, by_hand=True)
        yield from self._tidy(order.keep_seconds, report)
        return report.made()

    def _work(self) -> compaction.Steps:
        if not self._take_turn():
            return
        sweep_gone(self._journal.disk, f"{self._journal.path}/log")
        if not self._committer.room.is_sought:  # else work that frees room comes first
            yield from self._tend(self._journal.indexes.upkeep_steps())
            yield from self._tend(self._snapshots.steps())
        yield from self._tidy(None, Report())
        yield from self._fold_at_rest()

    def _fold_at_rest(self) -> compaction.Steps:
        """Fold the history while the log rests; otherwise a segment's removal folds it first."""
        journal = self._journal
        lsns, tip = journal.files.lsns, (journal.segment, journal.offset)
        before, self._tip = self._tip, tip
        if tip != before or len(lsns) < 2 or self._committer.room.is_sought:  # noqa: PLR2004
            return
        for _ in self._tend(self._fold_history(lsns[-2])):
            if (journal.segment, journal.offset) != tip:
                return
            yield None

    def _fold_history(self, through: int) -> Iterator[None]:
        """Fold the sealed segments up to this one into counts that outlive them."""
        if self._history is None:
            self._history = history.History(self._journal)
        try:
            yield from self._history.steps(through)
        except OSError:  # a later fold tries again
            raise
        except Exception as error:  # noqa: BLE001 - counts are worth less than the room
            # Counts never hold a segment back: the next fold continues after removed segments.
            self._history = None
            if not isinstance(error, SegmentGone):
                self._complain(str(error), "%s: not all is counted: %s", self._journal.path, error)

    def _tidy(self, keep_seconds: float | None, report: Report) -> compaction.Steps:
        """Remove expired jobs and letters, with ``keep_seconds`` instead of the log's own."""
        keep = self._journal.config.keep_seconds if keep_seconds is None else keep_seconds
        if not report.dry_run:
            yield from retention.purge_steps(self._committer, self._port)
        yield from self._compact(keep, report)

    def _tend(self, steps: Iterator[None]) -> compaction.Steps:
        """Take steps that send no requests; an error of the disk ends only these."""
        try:
            for _ in steps:
                yield None
        except OSError as error:
            self._complain(error.errno, "%s: upkeep goes without: %s", self._journal.path, error)

    def _compact(self, keep_seconds: float | None, report: Report) -> compaction.Steps:
        """Remove segments while the policy allows the removal of the oldest."""
        journal = self._journal
        if not report.dry_run:
            self._is_held = False
            yield from self._drop()
            if self._is_held:
                return
        goal, last = (yield from self._goal(keep_seconds)), None
        if report.by_hand or not goal:  # otherwise older segments are due, but kept for a reason
            last = yield from self._last_due(keep_seconds)
        if last is not None and not report.dry_run:
            room.with_reserve(journal.disk, journal.path, lambda: journal.seal(last.segment))
            self._looked_segment = journal.segment
            goal = yield from self._goal(keep_seconds)
        yield from self._let_go(keep_seconds, goal, report)
        if last is not None and report.dry_run:
            yield from self._compact_one(last, keep_seconds, report)

    def _let_go(self, keep_seconds: float | None, goal: int, report: Report) -> compaction.Steps:
        journal = self._journal
        # Records rewritten meanwhile are left to the next pass, or this one would never end.
        end, has_freed = journal.segment, False
        while True:
            candidate = retention.due(
                journal,
                self._committer.calendar.now_ns(),
                is_pressed=self._lacks_room(has_freed=has_freed),
                keep_seconds=keep_seconds,
                goal=goal,
                gone=report.gone if report.dry_run else 0,
            )
            if isinstance(candidate, retention.Pinned):
                why = f"the reader {candidate.reader!r} has not read it"
                size = journal.files.size(candidate.segment)
                report.note(candidate.segment, size, 0, why, removed=False)
                self._complain(
                    candidate, "%s: %s stays although it is due: %s", journal.path,
                    segment_name(candidate.segment), why,
                )  # fmt: skip
                return
            if candidate is None or candidate.segment >= end or not self._may_pay(candidate):
                return
            # Here, since without a due segment the keys are not needed.
            yield from self._tend(self._committer.facets.dedup_steps())
            if not report.dry_run:
                # One write of the file counts every segment that goes for its age; on a full disk
                # the first must not wait for the others.
                through = 0 if self._committer.room.is_sought else goal
                yield from self._tend(self._fold_history(max(candidate.segment, through)))
            if not (yield from self._compact_one(candidate, keep_seconds, report)):
                return
            has_freed = True

    def _goal(self, keep_seconds: float | None) -> Generator[None, None, int]:
        """Return the last segment past its time with an ended job; 0: none goes for its age."""
        journal = self._journal
        journal.files.refresh()
        now_ns = self._committer.calendar.now_ns()
        retained = self._retained(keep_seconds)
        for segment in reversed(retention.past(journal, keep_seconds, now_ns)):
            yield from self._endings.steps(segment, retained.own_keep_ns)
            if self._endings.any(segment, now_ns):
                return segment
        return 0

    def _last_due(self, keep_seconds: float | None) -> Generator[None, None, retention.Due | None]:
        journal, endings = self._journal, self._endings
        journal.refresh()
        now_ns = self._committer.calendar.now_ns()
        is_pressed = self._lacks_room()
        candidate = retention.last_due(
            journal, now_ns, is_pressed=is_pressed, keep_seconds=keep_seconds
        )
        if candidate is None:
            return None
        yield from endings.steps(candidate.segment, self._retained(keep_seconds).own_keep_ns)
        if candidate.drops_finished:
            is_due = endings.any(candidate.segment, now_ns)
        else:
            is_due = endings.are_due(candidate.segment, keep_seconds, now_ns)
        return candidate if is_due else None

    def _lacks_room(self, *, has_freed: bool = False) -> bool:
        """Return whether ended jobs must be removed, so that the log can be written.

        For new jobs at most half of the log goes. If that is not enough, other programs fill the
        disk, which is no reason to drop results. ``has_freed``: segments were removed just now, and
        removing a little more saves the next check.
        """
        room, total = self._committer.room, self._journal.files.total_size()
        spare = total // _SPARE_PARTS if has_freed else 0
        return room.is_sought and room.lacks(total // 2, spare)

    def _may_pay(self, candidate: retention.Due) -> bool:
        return (
            candidate.needed_bytes_max is None
            or self._journal.files.total_size() >= self._patience_bytes
            or self._jobs() < self._patience_jobs
        )

    def _jobs(self) -> int:
        agenda = self._committer.facets.need_agenda()
        return agenda.table.live + agenda.dead.live

    def _compact_one(
        self, candidate: retention.Due, keep_seconds: float | None, report: Report
    ) -> Generator[compaction.InnerRequest | None, None, bool]:
        retained = self._retained(keep_seconds, drops_finished=candidate.drops_finished)
        work = compaction.Compaction(self._committer, self._port, candidate.segment, retained)
        files = self._journal.files
        total, size = files.total_size(), files.size(candidate.segment)
        if report.dry_run:
            yield from work.measure_steps()
            went = work.pays(candidate.needed_bytes_max)
        else:
            yield from work.steps(candidate.needed_bytes_max)
            went = (yield from self._drop()) > 0
        if not went and not report.dry_run:
            # Most of it is still needed. Another try pays off once the log has grown by a segment,
            # or an eighth of the jobs is gone.
            self._patience_bytes = total + self._journal.segment_bytes
            self._patience_jobs = self._jobs() - self._jobs() // 8
        if went and candidate.reason == retention.NEARLY_FULL:
            note_dropped(self._journal, files.lsns[0])
        why = candidate.reason if went else f"{candidate.reason}, but most of it is needed"
        report.carried += work.carried
        report.note(candidate.segment, size, work.needed_bytes, why, removed=went)
        return went

    def _retained(
        self, keep_seconds: float | None, *, drops_finished: bool = False
    ) -> retention.Retained:
        return retention.Retained(
            self._committer,
            keep_seconds=keep_seconds,
            drops_finished=drops_finished,
            now_ns=self._committer.calendar.now_ns(),
        )

    def _drop(self) -> Generator[compaction.InnerRequest | None, None, int]:
        """Remove the segments that a record of the log releases; return their number."""
        went = 0
        while True:
            floor_lsn = self._committer.facets.need_agenda().floor_lsn
            self._journal.files.refresh()
            lsns = self._journal.files.lsns
            if len(lsns) < 2 or lsns[1] > floor_lsn:  # noqa: PLR2004 - the last one stays
                return went
            # Another process may not have synced that record. And after a power loss an earlier
            # segment must not come back without this one, which may have the only later records of
            # its jobs.
            self._committer.sync()
            self._journal.disk.sync_directory(f"{self._journal.path}/log")
            inner = self._port.make(Op.DROP, lsns[0])
            yield from inner.wait()
            sweep_gone(self._journal.disk, f"{self._journal.path}/log")
            if inner.value is None:
                self._is_held = True
                text = "%s: another program has the oldest segment open: it is removed later"
                self._complain(self._drop, text, self._journal.path)
            if not inner.value:
                return went
            went += 1

    def _complain(self, about: object, text: str, *values: object) -> None:
        if about not in self._complained:
            self._complained.add(about)
            _log.warning(text, *values)
