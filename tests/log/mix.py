"""A history of several processes that compact at the same time, between any two steps.

All must agree with a process that only reads, and so never loses its place.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any, Final

from taskq.core.controls import Change
from taskq.core.errors import (
    DuplicateKey,
    JobCancelled,
    JobNotFound,
    JobSettled,
    KeyHeld,
    NotWaiting,
    StaleDelivery,
    UsageError,
)
from taskq.core.folds.jobtable import STATE_MASK
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS, WAITING_STATES, Conflict, Extras, State
from taskq.core.records import Cause, Flag, Kind
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig, QueuePolicy
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.read.jobs import JobFilter
from taskq.log.read.selection import letters, waiting_page
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op, Withdrawal
from taskq.log.state.job_history import job_view
from taskq.log.upkeep.snapshots import SnapshotPolicy
from taskq.log.upkeep.upkeep import Upkeep
from tests.log.world import (
    FILLER,
    SMALL,
    Meaning,
    Process,
    World,
    check_same,
    fill_segment,
    keeping,
    meaning,
    some_edit,
    tend,
    tend_a_while,
)

ACTS: Final = 300
HOUR: Final = 3_600
_TIGHT: Final = keeping(keep_bytes=3 * SEGMENT_BYTES_MIN, keep_seconds=None)
CONFIGS: Final = [
    keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None),
    keeping(keep_seconds=600, queues={"other": QueuePolicy(keep_seconds=9_000)}),
    keeping(keep_segments=1, keep_seconds=HOUR),
]
SPECS: Final = [
    EnqueueSpec(task="mail.send"),
    EnqueueSpec("other", "mail.send", 2, 3),
    EnqueueSpec("third", "x", 7, 1, flags=int(Flag.DROP_RESULT)),
]
#: JobCancelled: the lease of a claim that somebody wants over is not extended.
REFUSED: Final = (
    StaleDelivery, JobCancelled, JobNotFound, JobSettled, DuplicateKey, KeyHeld,
)  # fmt: skip


#: act of a mix, and how often it comes
WEIGHTS: Final = {
    "tend_on": 300, "pass_time": 30, "step_clock": 10, "die": 10,
    "put": 150, "claim": 113, "settle": 150, "extend": 23, "cancel": 15, "pause": 8,
    "withdraw": 15, "letter": 30, "fill": 8, "edit": 30, "step": 60, "signal": 45,
}  # fmt: skip


class Mix:
    """One history; ``weights`` has its acts, methods by name."""

    def __init__(
        self, seed: int, config: LogConfig, *, locked: bool = False, processes: int = 3
    ) -> None:
        self.random = random.Random(seed)
        self.weights = dict(WEIGHTS)
        self.world = World(seed=seed, config=config)
        self.locked = locked
        self.observer = self.world.process()
        self.tended: list[tuple[Process, Upkeep]] = []
        self.jobs: list[int] = []
        self.held: list[tuple[Process, Delivery]] = []
        #: checks that found a snapshot to begin with
        self.snapped = 0
        for _ in range(processes):
            self.join()

    def join(self) -> None:
        process = self.world.process()
        care = Upkeep(process.committer)
        if not self.locked:
            care._take_turn = lambda: True  # type: ignore[method-assign]
        care._snapshots._policy = SnapshotPolicy(3_000, 10**6)
        process.catch_up()
        self.tended.append((process, care))

    def act(self) -> None:
        (name,) = self.random.choices(list(self.weights), list(self.weights.values()))
        with contextlib.suppress(*REFUSED):
            getattr(self, name)(self.random.choice(self.tended)[0])
        self.observer.catch_up()

    def pass_time(self, _: Process) -> None:
        self.world.clock.advance(self.random.choice([1, 60, 600, 3_000]))

    def step_clock(self, _: Process) -> None:
        self.world.clock.step(self.random.randrange(-HOUR, HOUR))

    def tend_on(self, _: Process) -> None:
        self.tend(self.random.choice([1, 1, 2, 5, 30]))

    def tend(self, count: int) -> None:
        process, care = self.random.choice(self.tended)
        tend_a_while(process, care, count)

    def die(self, process: Process) -> None:
        (care,) = [care for other, care in self.tended if other is process]
        self.tended.remove((process, care))
        self.held = [job for job in self.held if job[0] is not process]
        if care._steps is not None:
            care._steps.close()  # its half-done work is another test's concern
        process.kill()
        self.join()

    def put(self, process: Process) -> None:
        pick, extras = self.random, Extras()
        now_ns = self.world.clock.wall_ns()
        if pick.random() < 0.3:
            extras.due_is_wall = pick.random() < 0.3
            extras.due_ns = pick.randrange(1, 5_000) * SECOND_NS + now_ns * extras.due_is_wall
        if pick.random() < 0.2:
            extras.expires_is_wall = pick.random() < 0.5
            extras.expires_ns = pick.randrange(1, 9_000) * SECOND_NS
            extras.expires_ns += now_ns * extras.expires_is_wall
        if pick.random() < 0.4:
            extras.key = b"%d" % pick.randrange(8)
            extras.window_ns = pick.choice([0, 600, 9_000]) * SECOND_NS
            extras.until_settled = pick.random() < 0.5
            extras.on_conflict = pick.choice(list(Conflict))
        body = b"." * pick.choice([10, 10, 3_000])
        answer = process.offer(body, pick.choice([extras, None]), pick.choice(SPECS))
        if isinstance(answer, int):
            self.jobs.append(answer)

    def claim(self, process: Process) -> None:
        lease_ns = self.random.choice([0, 0, 500]) * SECOND_NS
        request = ClaimRequest(self.random.randrange(1, 5), wait_until_ns=0, lease_ns=lease_ns)
        self.held += [(process, delivery) for delivery in process.ask(Op.CLAIM, request)]

    def settle(self, _: Process) -> None:
        if not self.held:
            return
        pick = self.random
        process, delivery = self.held.pop(pick.randrange(len(self.held)))
        kind = pick.choice([Kind.SUCCEEDED] * 3 + [Kind.RETRIED, Kind.DEAD, Kind.RELEASED])
        rest: dict[str, Any] = {}
        if kind is not Kind.SUCCEEDED:
            rest["cause"] = Cause.EXHAUSTED
        if kind is Kind.RELEASED and pick.random() < 0.6:
            until_ns = self.world.clock.wall_ns() + pick.choice([-1, 70, 4_000]) * SECOND_NS
            waits = [Wait(Form.SLEEP, "sleep", 1, until_ns), Wait(Form.EVENT, "paid", 1)]
            waits = pick.choice([waits, waits[1:], waits[:1]])
            process.settle(delivery, kind, body=pack_waits(waits), cause=Cause.WAITS)
            return
        if kind in (Kind.RETRIED, Kind.RELEASED):
            rest["cause"] = pick.choice([Cause.EXHAUSTED, Cause.CALLER, Cause.DRAIN])
            rest["delay_ns"] = pick.choice([0, 700]) * SECOND_NS
        process.settle(delivery, kind, body=b"%d" % delivery.job, **rest)

    def extend(self, _: Process) -> None:
        if self.held:
            process, delivery = self.random.choice(self.held)
            process.ask(Op.EXTEND, (delivery, self.random.randrange(1, 900) * SECOND_NS))

    def step(self, _: Process) -> None:
        if not self.held:
            return
        process, delivery = self.random.choice(self.held)
        form = self.random.choice(list(Form)[:4])
        name = "paid" if form is Form.EVENT else "do"
        number = process.committer.facets.need_agenda().steps.count(delivery.job)
        body = b'"%s"' % (b"." * self.random.choice([3, 4_000]))
        process.ask(Op.STEP, NewStep(delivery, form, name, number, body))

    def signal(self, process: Process) -> None:
        if self.jobs:
            job, once = self.random.choice(self.jobs), self.random.choice(["", "a", "b"])
            process.ask(Op.SIGNAL, NewSignal(job, self.random.choice(["paid", "x"]), b"{}", once))

    def cancel(self, process: Process) -> None:
        if self.jobs:
            process.ask(Op.CANCEL, self.random.choice(self.jobs))

    def pause(self, process: Process) -> None:
        process.ask(self.random.choice([Op.PAUSE, Op.RESUME]), "other")
        paused = self.random.choice([True, None])
        process.ask(Op.CONTROL, Change("task:x", {"paused": paused, "concurrency": 2}))

    def withdraw(self, process: Process) -> None:
        process.catch_up()
        count = self.random.randrange(1, 5)
        jobs = waiting_page(process.committer.sight, JobFilter(), 0, 2**62, count).items
        process.ask(Op.WITHDRAW, Withdrawal(jobs))

    def letter(self, process: Process) -> None:
        dead = [row[0] for row in process.catch_up().need_agenda().dead.rows(0, 999)]
        if not dead:
            return
        job = self.random.choice(dead)
        if self.random.random() < 0.5:
            process.ask(Op.PURGE, [job])
        else:
            process.ask(Op.REQUEUE, letters(process.committer.sight, [job]).items)

    def edit(self, process: Process) -> None:
        wish = some_edit(process, self.random, (b"default", b"other", b"third"))
        if wish is None:
            return
        try:
            process.ask(Op.EDIT, wish)
        except UsageError:  # it waits within its run
            assert wish.due is not None
        except NotWaiting:  # it expired at the beginning of the batch
            view = self.world.view(wish.item.job)
            assert view is None or view.state not in WAITING_STATES

    def fill(self, process: Process) -> None:
        segment = process.journal.segment
        while process.journal.segment == segment:
            process.enqueue(FILLER)
            for delivery in process.claim(3):
                process.settle(delivery)

    # -- what must be true ------------------------------------------------------------------------

    def check(self, when: str) -> None:
        """Who folds what is left finds what who saw all of it knows; every record is there."""
        seen = self.observer.catch_up()
        time_ns, step_ns = self.observer.journal.log_time()
        now_ns = time_ns - step_ns
        folded = self.world.fold()
        assert meaning(folded, now_ns) == meaning(seen, now_ns), when
        behind, total = check_same(self.world, loosely=True)
        self.snapped += behind < total
        agenda, files = folded.need_agenda(), folded._journal.files
        for table in (agenda.table, agenda.dead):
            for chunk, at in table:
                job = chunk.ids[at]
                files.record(chunk.locations[at], job)
                view = self.world.view(job)
                assert view is not None, when
                state = State.DEAD if table is agenda.dead else State(chunk.metas[at] & STATE_MASK)
                # The clock decides which.
                assert view.state is state or {view.state, state} <= {
                    State.READY,
                    State.SCHEDULED,
                }, when
                assert view.reason or state is not State.DEAD, when


class History(Mix):
    """A mix without compaction, and what was live after each of its acts.

    Args: seed: of all random choices. steps_of_clock: the clock is set forward and back, too.
    small: the log keeps little, for ``compact``.
    """

    def __init__(self, seed: int, *, steps_of_clock: bool = False, small: bool = False) -> None:
        super().__init__(seed, _TIGHT if small else SMALL, processes=2)
        self.weights |= {"tend_on": 0, "fill": 0, "die": 30, "pass_time": 100, "edit": 120}
        self.weights["step_clock"] *= steps_of_clock
        self.chance, self.steps_ns = self.random, 0
        self.by_lsn: dict[int, Meaning] = {}
        #: lsn -> answers for some numbers, be they jobs or not
        self.told: dict[int, dict[int, JobView | None]] = {}
        #: wall time then less the steps before -> what was live last at that time
        self.by_time: dict[int, Meaning] = {}

    @property
    def processes(self) -> list[Process]:
        return [process for process, _ in self.tended]

    def step_clock(self, _: Process) -> None:
        self.world.clock.step(self.chance.choice((-7_200, -60, 60, 10**8, -(10**8))))

    def run(self, count: int) -> None:
        for number in range(count):
            if number == count // 2:
                self.processes[0].enqueue(bytes(70_000))  # the next goes to the next segment
                self._note()
            self.act()
            # Effects of time and clock are in the log from here on.
            self.chance.choice(self.processes).enqueue(spec=self.chance.choice(SPECS))
            self._note()

    def compact(self) -> None:
        process = self.processes[0]
        for _ in range(4):
            fill_segment(process)
            tend(process)

    def _note(self) -> None:
        process = self.processes[0]
        now_ns = self.world.clock.wall_ns()
        picture = meaning(process.catch_up(), now_ns)
        steps_ns = sum(record.step_ns for record in self.world.records())
        self.by_lsn[process.journal.next_lsn - 1] = picture
        self.by_time[now_ns - steps_ns] = picture
        newest = process.journal.next_lsn - 1
        some = {self.chance.randint(1, newest) for _ in range(6)}
        self.told[newest] = {job: job_view(process.journal, job, now_ns) for job in some}
        self.steps_ns = steps_ns
