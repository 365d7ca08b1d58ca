"""Group commit: a batch becomes one frame, and its answers are as durable as their source."""

from __future__ import annotations

import errno
from itertools import chain
from typing import Any, Final

from taskq.core.errors import (
    AppendFailed,
    DuplicateKey,
    LogError,
    LogFailed,
    OutcomeUnknown,
    SourceMoved,
    TaskqError,
    refusal,
)
from taskq.core.folds.agenda import Agenda
from taskq.core.model import SECOND_NS, Durability
from taskq.core.views import EngineStats, QueueStats
from taskq.log.commit.answers import (
    NOWAIT,
    Answers,
    Undecided,
    Waiters,
    claim_requests,
    fail_all,
    failure,
    refusals,
)
from taskq.log.commit.room import Room, is_full, parted
from taskq.log.config import LSN_SKIP, LogConfig
from taskq.log.decide.context import Batch, BatchNeeds
from taskq.log.decide.operations import Operations
from taskq.log.format import codec
from taskq.log.journal.journal import Journal
from taskq.log.machine.ports import INTEREST_GROWTH, Clock, Peers
from taskq.log.machine.threads import Reporter
from taskq.log.read.gauges import Gauges
from taskq.log.requests import ClaimRequest, Op, Request, Trait, ops_that
from taskq.log.segments.segments import SegmentGone
from taskq.log.state.facets import Facets, LogView

#: Interval of a claimer's checks of other owners: a killed worker's jobs run again in a second.
CHECK_NS: Final = 250_000_000


#: A clock ahead of the log's time is believed for removals after it has stood for this time.
_SETTLED_NS: Final = 3_600 * SECOND_NS
#: Smallest step of the clock; and smallest rest of a log after which its clock may be wrong.
_STEP_NS: Final = 5 * SECOND_NS
_REST_NS: Final = 365 * 86_400 * SECOND_NS


class Calendar:
    """Wall time for removals by age, which nothing undoes.

    A clock may be years ahead until a time server corrects it. So a step ahead counts only once the
    clock has stood there for an hour, and so does an opening a year after the last record. A
    compaction by hand believes the clock.
    """

    def __init__(self, clock: Clock, last_ns: int) -> None:
        self._clock = clock
        wall, steady = clock.wall_ns(), clock.steady_ns()
        #: wall time less the steady clock: the believed one, and the present one since a moment
        self._base_ns = (last_ns if 0 < last_ns < wall - _REST_NS else wall) - steady
        self._ahead_ns, self._since_ns = wall - steady, steady

    def believe(self) -> None:
        self._base_ns = self._clock.wall_ns() - self._clock.steady_ns()

    def now_ns(self) -> int:
        wall, steady = self._clock.wall_ns(), self._clock.steady_ns()
        base = wall - steady
        if abs(base - self._ahead_ns) > _STEP_NS:
            self._since_ns = steady
        self._ahead_ns = base
        if base <= self._base_ns + _STEP_NS or steady >= self._since_ns + _SETTLED_NS:
            self._base_ns = base
        return steady + self._base_ns


class OtherOwners:
    """Other processes with claims, which must be checked for their death."""

    def __init__(self, facets: Facets, peers: Peers) -> None:
        self._facets = facets
        self._peers = peers
        self._looked_ns = 0
        #: whether dead owners still have jobs: one batch takes back a limited number
        self.left: bool = False

    def all(self) -> set[int]:
        """Return the other owners of claims, as far as this process has folded the log."""
        agenda = self._facets.agenda
        if agenda is None:
            return set()
        return {claim[2] for claim in agenda.running.values()} - {self._peers.owner}

    def dead(self) -> set[int]:
        return {owner for owner in self.all() if not self._peers.alive(owner)}

    def dead_if_due(self, steady_ns: int) -> set[int]:
        """Return ``dead`` at most four times a second, otherwise an empty set."""
        if steady_ns - self._looked_ns < CHECK_NS:
            return set()
        self._looked_ns, self.left = steady_ns, False
        return self.dead()

    def forget(self, dead: set[int]) -> None:
        """Remove the files of dead owners without claims; keep the others for the next check."""
        left = dead & self.all()
        self.left = bool(left)
        for owner in dead - left:
            self._peers.forget(owner)
        if left:
            self.look_again()

    def look_again(self) -> None:
        self._looked_ns = 0


