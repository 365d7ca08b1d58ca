"""The agenda, a fold of the log: unsettled jobs, the order of claims, and running jobs by claim."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Final

from taskq.core import controls, kinds
from taskq.core.flows import Flows
from taskq.core.folds import jobtable, lanes, steps
from taskq.core.folds.claims import ClaimOrder, LaneQueues
from taskq.core.folds.jobtable import (
    ATTEMPT_MASK,
    ATTEMPT_SHIFT,
    META_BACK,
    META_EXPIRES,
    META_STEPS,
    RUN_MIN,
    STATE_MASK,
    JobTable,
)
from taskq.core.folds.moments import STALE_MAX, Ages, Leases, Timetable
from taskq.core.folds.steps import Steps, shifted
from taskq.core.kinds import CANCEL, DEATHS, READY, RUNNING, SCHEDULED, SUCCESS
from taskq.core.model import LIVE_STATES, SECOND_NS, TIME_NS_MAX, State
from taskq.core.schedules import apply_ticked

if TYPE_CHECKING:
    from taskq.core import schedules, sources

_NOW_DUE: Final = int(kinds.BY_TIME[State.SCHEDULED])
#: Attribute of a lane that counts the jobs with this end.
_COUNTED: Final = {kind: str(kinds.after(State.RUNNING, kind)) for kind in kinds.ENDS}
_ALL: Final = 2**62
_TIED: Final = jobtable.META_FLOW | META_STEPS
#: Flags of jobs with an expiry or steps to forget at their success.
_SPECIAL: Final = META_EXPIRES | META_STEPS
#: Jobs that turn ready in one batch: a million due at once would hold the writer lock too long.
PROMOTE_MAX: Final = 4_096
#: Stale entries between two checks for a sweep, which spreads the work.
_SWEEP_EVERY: Final = 64


class Agenda:
    """Every unsettled job, and the jobs that may be claimed.

    ``apply_*`` take plain numbers. The live log calls them for its own records, the decoder for
    records of other processes. They check nothing: a record is a fact. Decisions use ``order``,
    ``due`` and the ``running`` table.

    Relative moments are kept in shifted time (wall time less the sum of all recorded clock steps),
    so one step of the clock moves all of them.

    Attributes:
        table: every unsettled job.
        dead: dead letters by job: location of the job's ENQUEUED record (or of the record that
            carries it), lane, and in ``meta`` the second of wall time of its death.
        running: job -> (token, epoch, owner) of its claim.
        leases: deadlines of these claims, and requests to cancel them.
        flows: jobs that wait for others.
        steps: steps, signals and waits of jobs that resume their runs.
        times: due times of scheduled jobs, and expiries.
        ages: times since when ready jobs wait, and the current moment.
        schedules: last tick of each schedule, by name.
        sources: position of each source, by name.
        controls: settings that people changed at run time, by name.
        steered: changes of controls and schedules since this object was made, without ticks.
        queues: the lanes, and the lanes with jobs to claim.
        lanes: all lanes by number.
        groups: limits of tasks, each with its lanes.
        order: order of claims.
        floor_lsn: segments that begin before it may be gone.
        edits: edits of waiting jobs since this object was made.
    """

    def __init__(self) -> None:
        self.table: JobTable = JobTable()
        self.dead: JobTable = JobTable()
        self.running: dict[int, tuple[int, int, int]] = {}
        self.leases: Leases = Leases()
        self.steps: Steps = Steps()
        self.flows: Flows = Flows()
        self.times: Timetable = Timetable()
        self.ages: Ages = Ages()
        self.schedules: dict[str, schedules.ScheduleState] = {}
        self.sources: dict[str, sources.SourceState] = {}
        self.controls: dict[str, sources.SourceState] = {}
        self.queues: LaneQueues = LaneQueues(self.ages)
        self.order: ClaimOrder = ClaimOrder(self.table, self.queues, self.ages, self.times)
        self.floor_lsn = 0
        self.edits: int = 0
        self.steered: int = 0
        self._scheduled = self._expiring = self._left = 0
        # Used for each job. Keeping a bound method would cost more than this lookup.
        self.lanes: list[lanes.Lane] = self.queues.lanes
        self.groups: lanes.LimitGroups = self.queues.groups
        #: handed to each lane when a job leaves it
        self._is_fresh = self.table.is_fresh

    @property
    def moment(self) -> int:
        """Current moment, in shifted time; see ``Timetable``."""
        return self.ages.moment

    # -- apply ------------------------------------------------------------------------------------

    def apply_enqueued(self, job: int, location: int, lane: lanes.Lane, meta: int) -> None:
        """Add a job that is ready at once; ``meta`` holds flags only."""
        self.table.add(job, location, lane.number, meta | READY)
        lane.push(job)
        lane.ready += 1
        if lane.ready == 1 and not lane.blocked:
            self.queues.open(lane)

    def apply_enqueued_run(
        self, first: int, locations: Sequence[int], lane: lanes.Lane, meta: int
    ) -> None:
        self.table.extend(first, locations, lane.number, meta | READY)
        self._enter_fresh(lane, first, len(locations))

    def apply_enqueued_groups(
        self,
        first: int,
        locations: Sequence[int],
        groups: list[tuple[lanes.Lane, int, int, int, bool]],
    ) -> None:
        """Add jobs from ``first`` on: (lane, meta, count, due_ns or 0, is_wall) of each group."""
        numbers, metas = array("I"), array("I")
        for lane, meta, count, due_ns, _ in groups:
            numbers.extend((lane.number,) * count)
            metas.extend((meta | (SCHEDULED if due_ns else READY),) * count)
        self.table.extend(first, locations, numbers, metas)
        for lane, _, count, due_ns, is_wall in groups:
            if due_ns:
                lane.scheduled += count
                self.note_scheduled(first, due_ns, is_wall)
            else:
                self._enter_fresh(lane, first, count)
            first += count

    def _enter_fresh(self, lane: lanes.Lane, first: int, count: int) -> None:
        lane.push_run(first, count)
        lane.ready += count
        if lane.ready and not lane.blocked:
            self.queues.open(lane)

    def apply_scheduled(
        self, job: int, location: int, lane: lanes.Lane, meta: int, due_ns: int, is_wall: bool
    ) -> None:
        """Add a job that waits until ``due_ns`` of wall time."""
        self.table.add(job, location, lane.number, meta | SCHEDULED)
        lane.scheduled += 1
        self.note_scheduled(job, due_ns, is_wall)

    def apply_held(self, job: int, location: int, lane: lanes.Lane, meta: int, needs: int) -> None:
        """Add a job that waits for others; ``needs`` is their count, with the policy above it."""
        self.table.insert(job, location, lane.number, meta | SCHEDULED)
        lane.scheduled += 1
        self.note_held(job, (TIME_NS_MAX, True), needs)

    def apply_expiry(self, job: int, expires_ns: int, is_wall: bool) -> None:
        self.times.expire_at(job, expires_ns, is_wall)
        self._expiring += 1

    def apply_claimed(self, job: int, token: int, epoch: int, owner: int, attempt: int) -> bool:
        """Apply a claim of another process. False: the job is not in this fold."""
        if self.leases:
            self.leases.drop(job)
        chunk = self.table.find(job)
        if chunk is None:
            return False
        index = self.table.index
        meta = chunk.metas[index]
        lane = self.lanes[chunk.lanes[index]]
        self._leave(lane, job, meta)
        if meta & STATE_MASK == SCHEDULED and not (meta & _TIED and self._let_go(job, meta)):
            self.times.forget(job)
        chunk.metas[index] = (meta & ~(STATE_MASK | ATTEMPT_MASK)) | counted(attempt) | RUNNING
        self.queues.note_running(lane, 1)
        self.running[job] = (token, epoch, owner)
        return True

    def apply_claimed_run(
        self, jobs: list[int], attempts: list[int], owners: list[int], token: int, epoch: int
    ) -> None:
        number = 0
        while number < len(jobs):
            count = self._claim_from(jobs, attempts, owners, number, token, epoch)
            if not count:
                claim = token + number, epoch, owners[number], attempts[number]
                self.apply_claimed(jobs[number], *claim)
            number += count or 1

    def apply_rated(self, job: int, most: int, window_ns: int) -> None:
        """Count the claim just applied against a rate of ``most`` in ``window_ns``."""
        chunk = self.table.find(job)
        if chunk is None:
            return
        lane = self.lanes[chunk.lanes[self.table.index]]
        if lane.group is None:
            self.groups.join(lane, rated=True)
        if lane.group is not None:
            self.groups.rated(lane.group, self.ages.moment, 1, most, window_ns)

    def apply_cancel_asked(self, job: int, token: int) -> None:
        """Note that a caller wants the job under this claim cancelled; an older claim is ignored.

        The job ends with the claim, unless the attempt succeeds.
        """
        claim = self.running.get(job)
        if claim is not None and claim[0] == token:
            self.leases.asked.add(job)
            self.steps.orphans.pop(job, None)

    def apply_back(self, job: int, attempt: int, due_ns: int, now_ns: int) -> bool:
        """Return a running job to waiting. False: the job is not in this fold."""
        self.running.pop(job, None)
        if self.leases:
            self.leases.drop(job)
        chunk = self.table.find(job)
        if chunk is None:
            return False
        index = self.table.index
        meta = chunk.metas[index]
        lane = self.lanes[chunk.lanes[index]]
        self._leave(lane, job, meta)
        if meta & STATE_MASK == SCHEDULED and not (meta & _TIED and self._let_go(job, meta)):
            self.times.forget(job)
        if meta & (META_EXPIRES | STATE_MASK) == META_EXPIRES | RUNNING:
            # A claimed job no longer expires.
            meta &= ~META_EXPIRES
            self._expiring -= 1
        waits = due_ns > now_ns
        meta = (meta & ~(STATE_MASK | ATTEMPT_MASK)) | counted(attempt)
        chunk.metas[index] = meta | (SCHEDULED if waits else READY) | META_BACK
        if waits:
            lane.scheduled += 1
            self.note_scheduled(job, due_ns, is_wall=False)
        else:
            self.enter_ready(lane, job, now_ns - self.times.shift_ns)
        return True

    def apply_edited(
        self,
        job: int,
        location: int,
        lane: lanes.Lane,
        state: State,
        due: tuple[int, bool],
        since_ns: int,
        needs: int | None,
        awaiting: bytes = b"",
    ) -> bool:
        """Move a waiting job by the record at ``location``. False: the job is not in this fold.

        Arguments are as for ``apply_carried``. The job's expiry and attempts stay.
        """
        self.edits += 1
        self.running.pop(job, None)
        if self.leases:
            self.leases.drop(job)
        chunk = self.table.find(job)
        if chunk is None:
            return False
        index = self.table.index
        meta = chunk.metas[index]
        before = self.lanes[chunk.lanes[index]]
        self._leave(before, job, meta)
        before.discard(job)
        if meta & STATE_MASK == SCHEDULED and not (meta & _TIED and self._let_go(job, meta)):
            self.times.forget(job)
        chunk.locations[index], chunk.lanes[index] = location, lane.number
        chunk.metas[index] = (meta & ~STATE_MASK) | state | META_BACK
        if awaiting:
            self.steps.apply_carried_waits(job, awaiting, self.times.shift_ns)
        if state is State.READY:
            self.enter_ready(lane, job, since_ns - self.times.shift_ns)
        else:
            lane.scheduled += 1
            self.note_held(job, due, needs)
        self.queues.retire(before)
        return True

    def apply_ended(self, kind: int, job: int, now_ns: int = 0) -> bool:
        """Settle a job for good. False: it is not in this fold (ended before, or damaged)."""
        self.running.pop(job, None)
        if self.leases:
            self.leases.drop(job)
        chunk = self.table.find(job)
        if chunk is None:
            if self.steps and kind not in DEATHS:
                self.steps.drop(job)
            return False
        index = self.table.index
        meta = chunk.metas[index]
        lane = self.lanes[chunk.lanes[index]]
        self._leave(lane, job, meta)
        home = lane.home
        if kind == SUCCESS:  # the common case, without getattr
            home.succeeded += 1
        else:
            name = _COUNTED[kind]
            setattr(home, name, getattr(home, name) + 1)
        location = chunk.locations[index]
        self.table.remove(chunk, index)
        if kind in DEATHS:
            self.dead.insert(job, location, home.number, _dead_second(now_ns))
        if meta & _TIED:
            self._untie(kind, job)
        if meta & META_EXPIRES:
            self._expiring -= 1
            self._count_left()
        if home is not lane:
            self.queues.retire(lane)
        return True

    def apply_succeeded(self, jobs: list[int]) -> None:
        """Do as ``apply_ended`` for jobs that succeeded in this process."""
        table, lanes, running = self.table, self.lanes, self.running
        leases = self.leases or None  # asked once, not per job
        find, remove = table.find, table.remove
        done = self._succeed_runs(jobs) if leases is None else 0
        for job in islice(jobs, done, None):
            chunk = find(job)
            if chunk is None:
                continue
            index = table.index
            if chunk.metas[index] & (STATE_MASK | _SPECIAL) != RUNNING:
                self.apply_ended(SUCCESS, job)
                continue
            running.pop(job, None)
            if leases is not None:
                leases.drop(job)
            lane = lanes[chunk.lanes[index]]
            lane.running -= 1
            remove(chunk, index)
            if lane.group is None:
                lane.succeeded += 1
            else:
                self._succeeded_in_group(lane, lane.group)

    def _succeed_runs(self, jobs: list[int]) -> int:
        """Apply the successes of leading runs of jobs with adjacent rows; return their count."""
        table, at = self.table, 0
        while len(jobs) - at >= RUN_MIN:
            run = table.find_run(jobs, at)
            if run is None:
                break
            chunk, start, count = run
            lane = self.lanes[chunk.lanes[start]]
            is_plain = chunk.metas[start] & (STATE_MASK | _SPECIAL) == RUNNING
            if count < RUN_MIN or not is_plain or lane.group is not None:
                break
            lane.running -= count
            lane.succeeded += count
            table.remove_run(chunk, start, count)
            at += count
        deque(map(self.running.pop, jobs[:at], repeat(None)), 0)
        return at

    def apply_ticked(self, ticked: schedules.TickRecord) -> None:
        if ticked.is_gone or ticked.has_rule or self._is_paused(ticked) != ticked.state.is_paused:
            self.steered += 1
        apply_ticked(self.schedules, ticked)

    def _is_paused(self, ticked: schedules.TickRecord) -> bool:
        known = self.schedules.get(ticked.name)
        return known is not None and known.is_paused

    def apply_steered(self, control: sources.SourceRecord) -> None:
        """Apply a changed control; a task's control takes effect at once."""
        name, state = control
        if state.position:
            self.controls[name] = state
        else:
            self.controls.pop(name, None)
        self.steered += 1
        if name.startswith(controls.TASK):
            wish = controls.task_wish(controls.value_of(self.controls, name))
            self.queues.steer(name.removeprefix(controls.TASK), wish)

    def apply_clock(self, step_ns: int) -> None:
        """Apply a step of wall time: relative moments move with it."""
        self.times.step(step_ns)
        self.leases.shift_ns += step_ns

    def jobs_left_of_call(self, job: int, ended: int) -> int:
        """Return the smallest number of live jobs in one call, of several awaited calls.

        Return 0 for a job that waits for at most one call.
        """
        calls = self.steps.awaited_calls(job)
        if len(calls) < 2:  # noqa: PLR2004 - a single call
            return 0
        table, index = self.table, self.table.index
        left = [
            sum(child != ended and table.find(child) is not None for child in call)
            for call in calls
        ]
        table.index = index
        return min(left)

    # -- decide -----------------------------------------------------------------------------------

    def promote(self, now_ns: int, count: int = PROMOTE_MAX) -> None:
        """Turn due scheduled jobs ready; ``now_ns`` is wall time.

        At most ``count`` jobs with relative and ``count`` with wall due times.
        """
        self.ages.moment = max(now_ns - self.times.shift_ns, 0)
        for moment, job in self.times.due(now_ns, count):
            chunk = self.table.find(job)
            if chunk is None:
                continue
            index = self.table.index
            meta = chunk.metas[index]
            if meta & STATE_MASK != SCHEDULED:
                continue
            lane = self.lanes[chunk.lanes[index]]
            lane.scheduled -= 1
            self._scheduled -= 1
            chunk.metas[index] = (meta & ~STATE_MASK) | _NOW_DUE | META_BACK
            if meta & META_STEPS:
                self.steps.wake(job)
                self.flows.drop(job)
            self.enter_ready(lane, job, moment)

    def see(self, now_ns: int) -> None:
        """Promote and expire jobs as of ``now_ns``, for a reader that never writes."""
        self.promote(now_ns, _ALL)
        self.times.find_over(now_ns)

    def begin_frame(self, lsn: int, now_ns: int) -> None:
        """Begin a frame with this first lsn and wall time: jobs due by then are ready."""
        self.promote(now_ns, _ALL)
        self.ages.note(lsn, self.ages.moment)

    def location(self, job: int) -> int:
        chunk = self.table.find(job)
        if chunk is None:
            raise KeyError(job)
        return chunk.locations[self.table.index]

    def attempt(self, job: int) -> int:
        """Return the attempts counted so far of an unsettled job, 0 for an unknown job."""
        chunk = self.table.find(job)
        if chunk is None:
            return 0
        return (chunk.metas[self.table.index] & ATTEMPT_MASK) >> ATTEMPT_SHIFT

    def ready_since_ns(self, job: int, enqueued_ns: int) -> int:
        """Return the wall time since when a ready job waits, by the present clock.

        0 if the job waits since ``enqueued_ns``, its enqueue by the clock of that time.
        """
        shift, ages = self.times.shift_ns, self.ages
        back = self.order.back_since(job)
        if back is not None:
            return back + shift
        if not ages.dates(job):
            return 0
        since = ages.since(job) + shift
        # The difference may be one ``step_ns``; a larger one is a step of the clock.
        return 0 if 0 <= enqueued_ns - since <= ages.step_ns else since

    def next_due_ns(self) -> int | None:
        """Return a wall time before which no scheduled job turns ready; None without any."""
        return self.times.next_due_ns()

    def first_due_ns(self) -> int | None:
        """Return the wall time at which the next scheduled job is due, stale entries left out."""
        dues: dict[bool, int] = {}
        for moments, jobs, is_wall in self.times.blocks():
            if is_wall not in dues:
                pairs = zip(moments, jobs, strict=True)
                at = next((at for at, job in pairs if self._is_scheduled(job)), None)
                if at is not None:
                    dues[is_wall] = at if is_wall else at + self.times.shift_ns
        return min(dues.values(), default=None)

    def next_rate_ns(self) -> int | None:
        """Return the wall time at which a rate next allows claims; None if no job waits for it."""
        due = self.groups.due
        return due[0][0] + self.times.shift_ns if due else None

    def next_expiry_ns(self) -> int | None:
        """Return a wall time before which no job expires; None if no job expires."""
        return self.times.next_expiry_ns()

    def expired(self, now_ns: int, count: int) -> list[int]:
        """Return at most ``count`` waiting jobs that are expired now; the caller records each."""
        jobs = []
        for job in self.times.expired(now_ns, count):
            chunk = self.table.find(job)
            meta = 0 if chunk is None else chunk.metas[self.table.index]
            if meta & META_EXPIRES and meta & STATE_MASK != RUNNING:  # neither settled nor running
                jobs.append(job)
        return jobs

    # -- inside -----------------------------------------------------------------------------------

    def note_scheduled(self, job: int, due_ns: int, is_wall: bool) -> None:
        """Note that a job of the table waits until ``due_ns``; TIME_NS_MAX: no due time."""
        self._scheduled += 1
        if due_ns < TIME_NS_MAX:
            self.times.wait(job, due_ns, is_wall)

    def note_held(self, job: int, due: tuple[int, bool], needs: int | None) -> None:
        if self.steps.is_waiting(job):
            moment = self.steps.moment(job)
            due = (moment + self.times.shift_ns, False) if moment else (TIME_NS_MAX, True)
        elif needs is not None:
            due = TIME_NS_MAX, True
        self.note_scheduled(job, *due)
        if needs is not None:
            self.flows.hold(job, needs)

    def enter_ready(self, lane: lanes.Lane, job: int, moment: int | None = None) -> None:
        """Let a job of the table be claimed again, in its old place.

        It waits since ``moment`` of shifted time; None: from now on. Its meta has META_BACK.
        """
        moment = self.ages.moment if moment is None else max(moment, 0)
        self.ages.note_ready(moment)
        lane.give_back(job, moment)
        lane.ready += 1
        if not lane.blocked and (lane.ready == 1 or lane.family is not None):
            self.queues.open(lane)

    def enter_ready_run(self, lane: lanes.Lane, jobs: list[int], moments: list[int]) -> None:
        if min(moments) < 0:
            moments = [max(moment, 0) for moment in moments]
        self.ages.note_ready(min(moments))
        lane.give_back_run(jobs, moments)
        lane.ready += len(jobs)
        if lane.ready and not lane.blocked:
            self.queues.open(lane)

    def _claim_from(
        self,
        jobs: list[int],
        attempts: list[int],
        owners: list[int],
        number: int,
        token: int,
        epoch: int,
    ) -> int:
        """Claim the ready jobs of one lane, from index ``number`` on; return the count."""
        find, table, running = self.table.find, self.table, self.running
        lane: lanes.Lane | None = None
        start = number
        for job in islice(jobs, start, None):
            chunk = find(job)
            if chunk is None:
                break
            index = table.index
            meta = chunk.metas[index]
            if meta & STATE_MASK != READY or (
                lane is not None and chunk.lanes[index] != lane.number
            ):
                break
            lane = lane or self.lanes[chunk.lanes[index]]
            meta &= ~(STATE_MASK | ATTEMPT_MASK)
            chunk.metas[index] = meta | counted(attempts[number]) | RUNNING
            running[job] = (token + number, epoch, owners[number])
            number += 1
        if lane is None:
            return 0
        count = number - start
        lane.ready -= count
        self.queues.note_running(lane, count)
        if not lane.ready:
            self.queues.close(lane)
            return count
        claimed = jobs[start:number]
        if not lane.leave_run(claimed):
            for job in claimed:
                lane.leave(job, self._is_fresh)
            lane.left += count
        return count

    def _let_go(self, job: int, meta: int) -> bool:
        was_held = self.flows.drop(job)
        if not meta & META_STEPS:
            return was_held
        moment = self.steps.wake(job)
        if moment:
            self.times.forget_at(moment, job)
        return was_held or moment is not None

    def _leave(self, lane: lanes.Lane, job: int, meta: int) -> None:
        state = meta & STATE_MASK
        if state == RUNNING:
            lane.running -= 1
            if lane.group is not None:
                self.groups.left(lane.group)
        elif state == READY:
            lane.ready -= 1
            lane.left += 1
            if not lane.ready:
                self.queues.close(lane)
            else:
                lane.leave(job, self._is_fresh)
                if not lane.left % _SWEEP_EVERY and lane.entries > 2 * lane.ready + STALE_MAX:
                    lane.sweep(self._is_fresh)
        else:
            lane.scheduled -= 1
            self._scheduled -= 1
            self._count_left()

    def _succeeded_in_group(self, lane: lanes.Lane, group: lanes.LimitGroup) -> None:
        home = lane.home
        home.succeeded += 1
        self.groups.left(group)
        if home is not lane:
            self.queues.retire(lane)

    def _count_left(self) -> None:
        self._left += 1
        if not self._left % _SWEEP_EVERY:
            self.times.sweep_dues(self._scheduled, self._is_scheduled)
            self.times.sweep_expiries(self._expiring, self._is_live)

    def _untie(self, kind: int, job: int) -> None:
        self.flows.drop(job)
        steps = self.steps
        if kind == CANCEL and job in steps.calls:
            for child in steps.called_by(job):
                if self.table.find(child) is not None and child not in self.leases.asked:
                    steps.orphans[child] = None
        if kind not in DEATHS:  # a dead letter may be requeued, and then resumes its run
            steps.drop(job)
        steps.orphans.pop(job, None)

    def _is_scheduled(self, job: int) -> bool:
        chunk = self.table.find(job)
        return chunk is not None and chunk.metas[self.table.index] & STATE_MASK == SCHEDULED

    def _is_live(self, job: int) -> bool:
        return self.table.find(job) is not None


