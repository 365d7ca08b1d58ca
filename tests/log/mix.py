"""A history of several processes that compact at the same time, between any two steps.

All must agree with a process that only reads, and so never loses its place.
"""

from typing import ClassVar, Final

from taskq.core.folds.jobtable import STATE_MASK
from taskq.core.model import State
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig, QueuePolicy
from taskq.log.state.facets import Facets
from taskq.log.state.job_history import job_view
from taskq.log.upkeep.upkeep import Upkeep
from tests.log.simulation import SPECS, Simulation
from tests.log.world import (
    FILLER,
    SMALL,
    Meaning,
    Process,
    fill_segment,
    keeping,
    meaning,
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


class Mix(Simulation):
    """One history; ``locked``: one process at a time compacts, as outside of tests."""

    ACTS: ClassVar = {
        "ask": 650, "tend": 300, "pass_time": 30, "step_clock": 10, "restart": 10, "fill": 8,
    }  # fmt: skip
    REQUESTS: ClassVar = {
        "enqueue": 150, "claim": 113, "settle": 150, "extend": 23, "cancel": 15, "pause": 6,
        "steer": 4, "withdraw": 10, "requeue": 15, "purge": 15, "edit": 30, "step": 60,
        "signal": 45, "transact": 10, "settle_soon": 10, "ingest": 5, "tick": 10,
    }  # fmt: skip
    clock_steps: tuple[int, ...] = (-HOUR, -600, -60, 60, 600, HOUR)

    def __init__(self, seed: int, config: LogConfig, *, locked: bool = False) -> None:
        super().__init__(seed, config=config)
        self.locked = locked
        self.observer = self.world.process()
        for _ in range(3):
            self.safely(self.appear)

    def _care(self, process: Process) -> Upkeep:
        care = super()._care(process)
        if not self.locked:
            care._take_turn = lambda: True  # type: ignore[method-assign]
        process.catch_up()
        return care

    def act(self) -> None:
        super().act()
        self.safely(self.see)

    def see(self) -> None:
        if self.observer.disk.is_dead:
            self.observer = self.world.process()
        self.observer.catch_up()

    def fill(self) -> None:
        process = self.chance.choice(self.processes)
        segment = process.journal.segment
        while process.journal.segment == segment:
            process.enqueue(FILLER)
            for delivery in process.claim(3):
                process.settle(delivery)

    # -- what must be true ------------------------------------------------------------------------

    def check(self) -> None:
        """Who folds what is left finds what who saw all of it knows; every record is there."""
        self._heal()
        self.world.process().close()  # as a killed one left it
        self.see()
        now_ns = self.now_ns()
        folded = self.world.fold()
        said = self.meaning(folded, now_ns)
        assert said == self.meaning(self.observer.catch_up(), now_ns)
        dues = {job: moment for job, moment, _ in said["dues"]}
        expiries = dict(said["expiries"])
        self._check_snapshots(loosely=True)
        agenda, files = folded.need_agenda(), folded._journal.files
        for table in (agenda.table, agenda.dead):
            for chunk, at in table:
                job = chunk.ids[at]
                files.record(chunk.locations[at], job)
                view = self.world.job(job)
                state = State.DEAD if table is agenda.dead else State(chunk.metas[at] & STATE_MASK)
                # The clock decides which.
                assert view.state is state or {view.state, state} <= {State.READY, State.SCHEDULED}
                assert view.reason or state is not State.DEAD
                assert view.state is not state or view.due_ns == dues.get(job, view.due_ns)
                assert view.expires_ns == expiries.get(job, view.expires_ns)

    def meaning(self, facets: Facets, now_ns: int) -> Meaning:
        return meaning(facets, now_ns)

    def now_ns(self) -> int:
        time_ns, step_ns = self.observer.journal.log_time()
        return time_ns - step_ns

    def run(self, steps: int) -> None:
        """Do as many acts and look at times; then let everybody finish what is due."""
        for number in range(steps):
            self.act()
            if not number % 75:
                self.check()
        self._heal()  # also of a crash that was planned
        for process in self.processes:
            tend_a_while(process, self.cares[process], 400)
        self.check()


class History(Mix):
    """A mix without compaction, and what was live after each of its acts.

    Args: seed: of all random choices. steps_of_clock: the clock is set forward and back, too.
    small: the log keeps little, for ``compact``.
    """

    clock_steps: tuple[int, ...] = (-7_200, -60, 60, 10**8, -(10**8))

    def __init__(self, seed: int, *, steps_of_clock: bool = False, small: bool = False) -> None:
        super().__init__(seed, _TIGHT if small else SMALL)
        self.acts |= {"tend": 0, "fill": 0, "restart": 30, "pass_time": 100}
        self.acts["step_clock"] *= steps_of_clock
        self.requests["edit"] = 120
        self.steps_ns = 0
        self.by_lsn: dict[int, Meaning] = {}
        #: lsn -> answers for some numbers, be they jobs or not
        self.told: dict[int, dict[int, JobView | None]] = {}
        #: wall time then less the steps before -> what was live last at that time
        self.by_time: dict[int, Meaning] = {}

    def run(self, steps: int) -> None:
        for number in range(steps):
            if number == steps // 2:
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