def engine_stats(committer: Committer) -> EngineStats:
    meters, writer, room = committer.journal.meters, committer.journal.writer, committer.room
    return EngineStats(
        batches=meters.batches,
        records=meters.records,
        batch_records=meters.sizes.spread(),
        batch_histogram=meters.sizes.buckets(),
        appended_bytes=meters.appended_bytes,
        payload_bytes=meters.payload_bytes,
        upkeep_bytes=meters.upkeep_bytes,
        sync_seconds=meters.syncs.spread(SECOND_NS),
        slow_syncs=meters.slow_syncs,
        lock_wait_seconds=writer.waits.spread(SECOND_NS),
        lock_hold_seconds_max=writer.longest_hold_ns / SECOND_NS,
        caught_up_records=committer.facets.caught_up,
        open_seconds=meters.open_ns / SECOND_NS,
        free_bytes=room.free_bytes,
        is_disk_short=room.pressed,
    )


_log: Final = Reporter("taskq")
#: Nanoseconds between two checks that the log's files are still the open ones, while nothing is
#: written; each batch checks by itself.
LOOK_AROUND_NS: Final = SECOND_NS
#: Errors by the state of this process: a limit of file sizes, or a closed file. It stays.
_OF_PROCESS: Final = frozenset({errno.EFBIG, errno.EBADF})
_ENQUEUE: Final = int(Op.ENQUEUE)
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)
_CLAIM: Final = int(Op.CLAIM)
_OUTCOME: Final = int(Op.OUTCOME)
_FOLLOW: Final = int(Op.FOLLOW)
_STATS: Final = int(Op.STATS)
_AGENDA: Final = int(Trait.AGENDA)
_KEYS: Final = int(Trait.KEYS)
_AT_ONCE: Final = ops_that(Trait.AT_ONCE)
_AFTER: Final = ops_that(Trait.AFTER)


def _is_mixed(request: Request) -> bool:
    return request[0] == _ENQUEUE_RUN and bool(request[3].extras)