def counted(attempt: int) -> int:
    return (attempt << ATTEMPT_SHIFT) & ATTEMPT_MASK if attempt < 1 << 16 else ATTEMPT_MASK


_NEVER: Final = (0, False)


def apply_carried(
    agenda: Agenda,
    job: int,
    location: int,
    lane: lanes.Lane,
    meta: int,
    state: State,
    expires: tuple[int, bool],
    due: tuple[int, bool],
    claim: tuple[int, int, int],
    lease_ns: int,
    ended_ns: int,
    *,
    since_ns: int = 0,
    needs: int | None = None,
    awaiting: bytes = b"",
) -> None:
    """Set the job's location and state from a CARRIED record.

    ``meta`` holds flags and attempts. ``expires`` and ``due`` are (moment, whether it is wall
    time), with 0 for no moment. ``claim`` is (token, epoch, owner) of a running job. A ready job
    waits since ``since_ns`` of wall time. ``needs`` are the inputs of a held job, ``awaiting`` the
    waits within its run, see ``Steps.awaiting``.
    """
    if state is State.DEAD:
        _apply_carried_dead(agenda, job, location, lane, ended_ns)
        if awaiting:
            agenda.steps.apply_carried_waits(job, awaiting, agenda.times.shift_ns)
        return
    if state not in LIVE_STATES:
        return
    chunk = agenda.table.find(job)
    if chunk is not None:
        chunk.locations[agenda.table.index] = location
        return
    meta |= state | (META_BACK if state == READY else 0) | (META_EXPIRES if expires[0] else 0)
    if awaiting:
        meta |= META_STEPS
        agenda.steps.apply_carried_waits(job, awaiting, agenda.times.shift_ns)
    if needs is not None:
        agenda.apply_held(job, location, lane, meta & ~STATE_MASK, needs)
    else:
        agenda.table.insert(job, location, lane.number, meta)
        if state is State.SCHEDULED:
            lane.scheduled += 1
            agenda.note_held(job, due, None)
        elif state is State.RUNNING:
            _run_carried(agenda, job, lane, claim, lease_ns)
        else:
            agenda.enter_ready(lane, job, since_ns - agenda.times.shift_ns)
    if expires[0]:
        agenda.apply_expiry(job, *expires)


