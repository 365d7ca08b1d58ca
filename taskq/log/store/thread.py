"""The storage thread's work: one per open log and process. Only it touches the disk."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import LogClosed, TaskqError
from taskq.core.folds.agenda import Agenda
from taskq.core.model import SECOND_NS, Durability
from taskq.log.commit.answers import NOWAIT, fail_all, failure, refusals
from taskq.log.commit.committer import CHECK_NS, LOOK_AROUND_NS, Committer
from taskq.log.commit.room import with_reserve
from taskq.log.config import BATCH_BYTES_MAX, LogConfig
from taskq.log.decide.context import BatchNeeds
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import LockWatch, WriterLock
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.peers import LocalPeers
from taskq.log.machine.ports import INTEREST_CANCEL
from taskq.log.machine.threads import Reporter
from taskq.log.requests import Answer, Op, Order, Request, Trait, ops_that
from taskq.log.store.caller_commit import CallerCommit
from taskq.log.store.mailbox import Mailbox, run_chore

if TYPE_CHECKING:
    from taskq.log.upkeep.upkeep import Upkeep

#: Delay before refused settlements, and work left for the next frame, are retried.
_HELD_SECONDS: Final = 0.5
#: Requests that outlast a wait for the lock: their callers have no time limit.
PATIENT: Final = ops_that(Trait.PATIENT)
_KEPT_MAX: Final = 64


def seconds_until_due(committer: Committer) -> float:
    """Return seconds until work of the log falls due; infinite without any."""
    clock, waiters = committer.journal.clock, committer.waiters
    limits = [float("inf")]
    if committer.undecided.held:
        limits.append(_HELD_SECONDS)
    listens = waiters.outcomes or waiters.growth or committer.operations.asks
    if listens or waiters.claims:
        # A sleeper also checks by itself, in case a wake-up is lost.
        limits.append(LOOK_AROUND_NS / SECOND_NS)
    if is_behind(committer):
        # A pause, in case the disk keeps refusing.
        limits.append(0.0 if waiters.claims else _HELD_SECONDS)
    if waiters.claims:
        agenda = committer.facets.agenda
        if agenda is not None:
            limits.append(seconds_until_moment(agenda, clock.wall_ns()))
        if committer.owners.all():
            limits.append(0.0 if committer.owners.left else CHECK_NS / SECOND_NS)
        steady = clock.steady_ns()
        limits += [
            (claim[0].wait_until_ns - steady) / SECOND_NS
            for claim in waiters.claims
            if claim[0].wait_until_ns is not None
        ]
    # Due work is tried at once, but on a full disk only after pauses.
    return min(limits) if committer.room.refused is None else max(min(limits), _HELD_SECONDS)


def seconds_until_moment(agenda: Agenda, now_ns: int) -> float:
    """Return seconds until a claim may get more jobs; infinite if it never will."""
    moments = (
        agenda.next_due_ns(), agenda.next_expiry_ns(), agenda.leases.next_ns(),
        agenda.next_rate_ns(),
    )  # fmt: skip
    following = min((at for at in moments if at is not None), default=None)
    return float("inf") if following is None else (following - now_ns) / SECOND_NS


def is_behind(committer: Committer) -> bool:
    """Return whether held jobs or children are left to release or cancel in the next frame."""
    agenda = committer.facets.agenda
    return agenda is not None and bool(agenda.flows.todo or agenda.steps.orphans)


def may_wait(committer: Committer, requests: list[Request], needs: BatchNeeds) -> bool:
    """Return whether a batch of ``PATIENT`` requests may wait a moment for other requests.

    With few producers every second batch would only have the settlements of jobs from the batch
    before, while the next enqueues are a moment away.
    """
    if committer.waiters.outcomes:
        return False
    agenda = committer.facets.agenda
    if agenda is None or agenda.queues.any_ready() or len(requests) > _KEPT_MAX:
        return False
    return not needs.ops.isdisjoint(NOWAIT)


_log: Final = Reporter("taskq")
#: Number of other processes from which sharing fsyncs pays off; fewer rarely sync together.
_CROWD: Final = 3
#: Interval at which cancelled watchers are removed: with thousands, not before every sleep.
_FORGET_SECONDS: Final = 1.0
#: Seconds between two steps of upkeep during its work, and between two checks for work.
_UPKEEP_SECONDS: Final = 0.004
#: Seconds from the opening to the first look: the first jobs wait less.
_BEGIN_SECONDS: Final = 0.1
_RESTING_SECONDS: Final = 0.05
#: Longest wait of a batch for a fold that is being built; or the duration of the batch before.
_BUILD_SECONDS: Final = 0.004
#: Seconds until settlements without a waiting caller are synced, unless another sync covers them.
_QUIET_SYNC_SECONDS: Final = 0.005
#: Seconds of rest after which a log gets a sync point.
_REST_SECONDS: Final = 1.0
#: Longest wait of such settlements for other requests before they get a frame of their own.
_KEEP_SECONDS: Final = 0.001
#: Longest wait of a loop's requests in the mailbox for the loop's next turn.
_LOOK_SECONDS: Final = 0.004
#: Interval of checks of answers that a loop has not taken: it may be closed by then.
_UNTAKEN_SECONDS: Final = 1.0


class StorageThread:
    """Run the storage thread. Made on that thread, which alone uses it.

    It takes the mailbox as one batch, commits it, wakes waiting processes, syncs if answers need
    it, and delivers all answers in one wake-up per event loop. Between batches it sleeps until it
    is poked, another process wakes it, or work falls due.

    Args:
        mailbox: requests and chores of callers, and the way to wake the thread.
        leave_closed_loops: takes back deliveries of closed loops; False while answers are pending.
        shut: called at the end, to refuse further requests.

    Raises:
        LogError: the log cannot be opened.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        config: LogConfig,
        leave_closed_loops: Callable[[], bool],
        shut: Callable[[], None],
    ) -> None:
        self._mailbox = mailbox
        self._config = config
        self._leave_closed_loops = leave_closed_loops
        self._shut = shut
        self.path: str = mailbox.path
        self._disk = disk = LocalDisk()
        self.writer: WriterLock = WriterLock(disk, self.path, os.getpid())
        clock = config.clock or SystemClock()
        self.journal: Journal = Journal(disk, clock, self.path, config, self.writer)
        self.peers: LocalPeers | None = None
        self.here: CallerCommit | None = None
        self._watch = LockWatch(self.writer, config.lock_wait_seconds, self._answer_late)
        self._unsynced_since = 0.0
        self._forget_at = self._wakes_at = 0.0
        self._sync_seconds = {
            Durability.FSYNC: _QUIET_SYNC_SECONDS,
            Durability.INTERVAL: config.interval_seconds,
            Durability.OS: float("inf"),
        }[config.durability]
        self._kept: list[Request] = []
        self.upkeep: Upkeep | None = None
        #: time of the next look for upkeep, and the segment of the last one: a new segment needs a
        #: look, too
        self._upkeep_at, self._kept_segment = 0.0, 0
        self._is_busy = self._has_answered = self._needs_sync = False
        #: end of the log at the last check, its time, and whether a sync point was left there
        self._end, self._end_since, self._is_settled = (0, 0), 0.0, False

    def open(self) -> None:
        config = self._config
        self.writer.exclusive = config.exclusive
        disk = self._disk
        with_reserve(disk, self.path, self.journal.open)
        try:
            if self._mailbox.closing:
                raise LogClosed(f"{self.path}: closed while it waited for the writer lock")
            join = functools.partial(LocalPeers, self.path, config.name, disk)
            self.peers = with_reserve(disk, self.path, join)
            self._mailbox.poke = self.peers.poke
            self.committer: Committer = Committer(
                self.journal, self.peers, config, self.peers.description
            )
            self.committer.builds_in_steps = True
            self._upkeep_at = time.monotonic() + _BEGIN_SECONDS
            self.here = self._mailbox.here = CallerCommit(self, self._mailbox)
            self._mailbox.serves_loops = config.durability is not Durability.FSYNC
        finally:
            self.journal.writer.release()
        lost = [loss.explain(self.path) for loss in self.journal.lost]
        for note in (*self.journal.recovered, *lost):
            _log.warning("%s: %s", self.path, note)

    def run(self) -> None:
        """Work until the store closes and its mailbox is empty; leave no caller waiting."""
        try:
            self._work()
        except BaseException:  # noqa: BLE001 - a bug closes the log instead of freezing it
            _log.exception("%s: the storage thread failed: the log is closed here", self.path)
        self._finish()

    def _work(self) -> None:
        mailbox = self._mailbox
        while True:
            mailbox.turns += 1
            while mailbox.chores:
                run_chore(mailbox.chores.popleft())
            while mailbox.orders:
                self._order(mailbox.orders.popleft())
            requests, needs = self._take()
            if requests and needs.ops <= PATIENT and may_wait(self.committer, requests, needs):
                self._kept = requests
                self._sleep(0, _KEEP_SECONDS)
                requests, needs = self._take()
            if requests or self._needs_sync:
                began, self._needs_sync = time.monotonic(), False
                self._cycle(requests, needs)
                self._after_batch(began)
            elif mailbox.closing:
                if not self._build(float("inf")):
                    break
            elif not (self._build(_BUILD_SECONDS) or self._keep_up(time.monotonic())):
                self._idle()

    def _after_batch(self, began: float) -> None:
        """Build folds and do due upkeep, else sleep a moment.

        The next batch often comes before a look for work pays off. This thread stays awake while
        another process may append records for it, since this sleep is not announced.
        """
        now, facets = time.monotonic(), self.committer.facets
        if facets.unfinished:
            # For as long as the batch took, so that building keeps ahead of a busy process.
            self._build(max(now - began, _BUILD_SECONDS))
        if now >= self._upkeep_at or self.journal.segment != self._kept_segment:
            self._keep_up(now)
        if not (self._is_busy or facets.unfinished) and (
            self.writer.is_alone or not self._interest()
        ):
            self._sleep(0, _KEEP_SECONDS, _RESTING_SECONDS)

    def _interest(self) -> int:
        committer = self.committer
        asks = INTEREST_CANCEL if committer.operations.asks else 0
        return committer.waiters.interest() | asks

    def _build(self, seconds: float) -> bool:
        facets = self.committer.facets
        if not facets.unfinished:
            return False
        until = time.monotonic() + seconds
        is_unfinished = facets.build()
        while is_unfinished and time.monotonic() < until:
            is_unfinished = facets.build()
        if not is_unfinished:
            self._cycle([], BatchNeeds())  # requests that waited for the fold
        return True

    def _keep_up(self, now: float) -> bool:
        if self.journal.gone or (self.upkeep is None and self._until_upkeep(now) > 0):
            return False
        upkeep = self._made_upkeep()
        self._kept_segment = self.journal.segment
        for request in upkeep.step():
            self._mailbox.requests.appendleft(request)
        if self.committer.answers.now:
            self._deliver(self.committer.answers.take_now())
        self._is_busy = upkeep.busy
        self._upkeep_at = now + (_UPKEEP_SECONDS if self._is_busy else _RESTING_SECONDS)
        return self._is_busy

    def _order(self, order: Order) -> None:
        self._upkeep_at = 0.0
        self._made_upkeep().order(order)

    def _made_upkeep(self) -> Upkeep:
        if self.upkeep is None:
            from taskq.log.upkeep.upkeep import Upkeep  # noqa: PLC0415 - see ``_BEGIN_SECONDS``

            self.upkeep = Upkeep(self.committer)
        return self.upkeep

    def _until_upkeep(self, now: float) -> float:
        if self.upkeep is not None:
            return self.upkeep.seconds_until_look()
        if self.committer.facets.agenda is None or self.journal.gone:
            return float("inf")
        return max(self._upkeep_at - now, 0.0)

    # -- one batch --------------------------------------------------------------------------------

    def _take(self) -> tuple[list[Request], BatchNeeds]:
        mailbox = self._mailbox
        requests, self._kept = self._kept, []
        needs = BatchNeeds.of(requests) if requests else BatchNeeds()
        for _ in range(len(mailbox.requests)):
            request = mailbox.next(BATCH_BYTES_MAX - needs.size)
            if request is None:
                continue
            try:
                needs.add(request)
            except Exception as error:  # noqa: BLE001 - an invalid operand affects only itself
                self.committer.answers.now += refusals([request], failure(error))
                continue
            requests.append(request)
            if needs.size >= BATCH_BYTES_MAX:
                break
        if mailbox.waiting_for_room:
            mailbox.emptied()
        return requests, needs

    def commit_here(self, requests: list[Request], needs: BatchNeeds, *, syncs: bool) -> bool:
        """Commit requests on a caller's thread; return whether to wake this thread for due work.

        ``syncs``: whether the caller may wait for the disk.
        """
        committer, since = self.committer, self._unsynced_since
        self._cycle(requests, needs, syncs=syncs)
        # A batch that was postponed, or refused by the disk, has not released the lock.
        self.journal.writer.release()
        if self._needs_sync or is_behind(committer):
            return True
        due = self._until_sync()
        if self._mailbox.rests:  # it checks by itself in time, unless work is due earlier
            agenda = committer.facets.agenda
            if agenda is not None and committer.waiters.claims:
                due = min(due, seconds_until_moment(agenda, self.journal.clock.wall_ns()))
            return due < _RESTING_SECONDS and time.monotonic() + due < self._wakes_at
        # This thread's sleep did not include the first timer that a commit starts.
        is_late = due <= 0 or self._unsynced_since > since or self._is_settled
        return is_late or committer.has_company

    def _cycle(self, requests: list[Request], needs: BatchNeeds, *, syncs: bool = True) -> None:
        committer = self.committer
        try:
            committer.commit(requests, needs)
        except Exception as error:  # noqa: BLE001 - a bug must not leave callers waiting for ever
            _log.exception("%s: a batch could not be decided", self.path)
            committer.facets.discard()
            answers = committer.answers
            decided = {id(answer[1]) for answer in (*answers.now, *answers.later)}
            left = [request for request in requests if id(request[2]) not in decided]
            answers.now += refusals(left, failure(error))
        interest = committer.take_interest()
        if interest and not self.writer.is_alone:
            self._wake_others(interest)
        try:
            if syncs:
                self._sync_if_due()
            elif committer.must_sync():
                self._needs_sync = True
                if committer.holds_claims:
                    self._deliver(committer.answers.take_now())
                    return
        except Exception as error:  # noqa: BLE001 - a bug must not confirm unsynced records
            _log.exception("%s: a batch could not be completed", self.path)
            if committer.unsynced:
                committer.answers.refuse_later(failure(error))
        self._hand_out()

    def _wake_others(self, interest: int) -> None:
        """Wake other processes that wait for appended records, which stay even if waking fails."""
        assert self.peers is not None
        try:
            self.peers.wake(interest)
        except Exception:  # noqa: BLE001 - the log goes on: other processes check by themselves
            _log.exception("%s: the others could not be woken", self.path)
        self.writer.is_alone = not self.peers.others

    def _sync_if_due(self) -> None:
        committer = self.committer
        if committer.must_sync():
            if committer.answers.now:
                # They need no sync: claimed jobs run during it.
                self._deliver(committer.answers.take_now())
        elif self._until_sync() > 0:
            return
        self._unsynced_since = 0.0
        crowded = self.peers is not None and self.peers.others >= _CROWD
        self.writer.turn.crowded = crowded and not self.writer.is_alone
        committer.sync()

    def _until_sync(self) -> float:
        """Return seconds until a sync without a waiting caller is due; infinite for none."""
        if self._sync_seconds == float("inf"):
            return self._sync_seconds
        growth = self.committer.waiters.growth
        if not (self.committer.unsynced or growth.lacking):
            self._unsynced_since = 0.0
            return float("inf")
        now = time.monotonic()
        self._unsynced_since = self._unsynced_since or now
        return self._unsynced_since + growth.sync_seconds(self._sync_seconds) - now

    def _until_rest(self, now: float) -> float:
        """Return seconds until a resting log gets a sync point; infinite if it has one."""
        end = self.journal.segment, self.journal.offset
        if end != self._end:
            self._end, self._end_since, self._is_settled = end, now, False
        return float("inf") if self._is_settled else self._end_since + _REST_SECONDS - now

    def _rest(self) -> None:
        """Leave a sync point, with one try."""
        journal = self.journal
        try:
            self.committer.rest()
        except (TaskqError, OSError) as error:
            _log.debug("%s: no sync point: %s", self.path, error)
        self._end, self._is_settled = (journal.segment, journal.offset), True
        self._hand_out()

    def _hand_out(self) -> None:
        committer = self.committer
        answers = committer.answers.take_all()
        if committer.waiters.growth.waiting:
            answers += committer.waiters.growth.take_answers()
        if committer.facets.agenda is not None:
            answers += committer.operations.asks.take_answers()
        if answers:
            self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        self._has_answered = True
        ports = {answer[0] for answer in answers}
        if len(ports) == 1:
            ports.pop().deliver(answers)
            return
        by_port: dict[Any, list[Answer]] = {}
        for answer in answers:
            by_port.setdefault(answer[0], []).append(answer)
        for port, part in by_port.items():
            port.deliver(part)

    # -- sleeping ---------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Do due work, or else sleep until work is due; the mailbox is empty."""
        mailbox, committer = self._mailbox, self.committer
        now = time.monotonic()
        if committer.waiters.outcomes and now >= self._forget_at:
            self._forget_at = now + _FORGET_SECONDS
            committer.waiters.outcomes.forget_cancelled()
        if self._until_rest(now) <= 0:
            self._rest()
        timeout = self._timeout()
        if timeout is not None and timeout <= 0:
            self._do_due()
        elif not mailbox.has_work:
            self._sleep_announced(timeout)

    def _sleep_announced(self, timeout: float | None) -> None:
        """Sleep so that other processes can wake this thread; then do due work.

        The order prevents a missed wake-up: another process appends, and then looks for sleepers;
        this thread announces its sleep, and then looks for appended records.
        """
        peers, interest = self.peers, self._interest()
        assert peers is not None
        if interest:
            peers.announce(interest)
        if not (interest and self._has_news()):
            self._sleep(interest, timeout)
        if not self._mailbox.requests:
            self._has_answered = False
            self._do_due()
            if self._has_answered:
                # Callers with new answers run at once, not after this thread releases the GIL.
                self._sleep(interest, _KEEP_SECONDS)
        # Last, as it takes as long as a claim; until then other processes may ring in vain.
        if interest:
            peers.announce(0)

    def _sleep(self, interest: int, timeout: float | None, seconds_max: float = 0.0) -> None:
        """Sleep for ``timeout``, or until there is work; callers may commit meanwhile.

        While callers commit, the sleep goes on for up to ``seconds_max``. If this thread took the
        right to commit back after each moment, the next request would have to be sent to it.
        """
        mailbox, here, peers = self._mailbox, self.here, self.peers
        assert here is not None
        assert peers is not None
        # A sender appends, and then checks whether this thread is asleep, so no request is missed.
        mailbox.rests = seconds_max > 0
        mailbox.asleep = True
        if mailbox.has_work:
            mailbox.asleep = False
            return
        if seconds_max:
            self._wakes_at = time.monotonic() + seconds_max
        count, left = here.count, seconds_max
        here.leave()
        try:
            while not peers.sleep(interest, timeout) and timeout is not None and left > 0:
                before, count = count, here.count
                if count == before and not here.in_doubt:
                    break
                timeout = min(2 * timeout, left, _LOOK_SECONDS)
                left -= timeout
        finally:
            mailbox.asleep = False
            here.take()
        if here.in_doubt:
            self.committer.look_again()
            self._cycle([], BatchNeeds())
            here.in_doubt = False

    def _has_news(self) -> bool:
        """Return whether the log has records that waiters here have not seen.

        False if the disk refuses to say, or the thread would never sleep.
        """
        try:
            return self.committer.has_news()
        except OSError:
            return False

    def _timeout(self) -> float | None:
        """Return seconds until work falls due; None without any."""
        now = time.monotonic()
        limits = [self._until_sync(), self._until_rest(now), self._until_upkeep(now)]
        limits.append(seconds_until_due(self.committer))
        if not self._leave_closed_loops():
            limits.append(_UNTAKEN_SECONDS)
        shortest = min(limits)
        return None if shortest == float("inf") else shortest

    def _do_due(self) -> None:
        committer, waiters = self.committer, self.committer.waiters
        if waiters.claims or committer.undecided.held or is_behind(committer):
            if committer.owners.dead():
                committer.owners.look_again()
            self._cycle([], BatchNeeds())
            return
        try:
            asks = committer.operations.asks
            listens = waiters.outcomes or waiters.growth or asks
            if listens:
                committer.look_around()
            if listens and self._has_news():
                committer.follow()
                if not committer.facets.unfinished:
                    asks.look()
            self._sync_if_due()
        except (TaskqError, OSError) as error:
            _log.warning("%s: %s", self.path, error)
        self._hand_out()

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Sync the last records, and refuse new requests; all earlier requests were answered."""
        mailbox, committer = self._mailbox, self.committer
        self._shut()
        if self.upkeep is not None or committer.facets.agenda is not None:
            run_chore(self._made_upkeep().close)
        self._rest()
        closed = LogClosed(f"{self.path}: the log was closed")
        waiters = committer.waiters
        left = [*waiters.claim_requests(), *committer.undecided.held]
        committer.answers.now += refusals(left, closed)
        committer.answers.now += fail_all(waiters.listeners(), closed)
        self._hand_out()
        mailbox.end()
        self.close_files()

    def close_files(self) -> None:
        self._watch.stop()
        if self.peers is not None:
            self.peers.close()
        self.journal.close()

    def abandon(self) -> None:
        """Refuse all waiting callers as the log closes, while this thread waits for the lock.

        It runs on the closer's thread. If the lock still comes, only settlements are written.
        """
        closed = LogClosed(f"{self.path}: closed while the writer lock was not to be had")
        waiters, undecided = self.committer.waiters, self.committer.undecided
        held = undecided.take_held()
        undecided.hold([request for request in held if request[0] in NOWAIT])
        held = [request for request in held if request[0] not in NOWAIT]
        left = [*undecided.take_in_flight(), *held, *waiters.claim_requests()]
        answers = refusals(left, closed) + fail_all(waiters.listeners(), closed)
        if answers:
            self._deliver(answers)
        self._mailbox.refuse_rest()

    # -- on the watcher's thread ------------------------------------------------------------------

    def _answer_late(self, waited_seconds: float) -> None:
        if self.peers is None:
            return  # still opening: the opener checks the time itself
        error = self.writer.locked_error(waited_seconds)
        undecided = self.committer.undecided
        requests = [*undecided.take_in_flight(), *undecided.take_held()]
        with contextlib.suppress(IndexError):
            while True:
                request = self._mailbox.next(BATCH_BYTES_MAX)
                requests += [request] if request else []
        now = self.journal.clock.steady_ns()
        undecided.hold([asked for asked in requests if _is_patient(asked, now)])
        late = [asked for asked in requests if not _is_patient(asked, now)]
        waiting = self.committer.waiters.claim_requests()
        late += [asked for asked in waiting if not _is_patient(asked, now) and not asked[2].done()]
        if late:
            self._deliver(refusals(late, error))


def _is_patient(request: Request, now_ns: int) -> bool:
    """Return whether a request outlasts a long wait for the lock, like a claim with time left."""
    op, _, _, operand = request
    if op != Op.CLAIM:
        return op in PATIENT
    return not operand.is_over(now_ns)
