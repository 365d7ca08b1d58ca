"""Jobs for a device through everything that the simulation of a hub and its device does.

Besides, either machine may lose its power or a process be killed at each step of asking, ingesting
and settling; the line drops, doubles and delays questions and answers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import SourceMoved, TaskqError
from taskq.core.model import SECOND_NS, WAITING_STATES, Extras, State
from taskq.core.records import Kind as RecordKind
from taskq.core.sources import Move, decode_position
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.enqueue import together
from taskq.log.read.selection import key_holder
from taskq.log.requests import EnqueueSpec, Ingest, Item, Op, Trait, Withdrawal
from taskq.log.segments.identity import read_identity
from taskq.log.state.job_history import job_view
from taskq.log.upkeep.upkeep import Upkeep
from taskq_plugins.hub import outbox
from taskq_plugins.hub.models import JOB, CopyEnd, Given, Question, adapter, as_json
from taskq_plugins.hub.outbox import DeviceOutbox
from tests.hub.simulation import DEVICE, HUB, LineDropped, Simulation, at_once
from tests.log.world import PATH, Process, World, tend
from tests.machine.crashable import CrashableDisk, PowerLost, ProcessKilled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from taskq.core.views import JobView
    from taskq.engine import Tag
    from taskq.log.format.record import Record
    from taskq_plugins.hub.models import Answer, Request

_CONFIG: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=0, keep_seconds=10**7
)
_TASKS: Final = ("update", "update", "update", "rm")
#: More rounds than it takes until all is over.
_ROUNDS: Final = 40


class Own:
    """The device's own log, as the taking of jobs has it open."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.connection = self

    async def send_many(self, items: list[Item], move: Move) -> None:
        self._process.ask(Op.INGEST, Ingest(move, together(items)))

    async def find(self, key: bytes, queue: str) -> JobView | None:
        look = lambda sight: key_holder(sight, queue.encode(), key)  # noqa: E731 - as ``log.find``
        lsn = self._process.ask(Op.LOOK, (look, Trait.KEYS))
        return None if lsn is None else self._process.world.view(lsn)

    async def cancel(self, job_id: str) -> bool:
        return bool(self._process.ask(Op.CANCEL, int(job_id.rpartition("-")[2])))