def _run_carried(
    agenda: Agenda, job: int, lane: lanes.Lane, claim: tuple[int, int, int], lease_ns: int
) -> None:
    agenda.queues.note_running(lane, 1)
    agenda.running[job] = claim
    if lease_ns:
        agenda.leases.apply_until(job, lease_ns)


def apply_carried_run(
    agenda: Agenda,
    jobs: list[int],
    locations: list[int],
    lane: lanes.Lane,
    meta: int,
    since_ns: list[int],
) -> None:
    """Do as ``apply_carried`` for ready jobs of rising numbers that were never claimed."""
    table = agenda.table
    if not table.is_free(jobs[0], jobs[-1]):
        for job, location, since in zip(jobs, locations, since_ns, strict=True):
            apply_carried(
                agenda, job, location, lane, meta, State(READY), _NEVER, _NEVER, (0, 0, 0), 0, 0,
                since_ns=since,
            )  # fmt: skip
        return
    table.insert_run(jobs, locations, lane.number, meta | READY | META_BACK)
    shift = agenda.times.shift_ns
    agenda.enter_ready_run(lane, jobs, [since - shift for since in since_ns])


def _apply_carried_dead(
    agenda: Agenda, job: int, location: int, lane: lanes.Lane, ended_ns: int
) -> None:
    dead = agenda.dead
    chunk = dead.find(job)
    if chunk is not None:
        chunk.locations[dead.index] = location
        return
    lane = lane.home
    lane.dead += 1
    dead.insert(job, location, lane.number, _dead_second(ended_ns))


