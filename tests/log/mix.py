"""A history of several processes that compact at the same time, between any two steps.

All must agree with a process that only reads, and so never loses its place.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
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
from taskq.core.folds.dedup import UNTIL_SETTLED
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
from taskq.log.state.facets import Facets
from taskq.log.state.job_history import job_view
from taskq.log.upkeep.upkeep import Upkeep
from tests.log.world import (
    FILLER,
    SMALL,
    Meaning,
    Process,
    World,
    fill_segment,
    keeping,
    meaning,
    some_edit,
    tend,
    tend_a_while,
)

ACTS: Final = 300
HOUR: Final = 3_600
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


class Mix:
    """One history."""

    def __init__(self, seed: int, config: LogConfig, *, locked: bool) -> None:
        self.random = random.Random(seed)
        self.world = World(seed=seed, config=config)
        self.locked = locked
        self.observer = self.world.process()
        self.tended: list[tuple[Process, Upkeep]] = []
        self.jobs: list[int] = []
        self.held: list[tuple[Process, Delivery]] = []
        for _ in range(3):
            self.join()

    def join(self) -> None:
        process = self.world.process()
        care = Upkeep(process.committer)
        if not self.locked:
            care._take_turn = lambda: True  # type: ignore[method-assign]
        process.catch_up()
        self.tended.append((process, care))

    def act(self) -> None:
        acts: dict[Callable[[Process], object], int] = {
            self.put: 20, self.claim: 15, self.settle: 20, self.extend: 3, self.cancel: 2,
            self.pause: 1, self.withdraw: 2, self.letter: 4, self.fill: 1, self.edit: 4,
            self.step: 8, self.signal: 6,
        }  # fmt: skip
        number = self.random.randrange(100)
        if number < 30:
            self.tend(self.random.choice([1, 1, 2, 5, 30]))
        elif number < 33:
            self.world.clock.advance(self.random.choice([1, 60, 600, 3_000]))
        elif number < 34:
            self.world.clock.step(self.random.randrange(-HOUR, HOUR))
        elif number < 35:
            self.die()
        else:
            (act,) = self.random.choices(list(acts), list(acts.values()))
            with contextlib.suppress(*REFUSED):
                act(self.random.choice(self.tended)[0])
        self.observer.catch_up()

    def tend(self, count: int) -> None:
        process, care = self.random.choice(self.tended)
        tend_a_while(process, care, count)

    def die(self) -> None:
        process, care = self.tended.pop(self.random.randrange(len(self.tended)))
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
        assert said(folded, now_ns) == said(seen, now_ns), when
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


def said(facets: Facets, now_ns: int) -> dict[str, Any]:
    """The meaning; a window that is over adds nothing to a key that is held until the job ends."""
    result = meaning(facets, now_ns)
    result["keys"] = {
        key: UNTIL_SETTLED if is_alive and until <= now_ns else until
        for key, (until, is_alive) in result["keys"].items()
    }
    return result


# -- acts ------------------------------------------------------------------------------------------


_TIGHT: Final = keeping(keep_bytes=3 * SEGMENT_BYTES_MIN, keep_seconds=None)

_SPECS: Final = [
    EnqueueSpec(queue, "task", priority, 2) for queue in ("mail", "sync") for priority in (1, 5, 9)
]
_KEYS: Final = (b"a", b"b", b"c")


class History:
    """Random acts of several processes, and the live jobs after each.

    Args: seed: of all random choices. steps_of_clock: the clock is set forward and back, too.
    small: the log keeps little, for ``compact``.
    """

    def __init__(self, seed: int, *, steps_of_clock: bool = False, small: bool = False) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed, _TIGHT if small else SMALL)
        self.processes = [self.world.process() for _ in range(2)]
        self.held: list[tuple[Process, Delivery]] = []
        self.steps_ns = 0
        self._steps_of_clock = steps_of_clock
        self.by_lsn: dict[int, Meaning] = {}
        #: lsn -> answers for some numbers, be they jobs or not
        self.told: dict[int, dict[int, JobView | None]] = {}
        #: wall time then less the steps before -> what was live last at that time
        self.by_time: dict[int, Meaning] = {}

    def run(self, count: int) -> None:
        for number in range(count):
            if number == count // 2:
                self.processes[0].enqueue(bytes(70_000))  # the next goes to the next segment
                self._note()
            self._act()
            self._note()

    def compact(self) -> None:
        process = self.processes[0]
        for _ in range(4):
            fill_segment(process)
            tend(process)

    def _act(self) -> None:
        process = self.chance.choice(self.processes)
        act = self.chance.choice(
            [self._enqueue, self._enqueue, self._claim, self._settle, self._settle, self._cancel,
             self._requeue, self._purge, self._pause, self._resume, self._pass_time, self._die,
             self._edit]
        )  # fmt: skip
        act(process)
        if self._steps_of_clock and self.chance.random() < 0.1:
            self.world.clock.step(self.chance.choice((-7_200, -60, 60, 10**8, -(10**8))))
        # Effects of time and clock are in the log from here on.
        self.chance.choice(self.processes).enqueue(spec=self.chance.choice(_SPECS))

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

    def _enqueue(self, process: Process) -> None:
        extras = self.chance.choice((
            None, None, Extras(key=self.chance.choice(_KEYS)),
            Extras(key=self.chance.choice(_KEYS), window_ns=90 * SECOND_NS),
            Extras(due_ns=70 * SECOND_NS), Extras(expires_ns=80 * SECOND_NS),
            Extras(due_ns=self.world.clock.wall_ns() + 50 * SECOND_NS, due_is_wall=True),
            Extras(expires_ns=self.world.clock.wall_ns() + 90 * SECOND_NS, expires_is_wall=True),
        ))  # fmt: skip
        body = bytes(self.chance.choice((0, 10, 500)))
        process.offer(body, extras, self.chance.choice(_SPECS))

    def _claim(self, process: Process) -> None:
        self.held += [
            (process, delivery) for delivery in process.claim(self.chance.randrange(1, 4))
        ]

    def _settle(self, process: Process) -> None:
        mine = [job for job in self.held if job[0] is process]
        if mine:
            held = self.chance.choice(mine)
            self.held.remove(held)
            kind = self.chance.choice((Kind.SUCCEEDED, Kind.DEAD, Kind.RETRIED, Kind.RELEASED))
            delay_ns = self.chance.choice((0, 60 * SECOND_NS))
            rest = {} if kind in (Kind.SUCCEEDED, Kind.DEAD) else {"delay_ns": delay_ns}
            process.settle(held[1], kind, body=b"because", **rest)

    def _cancel(self, process: Process) -> None:
        ready = process.catch_up().need_agenda().order.next_ready(5, None)
        if ready:
            process.ask(Op.CANCEL, self.chance.choice(ready))

    def _edit(self, process: Process) -> None:
        wish = some_edit(process, self.chance, (b"mail", b"sync"))
        if wish is not None:
            with contextlib.suppress(KeyHeld):
                process.ask(Op.EDIT, wish)

    def _requeue(self, process: Process) -> None:
        dead = self._dead(process)
        if dead:
            process.ask(Op.REQUEUE, letters(process.committer.sight, dead).items)

    def _purge(self, process: Process) -> None:
        process.ask(Op.PURGE, self._dead(process))

    def _dead(self, process: Process) -> list[int]:
        agenda = process.catch_up().need_agenda()
        jobs = [chunk.ids[index] for chunk, index in agenda.dead]
        return jobs and [self.chance.choice(jobs)]

    def _pause(self, process: Process) -> None:
        process.ask(Op.PAUSE, self.chance.choice(("mail", "sync")))

    def _resume(self, process: Process) -> None:
        process.ask(Op.RESUME, self.chance.choice(("mail", "sync")))

    def _pass_time(self, _: Process) -> None:
        self.world.clock.advance(self.chance.choice((0.5, 20, 61, 3_600)))

    def _die(self, process: Process) -> None:
        if self.chance.random() < 0.3:
            self.held = [job for job in self.held if job[0] is not process]
            process.kill()
            self.processes[self.processes.index(process)] = self.world.process()