class OutboxSimulation(Simulation):
    """A device, a hub with jobs for it, and what lies between."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.out = World(seed + 2, _CONFIG)
        self.out.machine = self.hub_machine
        self.hub_machine.wall_ns = self.out.clock.wall_ns
        self.out.path = str(outbox.folder(HUB, DEVICE))
        self.out.is_whole = False
        self._keeper: Process | None = None
        self._session = 0
        self._questions: list[Question] = []
        #: what the device's logs said when a job was expired for it
        self._words: dict[str, outbox.There | None] = {}
        self.handed = self.lost = 0

    def chances(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super().chances(), (20, self._order), (3, self._cancel_one), (2, self._keep_outbox),
            (4, self._settle), (3, self._ask_late),
        ]  # fmt: skip

    # -- the hub's own log ------------------------------------------------------------------------

    def _outbox(self) -> Process:
        self._hub()
        for _ in range(3):
            if self._keeper is None:
                try:
                    self._keeper = self.out.process()
                except (PowerLost, ProcessKilled):
                    raise
                except (TaskqError, OSError):
                    self._drop_keeper()
                    continue
            return self._keeper
        raise AssertionError("the outbox does not open")

    def _drop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
        self._keeper = None

    def _stop_hub(self) -> None:
        super()._stop_hub()
        self._drop_keeper()

    def _at_hub(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except (PowerLost, ProcessKilled) as error:
            self.hub = None
            self._drop_keeper()
            if isinstance(error, PowerLost):
                self.out.everyone_is_gone()
            self._checked.clear()
            raise LineDropped from None
        except (OSError, TaskqError):
            self._stop_hub()
            raise LineDropped from None

    def _on_hub(self, act: Callable[[], Any]) -> None:
        if self.random.random() < 0.15:
            steps = self.hub_machine.steps + self.random.randrange(1, 15)
            self.hub_machine.stop_at(steps, power=self.random.random() < 0.5)
        try:
            self._at_hub(act)
        except LineDropped:
            """It died, or begins anew."""
        finally:
            self.hub_machine.stop_at(None)

    def _order(self) -> None:
        chance = self.random.random()
        expires_ns = self.random.choice((1, 5_000)) * SECOND_NS if chance < 0.1 else 0
        due_ns = 200 * SECOND_NS if chance > 0.9 else 0
        body = self.random.randbytes(self.random.choice((10, 3_000)))
        spec = EnqueueSpec(
            self.random.choice(("default", "firmware")), self.random.choice(_TASKS), attempts=3
        )
        extras = Extras(due_ns=due_ns, expires_ns=expires_ns)
        self._on_hub(lambda: self._outbox().offer(body, extras, spec))

    def _cancel_one(self) -> None:
        def act() -> None:
            waiting = self._waiting()
            if waiting:
                self._outbox().ask(Op.CANCEL, self.random.choice(waiting))

        self._on_hub(act)

    def _keep_outbox(self) -> None:
        self._on_hub(lambda: tend(self._outbox(), Upkeep(self._outbox().committer)))

    def _settle(self) -> None:
        def act() -> None:
            keeper = self._outbox()
            jobs, since_ns = keeper.ask(Op.LOOK, (outbox.waiting_in, Trait.AGENDA))
            reader = self._reading(since_ns)
            tag = keeper.journal.tag
            over = [job for job in jobs if reader.is_settled(tag, job)]
            self._words.update({tag.id(job): reader.find(tag, job) for job in over})
            keeper.ask(Op.WITHDRAW, Withdrawal(over, expired=True))

        self._on_hub(act)

    def _reading(self, since_ns: int = 0) -> outbox.DeviceReader:
        if self.log_id is not None:
            with self._hub()._held(DEVICE, self.log_id):
                """What a crash left is cut off."""
        reader = outbox.DeviceReader(HUB, DEVICE, self._hub_disk)
        reader.read(since_ns)
        return reader

    def _pass_time(self) -> None:
        super()._pass_time()
        self.out.clock.advance(self.random.choice((1, 100, 1_000)))

    def _waiting(self) -> list[int]:
        agenda = self._outbox().catch_up().need_agenda()
        ids = [chunk.ids[index] for chunk, index in agenda.table]
        return [job for job in ids if agenda.table.state(job) in WAITING_STATES]

    # -- the line ---------------------------------------------------------------------------------

    def _ask_hub(self, asked: Request) -> Answer:
        try:
            answer = super()._ask_hub(asked)
        except LineDropped:
            if self.hub is None:
                self._drop_keeper()
                self.out.everyone_is_gone(0)
            raise
        if isinstance(answer, CopyEnd):
            self._session = answer.session
        return answer

    def _give(self, asked: Question) -> Given | None:
        asked = adapter(Question).validate_json(as_json(asked))

        def act() -> Given | None:
            if not self._hub().is_latest(DEVICE, asked):
                return None
            self._outbox()
            journal = self.out.reader()
            now_ns = self.out.clock.wall_ns()
            return outbox.given(journal, self.out.view, self._end, asked, now_ns)

        answer = self._at_hub(act)
        if answer is None:
            return None
        given: Given = adapter(Given).validate_json(as_json(answer))
        return given

    def _end(self, tag: Tag, job: int, name: str) -> JobView | None:
        there = self._reading().find(tag, job, name)
        if there is None or not there.is_over:
            return None
        its = job_view(self._reader(there.path), there.number, self.out.clock.wall_ns())
        return its and there.view(its)

    def _down(self, asked: Question) -> Given | None:
        chance = self.random.random()
        if chance < 0.08:
            self._questions.append(asked)
            raise LineDropped
        if chance < 0.16:
            self._give(asked)
            raise LineDropped
        if chance < 0.22:
            self._give(asked)
        if chance < 0.4:
            steps = self.hub_machine.steps + self.random.randrange(1, 25)
            self.hub_machine.stop_at(steps, power=self.random.random() < 0.5)
        try:
            return self._give(asked)
        finally:
            self.hub_machine.stop_at(None)

    def _ask_late(self) -> None:
        if self._questions:
            asked = self._questions.pop(self.random.randrange(len(self._questions)))
            with contextlib.suppress(LineDropped):  # nobody waits for it
                self._give(asked)

    # -- a session --------------------------------------------------------------------------------

    def session(self) -> None:
        """The device brings the hub to where its log ends, then takes what is there for it."""
        self._talk(self.random.choice((100, 5_000, 200_000)), self._line, self._down)

    def _talk(
        self,
        part: int,
        line: Callable[[Request], Answer],
        down: Callable[[Question], Given | None],
    ) -> None:
        if PATH + "/taskq.json" not in self.world.machine.paths():
            return
        after: dict[str, int] = {}

        def look(process: Process) -> None:
            for name, state in process.catch_up().need_agenda().sources.items():
                after[name.removeprefix(outbox.SOURCE)] = decode_position(state.position)

        if not self._on_device(look) or (log := self._read_device()) is None:
            return
        try:
            self._drive(log, part, line)
            if down == self._down and self.random.random() < 0.4:
                self._work()  # the hub has not heard of it
            self._take(after, down)
        except LineDropped:
            """The next try goes on."""
        finally:
            self.world.machine.stop_at(None)
            with contextlib.suppress(PowerLost, ProcessKilled):
                log.close()

    def _take(self, after: dict[str, int], down: Callable[[Question], Given | None]) -> None:
        machine, log_id = self.world.machine, self.log_id
        assert log_id is not None
        if down == self._down and self.random.random() < 0.3:
            steps = machine.steps + self.random.randrange(1, 20)
            machine.stop_at(steps, power=self.random.random() < 0.5)

        async def ask(asked: Question) -> Given | None:
            return down(asked)

        def act(process: Process) -> None:
            @contextlib.asynccontextmanager
            async def opened() -> AsyncIterator[Any]:
                yield Own(process)

            taking = DeviceOutbox(["update"]).take(self._session, log_id, after, ask, opened)
            with contextlib.suppress(SourceMoved):
                self.handed += at_once(taking).jobs

        self._on_device(act)

    # -- what must hold ---------------------------------------------------------------------------

    def check_bytes(self) -> None:
        super().check_bytes()
        born = Counter(
            record.headers[JOB]
            for record in self._device_log()
            if record.type == RecordKind.ENQUEUED and JOB in record.headers
        )
        assert not born or max(born.values()) == 1, born

    def _device_log(self) -> list[Record]:
        if read_identity(CrashableDisk(self.world.machine), PATH) is None:
            return []
        return self.world.records()

    def settle(self) -> None:
        super().settle()
        self._questions.clear()
        for _ in range(_ROUNDS):
            self.world.clock.advance(300)
            self.out.clock.advance(300)
            self._talk(20_000, self._ask_hub, self._give)
            self._finish_all()
            self._talk(20_000, self._ask_hub, self._give)
            self._settle()
            if not self._waiting() and not self._is_busy():
                break
        else:
            raise AssertionError(f"forgotten: {self._waiting()}")
        self.check_bytes()
        self._check_ends()

    def _finish_all(self) -> None:
        def act(process: Process) -> None:
            while deliveries := process.claim(50):
                for delivery in deliveries:
                    process.settle(delivery, body=delivery.payload[:20])

        self._on_device(act)

    def _is_busy(self) -> bool:
        agenda = self._device().catch_up().need_agenda()
        return any(True for _ in agenda.table)

    def _check_ends(self) -> None:
        """Each job ended once here, and its device says how unless it never came there."""
        records, tag = self.out.records(), self.out.reader().tag
        births = {record.job: record for record in records if record.type == RecordKind.ENQUEUED}
        ends = Counter(record.job for record in records if record.end and not record.carried)
        assert all(count == 1 for count in ends.values()), ends
        for record in records:
            if record.end is not State.EXPIRED or record.carried or record.job not in births:
                continue
            job = tag.id(record.job)
            there = self._words.get(job)
            is_late = 0 < births[record.job].expires_ns <= record.time_ns
            assert is_late or job in self._words, record
            assert there is None or there.is_over
            self.lost += there is None and not is_late
            if there and births[record.job].task == "rm":
                assert "not among what is accepted" in there.words