def _dead_second(time_ns: int) -> int:
    """Return the second of a death, within the 32 bits of its column; 0 is no death."""
    return min(max(time_ns // SECOND_NS, 1), 2**32 - 1)


def apply_requeued(
    agenda: Agenda,
    job: int,
    location: int,
    lane: lanes.Lane,
    meta: int,
) -> None:
    """Make a dead letter ready again, without an attempt; ``meta`` holds flags only."""
    forget_dead(agenda, job)
    if agenda.table.find(job) is not None:
        return
    if agenda.steps.knows(job):
        meta |= META_STEPS
    agenda.table.insert(job, location, lane.number, meta | READY | META_BACK)
    agenda.enter_ready(lane, job)


def forget_dead(agenda: Agenda, job: int) -> bool:
    chunk = agenda.dead.find(job)
    if chunk is None:
        return False
    index = agenda.dead.index
    agenda.lanes[chunk.lanes[index]].dead -= 1
    agenda.dead.remove(chunk, index)
    return True


def apply_tallied(lane: lanes.Lane, succeeded: int, cancelled: int, expired: int) -> None:
    """Set the lane's totals of ended jobs, since a fold may have seen only some of their records.

    Dead letters are left out: each is carried by a record of its own, and counted.
    """
    lane.succeeded = succeeded
    lane.cancelled = cancelled
    lane.expired = expired


def apply_step(
    agenda: Agenda,
    job: int,
    place: int,
    location: int,
    taken: int,
    once: bytes,
    title: tuple[str, int] | None = None,
    called: tuple[int, int] | None = None,
    form: int = steps.Form.STEP,
) -> None:
    """Note a finished step of a job; see ``Steps.apply_step``.

    ``title`` is its name and number. ``called`` is (first job, count) of the jobs that the step
    enqueued and that are cancelled together with this one.
    """
    steps = agenda.steps
    steps.apply_step(job, place, location, taken, once, form)
    if title is not None and job in steps.begun:
        steps.apply_over(job, *title)
    if called is not None:
        steps.apply_called(job, *called)
    _mark(agenda, job)


def apply_begun(agenda: Agenda, job: int, packed: bytes) -> None:
    """Note waits that a running job begins without suspending its run."""
    agenda.steps.apply_begun(job, shifted(packed, -agenda.times.shift_ns))
    _mark(agenda, job)


def apply_signal(agenda: Agenda, job: int, signal: steps.Signal) -> None:
    agenda.steps.apply_signal(job, signal)
    _mark(agenda, job)


def apply_waiting(
    agenda: Agenda,
    job: int,
    attempt: int,
    due_ns: int,
    now_ns: int,
    packed: bytes,
    needs: int | None,
) -> None:
    """Suspend the run of a job for these waits, until ``due_ns`` at the latest.

    If ``due_ns`` has passed, the job does not wait. ``needs`` is as for ``apply_held``.
    """
    if not agenda.apply_back(job, attempt, due_ns, now_ns):
        return
    _mark(agenda, job)
    waits = due_ns > now_ns
    agenda.steps.apply_waits(job, shifted(packed, -agenda.times.shift_ns), now=waits)
    if waits and needs is not None:
        agenda.flows.hold(job, needs)


def _mark(agenda: Agenda, job: int) -> None:
    chunk = agenda.table.find(job)
    if chunk is not None:
        chunk.metas[agenda.table.index] |= META_STEPS
