"""Random acts of several processes on one log, and what was live after each."""

from __future__ import annotations

import contextlib
import random
from typing import Final

from taskq.core.errors import KeyHeld
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read.selection import letters
from taskq.log.requests import Delivery, EnqueueSpec, Op
from taskq.log.state.job_history import job_view
from tests.log.editing import some_edit
from tests.log.tending import Meaning, fill_segment, keeping, meaning, tend
from tests.log.world import SMALL, Process, World

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
