"""Jobs for a device through everything that the simulation of a hub and its device does.

Besides, either machine may lose its power or a process be killed at each step of asking, handing
over, publishing, adopting and settling; each may be set back to an earlier day; the line drops,
cuts, doubles and delays questions and answers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import TaskqError
from taskq.core.model import SECOND_NS, WAITING_STATES, Extras, State
from taskq.core.records import Kind as RecordKind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.inbox.adopter import Adopter
from taskq.log.read.selection import letters
from taskq.log.requests import EnqueueSpec, Op, Trait
from taskq.log.segments.identity import read_identity
from taskq.log.upkeep.upkeep import Upkeep
from taskq_plugins.hub.device_outbox import DeviceOutbox, look
from taskq_plugins.hub.hub_outbox import EXPIRES, NONCE, QUEUE, HubOutbox, Identified
from taskq_plugins.hub.models import (
    JOB,
    Append,
    CopyEnd,
    Declare,
    Given,
    HubError,
    Question,
    Stored,
    adapter,
    as_json,
    decode_given,
    encode_given,
)
from tests.hub.simulation import DEVICE, HUB, LineDropped, Simulation, at_once
from tests.log.tending import tend
from tests.log.uploading import adopt
from tests.log.world import PATH, Process, World
from tests.machine.crashable import CrashableDisk, PowerLost, ProcessKilled
from tests.machine.machine import parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.engine import DurableLog
    from taskq.log.format.record import Record
    from taskq.log.requests import Ended, Letter
    from taskq.log.state.facets import LogView
    from taskq_plugins.hub.copies import Copies
    from taskq_plugins.hub.device_outbox import InboxState
    from taskq_plugins.hub.models import Answer, Request

_CONFIG: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=0, keep_seconds=600.0
)
_TO: Final = f"to:{DEVICE}"
_SPEC: Final = EnqueueSpec(_TO, "update", attempts=3)
_ENDS: Final = frozenset(
    {RecordKind.SUCCEEDED, RecordKind.DEAD, RecordKind.CANCELLED, RecordKind.EXPIRED}
)
#: More rounds than it takes until all is over.
_ROUNDS: Final = 40


class Port:
    """A port of a process in whose simulation nobody waits."""

    def __init__(self, process: Process) -> None:
        self._ask = process.ask

    def look(self, function: Callable[[LogView], object], *, needs_agenda: bool = True) -> object:
        return self._ask(Op.LOOK, (function, Trait.AGENDA if needs_agenda else Trait(0)))

    def skip(self, lsn: int) -> object:
        return self._ask(Op.SKIP, lsn)

    def settle_for(self, ends: list[Ended]) -> object:
        return self._ask(Op.SETTLE_FOR, ends)

    def letters(self, jobs: list[int]) -> Any:
        return self.look(lambda sight: letters(sight, jobs).items)

    def requeue(self, dead: list[Letter]) -> object:
        return self._ask(Op.REQUEUE, dead)


class OutboxSimulation(Simulation):
    """A device, a hub with jobs for it, and what lies between."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.out = World(seed + 2, _CONFIG)
        self.out.machine = self.hub_machine
        self.hub_machine.wall_ns = self.out.clock.wall_ns
        self.out.path = f"{HUB}/outbox"
        self.out.is_whole = False
        self._keeper: Process | None = None
        self._handing: HubOutbox | None = None
        self._session = 0
        self._questions: list[Question] = []
        #: how often a job was made ready again by a person, by its word
        self.again: Counter[str] = Counter()
        self.handed = 0

    def chances(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super().chances(), (20, self._order), (12, self._adopt), (3, self._cancel_one),
            (5, self._requeue), (2, self._keep_outbox), (3, self._expire), (3, self._ask_late),
            (4, self._crash_adopting), (2, self._lose_inbox),
        ]  # fmt: skip

    # -- the hub's own log ------------------------------------------------------------------------

    def _hub(self) -> Copies:
        is_new, hub = self.hub is None, super()._hub()
        if is_new and self.log_id is not None:
            with hub._held(DEVICE, self.log_id):
                """What a crash left is cut off."""
        return hub

    def _outbox(self) -> Process:
        self._hub()
        for _ in range(3):
            if self._keeper is None:
                try:
                    self._keeper = self.out.process()
                    self._keeper.ask(Op.PAUSE, _TO)
                except (PowerLost, ProcessKilled):
                    raise
                except (TaskqError, OSError):
                    self._drop_keeper()
                    continue
            return self._keeper
        raise AssertionError("the outbox does not open")

    def _desk(self) -> HubOutbox:
        keeper = self._outbox()
        if self._handing is None:
            disk = self._hub_disk
            port = Port(keeper)
            self._handing = HubOutbox(
                lambda: disk, HUB, self.out.clock, self.registry, lambda what: what(port)
            )
        return self._handing

    def _drop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
        self._keeper = self._handing = None

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
        nonce = self.random.randbytes(6).hex()
        headers = {NONCE: nonce, QUEUE: self.random.choice(("default", "firmware"))}
        if self.random.random() < 0.1:
            soon_ns = self.out.clock.wall_ns() + self.random.choice((1, 5_000)) * SECOND_NS
            headers[EXPIRES] = str(soon_ns)
        due_ns = 200 * SECOND_NS if self.random.random() < 0.1 else 0
        body = self.random.randbytes(self.random.choice((10, 3_000)))
        extras = Extras(headers=headers, due_ns=due_ns)
        self._on_hub(lambda: self._outbox().offer(body, extras, _SPEC))

    def _cancel_one(self) -> None:
        def act() -> None:
            waiting = self._waiting()
            if waiting:
                self._outbox().ask(Op.CANCEL, self.random.choice(waiting))

        self._on_hub(act)

    def _requeue(self) -> None:
        """A person makes a dead letter ready again."""

        def act() -> None:
            keeper = self._outbox()
            agenda = keeper.catch_up().need_agenda()
            dead = [chunk.ids[index] for chunk, index in agenda.dead]
            if dead:
                job = self.random.choice(dead)
                view = self.out.view(job)
                assert view is not None
                self.again[view.headers[NONCE]] += 1
                port = Port(keeper)
                port.requeue(port.letters([job]))

        self._on_hub(act)

    def _keep_outbox(self) -> None:
        self._on_hub(lambda: tend(self._outbox(), Upkeep(self._outbox().committer)))

    def _expire(self) -> None:
        self._on_hub(lambda: self._desk().expire())

    def _pass_time(self) -> None:
        super()._pass_time()
        self.out.clock.advance(self.random.choice((1, 100, 1_000)))

    def _waiting(self) -> list[int]:
        agenda = self._outbox().catch_up().need_agenda()
        return [
            chunk.ids[index]
            for chunk, index in agenda.table
            if agenda.table.state(chunk.ids[index]) in WAITING_STATES
        ]

    # -- the device -------------------------------------------------------------------------------

    def _adopt(self) -> None:
        if self.process is not None or PATH + "/taskq.json" in self.world.machine.paths():
            self._on_device(lambda process: adopt(process, Adopter(process.committer)))

    def _crash_adopting(self) -> None:
        machine = self.world.machine
        steps = machine.steps + self.random.randrange(1, 25)
        machine.stop_at(steps, power=self.random.random() < 0.5)
        self._adopt()
        machine.stop_at(None)

    def _lose_inbox(self) -> None:
        """The device is made again of its log alone, as the hub gives it back."""
        self._drop_process()
        disk = CrashableDisk(self.world.machine)
        lost = [path for path in self.world.machine.paths() if path.startswith(f"{PATH}/inbox/")]
        for path in lost:
            disk.remove(path)
        for folder in {parent(path) for path in lost}:
            disk.sync_directory(folder)

    # -- the line ---------------------------------------------------------------------------------

    def _ask_hub(self, asked: Request) -> Answer:
        if isinstance(asked, Declare):
            self._at_hub(lambda: self._desk().arrived(DEVICE))
        try:
            answer = super()._ask_hub(asked)
        except LineDropped:
            if self.hub is None:
                self._drop_keeper()
                self.out.everyone_is_gone(0)
            raise
        if isinstance(asked, Append) and isinstance(answer, Stored):
            self._at_hub(lambda: self._desk().arrived(DEVICE))
        if isinstance(answer, CopyEnd):
            self._session = answer.session
        return answer

    def _give(self, asked: Question) -> Given | None:
        asked = adapter(Question).validate_json(as_json(asked))

        def act() -> bytes | None:
            if not self._hub().is_at(DEVICE, asked):
                return None
            return encode_given(self._desk().give(DEVICE, asked))

        data = self._at_hub(act)
        if data is None:
            return None
        if self.random.random() < 0.05:
            data = data[: self.random.randrange(len(data))]
        try:
            return decode_given(data)
        except HubError:
            raise LineDropped from None

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
            try:
                self._give(asked)
            except LineDropped:
                """Nobody waits for it."""

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
        held = look(CrashableDisk(self.world.machine), PATH)
        log = self._read_device()
        if log is None:
            return
        try:
            self._drive(log, part, line)
            if down == self._down and self.random.random() < 0.4:
                self.random.choice((self._adopt, self._work))()  # the hub has not heard of it
            self._take(log, held, down)
        except LineDropped:
            """The next try goes on."""
        except PowerLost:
            self.process = None
            self.world.everyone_is_gone()
        except (ProcessKilled, TaskqError, OSError):
            """The process that syncs is another than the one that works."""
        finally:
            self.world.machine.stop_at(None)
            with contextlib.suppress(PowerLost, ProcessKilled):
                log.close()

    def _take(
        self, log: DurableLog, held: InboxState, down: Callable[[Question], Given | None]
    ) -> None:
        machine = self.world.machine
        if down == self._down and self.random.random() < 0.2:
            steps = machine.steps + self.random.randrange(1, 20)
            machine.stop_at(steps, power=self.random.random() < 0.5)
        taking = DeviceOutbox(CrashableDisk(machine), self.world.clock, PATH, ["update"])

        async def ask(asked: Question) -> Given | None:
            return down(asked)

        ids = self._session, log.identity.log_id, log.end
        self.handed += at_once(taking.take(*ids, held, ask, self._cancelled)).jobs

    async def _cancelled(self, job: int, of: str) -> bool:
        view = self.world.view(job)
        if view is None or view.headers.get(JOB) != of:
            return False
        return self._on_device(lambda process: process.ask(Op.CANCEL, job))

    # -- what must hold ---------------------------------------------------------------------------

    def check_bytes(self) -> None:
        super().check_bytes()
        if self.log_id is None:
            return
        born: Counter[Identified] = Counter()
        for record in self._device_log():
            if record.type == RecordKind.ENQUEUED and record.extras is not None:
                identified = Identified.of(record.extras.key)
                if identified is not None:
                    born[identified] += 1
        for identified, count in born.items():
            assert count <= 1 + self.again[identified.nonce], (identified, count)

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
            self._talk(20_000, self._ask_hub, self._give_well)
            adopt(self._device(), Adopter(self._device().committer))
            self._finish_all()
            self._talk(20_000, self._ask_hub, self._give_well)
            if not self._waiting() and not self._is_busy():
                break
        else:
            raise AssertionError(f"forgotten: {self._waiting()}")
        self.check_bytes()
        self._check_ends()

    def _give_well(self, asked: Question) -> Given | None:
        def act() -> Given | None:
            if not self._hub().is_at(DEVICE, asked):
                return None
            return self._desk().give(DEVICE, asked)

        given: Given | None = self._at_hub(act)
        return given

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
        ends: Counter[int] = Counter()
        for record in self.out.records():
            if record.type in _ENDS:
                ends[record.job] += 1
            elif record.type == RecordKind.REQUEUED:
                ends[record.job] -= 1
        assert all(count <= 1 for count in ends.values()), ends
        there: dict[str, State] = {}
        for record in self._device_log():
            if record.extras is not None and record.type == RecordKind.ENQUEUED:
                identified = Identified.of(record.extras.key)
                view = self.world.view(record.job)
                if identified is not None and view is not None:
                    there[identified.nonce] = view.state
        for record in self.out.records():
            if record.type == RecordKind.ENQUEUED and record.extras is not None:
                view = self.out.view(record.job)
                nonce = record.extras.headers.get(NONCE, "")
                if view is not None and there.get(nonce) is State.SUCCEEDED:
                    assert view.state is not State.EXPIRED, (view.job_id, view.state)