class Committer:
    """The storage side of one process.

    It has no thread: the storage thread calls ``commit``, then ``sync`` if it must, and hands the
    answers out. A simulation does the same step by step, with several committers on one simulated
    disk.

    Attributes:
        answers: answers on their way out.
        waiters: requests that wait for future records.
        undecided: requests that wait for the lock, or for the next batch.
    """

    def __init__(
        self, journal: Journal, peers: Peers, config: LogConfig, description: bytes
    ) -> None:
        self.journal = journal
        self.facets: Facets = Facets(journal)
        self.sight: LogView = LogView(journal, self.facets)
        self.answers: Answers = Answers()
        self.waiters: Waiters = Waiters(journal, self.facets)
        self.undecided: Undecided = Undecided()
        self.peers = peers
        self.config = config
        self.operations: Operations = Operations(journal, self.facets, peers.owner, description)
        #: error of the log's files or its lock, until a batch is decided again
        self.trouble: LogError | None = None
        #: whether the storage thread builds large folds in steps between batches
        self.builds_in_steps = False
        #: records were appended whose loss would matter (claims alone do not count)
        self.unsynced: bool = False
        self.owners: OtherOwners = OtherOwners(self.facets, peers)
        self.room: Room = Room(journal.disk, journal.clock, journal.path, config)
        self.gauges: Gauges = Gauges(journal)
        self.calendar: Calendar = Calendar(journal.clock, journal.time_ns)
        #: jobs of dead owners that were given back or ended
        self.taken_back: int = 0
        #: the end of the log that waiters have seen
        self._seen = journal.segment, journal.offset
        #: interest bits of processes to wake for appended records, since the last ``take_interest``
        self._interest = 0
        self._expiring = False
        #: last lsn of claims of jobs that may not run twice: they wait for the disk in every mode
        self._claims_lsn = self._tend_at_ns = 0

    @property
    def has_company(self) -> bool:
        """Return whether a request waits for a batch, or work is left over."""
        owes = self.answers.now or self.answers.later or self.undecided.held
        listens = self.waiters.has_any or self.operations.has_listeners
        return bool(owes or listens or self.facets.unfinished)

    def look_again(self) -> None:
        """Drop the state of an interrupted commit, whose frame may or may not be in the log.

        Other processes may still have to be woken for it, and it may not be on disk.
        """
        self.journal.distrust()
        self.facets.discard()
        self.operations.forget()
        self.undecided, self.answers = Undecided(), Answers()
        self._interest = ~0
        self.unsynced = True

    # -- one batch --------------------------------------------------------------------------------

    def commit(self, requests: list[Request], needs: BatchNeeds | None = None) -> None:
        """Decide and append every request, or answer every request with the error."""
        if self.undecided.held or needs is None:
            requests = [*self.undecided.take_held(), *requests]
            needs = BatchNeeds.of(requests)
        looks: list[Request] = []
        if not needs.ops.isdisjoint(_AFTER):
            looks = [request for request in requests if request[0] in _AFTER]
            requests = [request for request in requests if request[0] not in _AFTER]
        if requests or self.waiters.claims or not looks:
            try:
                self._commit(requests, needs)
            finally:
                self._seen = self.journal.segment, self.journal.offset
        # After the writes of the same batch, so that callers read their own writes.
        for request in looks:
            self._look(request)

    def _commit(self, requests: list[Request], needs: BatchNeeds) -> None:
        now_ns, room = self.journal.clock.steady_ns(), self.room
        room.left -= needs.size
        if room.left < 0 or now_ns >= room.look_at_ns:
            requests, needs, refused = room.admit(requests, needs)
            self.answers.now += refused
            if room.refused is not None and not room.may_try(needs.size):
                self._retry_without_enqueues(requests, room.refused)
                return
        self.undecided.in_flight = requests
        try:
            if now_ns >= self._tend_at_ns:
                self._tend(now_ns)
            if self._build_before_lock(needs):
                requests, needs = self._defer_unbuilt(requests)
                self.undecided.in_flight = requests
                if not requests:
                    return
            self.journal.lock()
        except TaskqError as error:
            self._refuse(self.undecided.take_in_flight(), error)
            return
        except OSError as error:
            self._retry_without_enqueues(self.undecided.take_in_flight(), error)
            return
        # Some callers may have a LogLocked error by now.
        self._decide(self.undecided.take_in_flight(), needs)
        # Without the lock, since an outcome may need a search of the whole log.
        if self.waiters.outcomes.waiting:
            self._answer_watchers()

    def _decide(self, requests: list[Request], needs: BatchNeeds) -> None:
        """Write a frame and release the lock; if that fails, refuse or retry parts of the batch."""
        refusal: OSError | None = None
        try:
            refusal = self._locked(requests, needs)
        except LogError as error:
            self._refuse(requests, error)
        except Exception as error:  # noqa: BLE001 - too large for a frame, invalid, or a bug
            self.journal.writer.release()
            self._isolate_error(requests, error)
        finally:
            self.journal.writer.release()
        if refusal is not None:
            self._retry_without_enqueues(requests, refusal)

    def _retry_without_enqueues(self, requests: list[Request], error: OSError) -> None:
        """Retry a refused batch without its enqueues, or with the reserve, or give it up."""
        rest, refused = self.room.sort_out(requests, error)
        self.answers.now += refused
        if refused or (is_full(error) and self.room.give_up_reserve()):
            rest = self._not_watched(rest)
            if rest or self.waiters.claims:
                self._commit(rest, BatchNeeds.of(rest))
        else:
            self._give_up(rest, error)

    def _isolate_error(self, requests: list[Request], error: Exception) -> None:
        """Decide requests one by one after an error of their batch, to find the cause."""
        waiting, self.waiters.claims = self.waiters.claims, []
        requests = parted(requests)
        if requests and (waiting or len(requests) > 1):
            for request in requests:
                try:
                    needs = BatchNeeds.of([request])
                except Exception as refusal:  # noqa: BLE001 - its operand is invalid
                    self.answers.now += refusals([request], failure(refusal))
                else:
                    self._commit([request], needs)
            self.waiters.claims = waiting + self.waiters.claims
            self._commit([], BatchNeeds())  # they get jobs of the good requests
            return
        _log.error("%s: a request broke its batch", self.journal.path, exc_info=error)
        self.answers.now += refusals([*requests, *claim_requests(waiting)], failure(error))

    def _look(self, request: Request, *, again: bool = False) -> None:
        """Answer a read request, without the lock."""
        op, port, future, operand = request
        try:
            if again:  # a compacting process may have died before it published the end of the log
                self.journal.lock()
                self.journal.writer.release()
            self.journal.check_files()
            self.journal.refresh()
            if op == _FOLLOW:
                self.waiters.growth.add(operand, port, future)
                return
            if op == _OUTCOME:
                self.facets.catch_up()
                self.waiters.outcomes.add(operand, port, future)
                self._answer_watchers()
                return
            look, needs = (operand, _AGENDA) if op == _STATS else operand
            agenda, keys = bool(needs & _AGENDA), bool(needs & _KEYS)
            if self.builds_in_steps and self.facets.lacks(agenda=agenda, keys=keys):
                self.undecided.hold([request])
                return
            self.facets.catch_up()
            if agenda:
                time_ns, step_ns = self.journal.log_time()
                # A clock step without a record makes no job due.
                self._need_agenda().see(time_ns - step_ns)
            if keys:
                self.facets.need_dedup()
            value = look(self.sight, *(self._numbers() if op == _STATS else ()))
            self.answers.add_later([(port, future, value)], self.journal.next_lsn)
        except Exception as error:  # noqa: BLE001 - the caller gets every error
            if isinstance(error, SegmentGone) and not again:
                self._look(request, again=True)
            else:
                self.answers.now.append((port, future, failure(error)))

    def _numbers(self) -> tuple[tuple[QueueStats, ...], EngineStats]:
        now_ns = self.journal.clock.wall_ns()
        return self.gauges.queues(self.facets.need_agenda(), now_ns), engine_stats(self)

    def _build_before_lock(self, needs: BatchNeeds) -> bool:
        """Read other processes' records before taking the lock: a first build reads the whole log.

        Return whether the batch needs folds that are being built in steps and are not ready.
        """
        facets = self.facets
        wants_agenda = needs.agenda or bool(self.waiters.claims)
        builds = (wants_agenda and facets.agenda is None) or (needs.keyed and facets.dedup is None)
        if builds or facets.agenda is not None:
            self.journal.refresh()
            if self.builds_in_steps and facets.lacks(agenda=wants_agenda, keys=needs.keyed):
                return True
            facets.catch_up()
            self._need_folds(facets, needs)
        return False

    def _need_folds(self, facets: Facets, needs: BatchNeeds) -> None:
        if facets.agenda is None and (needs.agenda or self.waiters.claims):
            self._need_agenda()
        if needs.keyed and facets.dedup is None:
            facets.need_dedup()

    def _need_agenda(self) -> Agenda:
        if self.facets.agenda is None:
            self._tend_at_ns = 0
        return self.facets.need_agenda()

    def _defer_unbuilt(self, requests: list[Request]) -> tuple[list[Request], BatchNeeds]:
        """Hold back requests that need a fold that is still being built; return the rest."""
        waiting = self.waiters.take_claims()
        rest: list[Request] = []
        held: list[Request] = []
        # Jobs without a key need not wait for keyed jobs of the same run.
        parts = [parted([asked]) if _is_mixed(asked) else [asked] for asked in requests]
        for request in (*chain.from_iterable(parts), *waiting):
            op, _, future, operand = request
            if op == _ENQUEUE and operand[2] is None:
                rest.append(request)
                continue
            needs = BatchNeeds.of([request])
            if not self.facets.lacks(agenda=needs.agenda, keys=needs.keyed):
                rest.append(request)
            elif future is None or not future.done():
                held.append(request)
        self.undecided.hold(held)
        return rest, BatchNeeds.of(rest)

    def _locked(self, requests: list[Request], needs: BatchNeeds) -> OSError | None:
        """Decide and append; return the disk's error if it refused, which leaves no trace."""
        answers, claims = self.answers, list(self.waiters.claims)
        before = len(answers.now), len(answers.later), answers.later_lsn
        journal, claims_lsn = self.journal, self._claims_lsn
        try:
            if journal.offset >= journal.segment_bytes:
                journal.rotate()
            time_ns, step_ns = journal.log_time()
            batch = Batch(journal, time_ns)
            self._catch_up(batch, step_ns, needs)
            self._run(batch, requests)
            if self.operations.deaths.noted:
                answers.add_later(self.operations.deaths.take_answers(), batch.lsn)
            if self.facets.agenda is not None:
                self.operations.close(batch)
                self._note_frame(batch)
            count = batch.lsn - batch.first_lsn
            if count:
                if batch.features:
                    journal.allow(batch.features)
                where = journal.segment, journal.offset
                journal.append(b"".join(batch.parts), count, time_ns)
                if self.facets.followed:
                    self.facets.appended(where)
                journal.meters.sizes.record(count)
                journal.meters.payload_bytes += batch.payload_size
                if self.room.refused is not None:
                    self.room.appended()
                self.unsynced = self.unsynced or batch.interest != 0
        except Exception as error:
            answers.go_back_to(*before)
            self.waiters.claims, self._claims_lsn = claims, claims_lsn
            # The fold is discarded together with the batch's changes, and built anew.
            self.facets.discard(broken=not isinstance(error, (OSError, TaskqError)))
            self.operations.forget()
            if not isinstance(error, OSError):
                raise
            return error
        self._interest |= batch.interest | (INTEREST_GROWTH if count else 0)
        self.trouble = None
        return None

    def _catch_up(self, batch: Batch, step_ns: int, needs: BatchNeeds) -> None:
        facets = self.facets
        if facets.followed:  # at least the folds that the batch needs
            facets.catch_up()
            self._need_folds(facets, needs)
            self.operations.context.caught_up()
        if step_ns:
            batch.add(codec.encode_clock(step_ns, batch.lsn))
            for facet in (facets.agenda, facets.dedup):
                if facet is not None:
                    facet.apply_clock(step_ns)
        agenda = facets.agenda
        if agenda is None:
            return
        agenda.promote(batch.time_ns)
        self._take_back(batch, ends=bool(self.waiters.claims) or _CLAIM in needs.ops)
        # No job expires in the frame that records a step: the new time may be corrected again.
        following = agenda.next_expiry_ns()
        self._expiring = False
        if not step_ns and following is not None and following <= batch.time_ns:
            self._expiring = self.operations.cancels.expire(batch)

    def _take_back(self, batch: Batch, *, ends: bool) -> None:
        """Give back the jobs of dead owners; jobs without attempts die only if ``ends``.

        A short-lived command does not end jobs: it has no hooks for dead letters.
        """
        dead = self.owners.dead_if_due(self.journal.clock.steady_ns())
        if dead:
            self.taken_back += self.operations.claims.take_back_lost(batch, dead, ends=ends)
            self.owners.forget(dead)

    def _note_frame(self, batch: Batch) -> None:
        """Let the agenda date the jobs of this batch; may be called twice."""
        agenda = self.facets.agenda
        if agenda is not None and batch.count:
            agenda.ages.note(batch.first_lsn, agenda.moment)

    def look_around(self) -> None:
        """Fail all waiters if the log's files are gone; called while nothing is written."""
        try:
            self.journal.check_files()
            self._tend(self.journal.clock.steady_ns())
        except LogFailed as error:
            self._refuse([], error)

    def _tend(self, now_ns: int) -> None:
        """Do once a second the work without a request: sample gauges, check this owner's liveness.

        Raises:
            LogGone: other processes consider this owner dead, and may take its claims.
        """
        if now_ns < self._tend_at_ns:
            return
        self._tend_at_ns = now_ns + LOOK_AROUND_NS
        self.gauges.sample(self.facets.agenda, now_ns)
        self.journal.meters.settle()
        self.journal.writer.waits.settle()
        if not self.peers.is_known():
            raise self.journal.is_gone("its file in owners/ was removed, moved or replaced")

    def take_interest(self) -> int:
        """Return interest bits of the processes to wake; called once per batch."""
        interest, self._interest = self._interest, 0
        return interest

    def _run(self, batch: Batch, requests: list[Request]) -> None:
        for op, port, future, operand in requests:
            self._run_one(batch, op, port, future, operand)
        agenda, operations = self.facets.agenda, self.operations
        if agenda is not None and agenda.steps.orphans:
            operations.cancels.follow(batch)
        if agenda is not None and agenda.flows.todo:
            operations.ends.follow(batch)
        if self.answers.later:
            self.answers.later_lsn = max(self.answers.later_lsn, batch.lsn)
        orphans = agenda is not None and agenda.steps.orphans
        if self.waiters.claims and not orphans:
            # Extensions come first: a late holder in this batch still has its claim.
            self.taken_back += operations.claims.take_back_over(batch)
            operations.report_deaths(batch)
            self._note_frame(batch)
            self._serve_claims(batch)
        if operations.deaths.noted:
            operations.report_deaths(batch)

    def _run_one(self, batch: Batch, op: int, port: Any, future: Any, operand: Any) -> None:
        if future is not None and future.done():  # withdrawn in time
            return
        try:
            if op in NOWAIT:
                items, on_error = operand
                for item, error in self.operations.settles.settle_soon(batch, op, items):
                    self.answers.now.append((port, None, (on_error, item, error)))
                return
            if op == _CLAIM:
                self.waiters.claims.append((operand, port, future))
                return
            if op == _OUTCOME:
                self.waiters.outcomes.add(operand, port, future)
                return
            value = self.operations.table[op](batch, operand)
        except TaskqError as error:
            # An error that names a job or a position waits until its source is on disk.
            waits = isinstance(error, DuplicateKey | SourceMoved)
            answers = self.answers.later if waits else self.answers.now
            answers.append((port, future, error))
            return
        if op in _AT_ONCE:
            self.answers.now.append((port, future, value))
            return
        self.answers.later.append((port, future, value))
        self.answers.later_lsn = max(self.answers.later_lsn, batch.lsn)

    def _serve_claims(self, batch: Batch) -> None:
        waiting: list[tuple[ClaimRequest, Any, Any]] = []
        steady = self.journal.clock.steady_ns()
        claims, agenda = self.waiters.claims, self.facets.need_agenda()
        if self._expiring:
            agenda.times.find_over(batch.time_ns)
        for number, claim in enumerate(claims, 1):
            request, port, future = claim
            if future.done():
                continue
            deliveries, must_sync = self.operations.claims.claim_jobs(batch, request)
            if deliveries:
                if must_sync:
                    self.answers.later.append((port, future, deliveries))
                    self.answers.later_lsn = self._claims_lsn = batch.lsn
                else:
                    self.answers.now.append((port, future, deliveries))
            elif request.is_over(steady) and not self._is_behind(batch.time_ns):
                self.answers.now.append((port, future, []))
            else:
                waiting.append(claim)
            if agenda.order.is_full:  # the others come first in the next batch
                waiting = [*claims[number:], *waiting]
                break
        if agenda.order.passed:
            self.operations.cancels.expire_passed(batch)
        self.waiters.claims = waiting

    def _is_behind(self, now_ns: int) -> bool:
        """Return whether more jobs are due, lost or expired than this batch handled.

        A waiting claim might have got one of these jobs.
        """
        agenda = self.facets.need_agenda()
        moments = agenda.next_due_ns(), agenda.leases.next_ns()
        is_due = any(moment is not None and moment <= now_ns for moment in moments)
        return is_due or agenda.order.is_full or self.owners.left

    # -- refusing ---------------------------------------------------------------------------------

    def _refuse(self, requests: list[Request], error: TaskqError) -> None:
        waiters = self.waiters
        if isinstance(error, LogError):
            self.trouble = error
        if isinstance(error, LogFailed):
            # The log fails until a person acts: an idle worker must not look healthy.
            requests = [*requests, *waiters.take_claims()]
            self.answers.now += fail_all(waiters.take_listeners(), error)
        requests = self._not_watched(requests)
        if not isinstance(error, LogError):
            patient = [request for request in requests if request[0] == Op.CLAIM]
            waiters.claims += [(operand, port, future) for _, port, future, operand in patient]
            requests = [request for request in requests if request[0] != Op.CLAIM]
        self.answers.now += refusals(requests, error)

    def _not_watched(self, requests: list[Request]) -> list[Request]:
        has = self.waiters.outcomes.has
        return [
            asked for asked in requests if asked[0] != Op.OUTCOME or not has(asked[3], asked[2])
        ]

    def _give_up(self, requests: list[Request], error: OSError) -> None:
        """Answer a batch that the disk refused: with the error, or keep it for a retry.

        Claims wait for room until their time is up; other errors do not pass by themselves.
        Watchers need no room.
        """
        path, is_own = self.journal.path, error.errno in _OF_PROCESS
        failed = refusal(path, error) if is_own else AppendFailed(path, error)
        known = {id(claim[2]) for claim in self.waiters.claims}
        requests = [asked for asked in self._not_watched(requests) if id(asked[2]) not in known]
        waiting = [*self.waiters.take_claims(), *requests]
        steady_ns, has_hope = self.journal.clock.steady_ns(), is_full(error)
        for request in waiting:
            op, port, future, operand = request
            if op in NOWAIT and not is_own:
                self.undecided.held.append(request)
                if self.trouble is None and not has_hope:
                    self.trouble = failed
                    _log.warning("ended jobs wait for the disk: %s", failed)
            elif op == Op.OUTCOME and has_hope:
                self._look(request)
            elif op == Op.CLAIM and has_hope and not operand.is_over(steady_ns):
                self.waiters.claims.append((operand, port, future))
            elif future is None or not future.done():
                self.answers.now += refusals([request], failed)

    # -- outcomes ---------------------------------------------------------------------------------

    def follow(self) -> None:
        """Look for outcomes written by other processes, without the lock."""
        self.journal.refresh()
        self._seen = self.journal.segment, self.journal.offset
        if self.builds_in_steps:
            self.facets.lacks(agenda=False, keys=False)
        self.facets.catch_up()
        if self.waiters.outcomes.waiting:
            self._answer_watchers()

    def has_news(self) -> bool:
        """Return whether the log has records that waiters here have not seen.

        The journal's own end may include them: reading the log for another reason moves it, too.
        """
        journal = self.journal
        return self._seen != (journal.segment, journal.offset) or journal.has_grown()

    def _answer_watchers(self) -> None:
        self.answers.add_later(list(self.waiters.outcomes.settled()), self.journal.next_lsn)

    # -- durability -------------------------------------------------------------------------------

    @property
    def holds_claims(self) -> bool:
        """Return whether claims of jobs that may not run twice wait for the disk."""
        return self._claims_lsn > self.journal.durable_lsn

    def must_sync(self) -> bool:
        journal, durable_lsn = self.journal, self.journal.durable_lsn
        # A loss of more lsns could reach the ids after a restart.
        if journal.next_lsn - durable_lsn > LSN_SKIP // 2 or self.holds_claims:
            return True
        if self.config.durability is not Durability.FSYNC:
            return False
        return bool(self.answers.later) and self.answers.later_lsn > durable_lsn

    def rest(self) -> None:
        """Sync the whole log and publish its end with a sync point, unless that is done.

        Raises:
            OSError: the disk refused.
            LogError: as ``Journal.lock``.
        """
        journal = self.journal
        if not journal.ends_in_sync_point():
            if journal.durable_lsn < journal.next_lsn:
                self.sync()
            journal.leave_sync_point()

    def sync(self) -> None:
        """Make all answers durable, or turn them into errors with an unknown outcome."""
        self.unsynced = False
        try:
            self.journal.sync()
        except OSError as error:
            self.answers.refuse_later(OutcomeUnknown(self.journal.path, error))
            self.journal.fail(error)
