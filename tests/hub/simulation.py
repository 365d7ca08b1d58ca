"""Two machines and a bad line, driven by one seed: a device with its log, and a hub with jobs.

Either machine may lose its power, or a process be killed, at any step of the disk; fsyncs fail, and
each machine may be set back to an earlier day. The line drops requests and answers, cuts bodies,
doubles requests and brings some much later. With jobs the line does so to questions for them, too,
and a process may die at each step of asking, ingesting and settling. After every step the hub's
bytes are compared with all bytes that the device ever had.
"""

import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from uuid import UUID

from taskq.core.errors import LogError, LogFailed, SourceMoved, TaskqError
from taskq.core.model import SECOND_NS, WAITING_STATES, Extras, State
from taskq.core.records import Kind as RecordKind
from taskq.core.sources import Move, decode_position
from taskq.core.views import JobView
from taskq.engine import Border, DurableLog, Replica
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.enqueue import together
from taskq.log.format.frames import segment_lsn
from taskq.log.format.record import Record
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.read.reader import verify
from taskq.log.read.selection import key_holder
from taskq.log.requests import EnqueueSpec, Ingest, Item, Op, Trait, Withdrawal
from taskq.log.segments.identity import read_identity
from taskq.log.segments.segments import SegmentFiles, hop
from taskq.log.state.facets import Facets
from taskq.log.upkeep.backup import fork_journal
from taskq.log.upkeep.upkeep import Upkeep
from taskq_plugins.hub import outbox
from taskq_plugins.hub.copies import Copies, gaps
from taskq_plugins.hub.models import (
    JOB,
    Answer,
    Append,
    CopyEnd,
    Declare,
    Given,
    Question,
    Refused,
    Request,
    Stored,
    Sync,
    adapter,
    as_json,
)  # fmt: skip
from taskq_plugins.hub.outbox import DeviceOutbox
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import Push, Verdict
from tests.log.world import PATH, Process, World, meaning, tend
from tests.machine.crashable import CrashableDisk, Machine, PowerLost, ProcessKilled, parent

HUB: Final = "/srv/hub"
DEVICE: Final = "edge-7"
_CONFIG: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=0, keep_seconds=60.0
)
_SPEC: Final = EnqueueSpec(task="photos.send", attempts=3)
_ENDS: Final = (RecordKind.SUCCEEDED, RecordKind.RETRIED, RecordKind.DEAD)
_OUTBOX_CONFIG: Final = replace(_CONFIG, keep_seconds=10**7)
_TASKS: Final = ("update", "update", "update", "rm")
#: More rounds than it takes until all is over.
_ROUNDS: Final = 40
Files = dict[str, bytes]
T = TypeVar("T")
#: (epoch, lsn) of a frame's first record, and how many it holds
Records = set[tuple[int, int]]


class LineDropped(Exception):
    """The device hears no more answers."""


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


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


class Simulation:
    """One device, a hub with jobs for it, and the line between them.

    Attributes:
        verdicts: of all sessions.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(seed, _CONFIG)
        self.world.is_whole = False
        self.process: Process | None = None
        self.hub_machine = Machine(seed + 1)
        self.hub: Copies | None = None
        #: outlives the hub's process, and what a loss of power takes of it is chance
        self.registry = Registry()
        self._hub_disk = CrashableDisk(self.hub_machine)
        self.verdicts: list[Verdict] = []
        self.log_id: UUID | None = None
        #: all contents of each segment of the device, the latest last
        self.versions: dict[int, list[bytes]] = {}
        #: parts of the log that must be at the hub, or be declared missing
        self.due: Records = set()
        self._late: list[Request] = []
        self._answered: tuple[UUID, Border] | None = None
        self._device_backup: Files | None = None
        self._hub_backup: Files | None = None
        #: whether anything happened since the last whole session that may part the logs
        self._may_part = False
        self._checked: dict[str, int] = {}
        #: segments and end of the device's log as it was read last
        self._seen: tuple[list[int], Border] | None = None
        self.out = World(seed + 2, _OUTBOX_CONFIG)
        self.out.machine = self.hub_machine
        self.hub_machine.wall_ns = self.out.clock.wall_ns
        self.out.path = str(outbox.folder(HUB, DEVICE))
        self.out.is_whole = False
        self._keeper: Process | None = None
        self._session = 0
        self._questions: list[Question] = []
        #: records of the device's logs when a job was expired for it
        self._words: dict[str, outbox.DeviceJob | None] = {}
        self.handed = self.lost = 0

    # -- what happens -----------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        weights, acts = zip(*self.chances(), strict=True)
        for _ in range(steps):
            (act,) = self.random.choices(acts, weights)
            act()
            self.check_bytes()
        self.settle()
        self.settle_jobs()

    def chances(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (30, self._work), (4, self._rest), (3, self._kill_device), (3, self._crash_device),
            (2, self._fail_sync), (2, self._compact), (25, self.session), (3, self._kill_hub),
            (3, self._deliver_late), (4, self._back_up), (3, self._set_device_back),
            (2, self._set_hub_back), (4, self._pass_time), (20, self._order), (3, self._cancel_one),
            (2, self._keep_outbox), (4, self._settle), (3, self._ask_late),
        ]  # fmt: skip

    def _device(self) -> Process:
        for _ in range(3):
            if self.process is None:
                try:
                    self.process = self.world.process()
                except (LogFailed, OSError):
                    continue
            return self.process
        raise AssertionError("the device does not start")

    def _on_device(self, act: Callable[[Process], object]) -> bool:
        """Return whether it went well; else the process is gone, or its machine was off."""
        try:
            act(self._device())
        except PowerLost:
            self.process = None
            self.world.everyone_is_gone()
        except ProcessKilled:
            self._drop_process()
        except (LogError, OSError):
            self._drop_process()
        else:
            return True
        return False

    def _drop_process(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def _work(self) -> None:
        chance = self.random
        count, size = chance.randrange(1, 6), chance.choice((10, 300, 2_000, 9_000))
        syncs, ends = chance.random() < 0.7, chance.random() < 0.6

        def act(process: Process) -> None:
            for _ in range(count):
                process.send(Op.ENQUEUE, (_SPEC, chance.randbytes(chance.randrange(size)), None))
            if ends:
                for delivery in process.claim(count):
                    kind = chance.choice(_ENDS)
                    process.settle(delivery, kind, body=b"why")
            if syncs:
                process.sync()

        self._on_device(act)

    def _rest(self) -> None:
        self._on_device(lambda process: process.rest())

    def _pass_time(self) -> None:
        self.world.clock.advance(self.random.choice((1, 100, 10_000)))
        self.out.clock.advance(self.random.choice((1, 100, 1_000)))

    def _kill_device(self) -> None:
        self._drop_process()

    def _crash_device(self) -> None:
        machine = self.world.machine
        power = self.random.random() < 0.5
        machine.stop_at(machine.steps + self.random.randrange(1, 12), power=power)
        self._work()
        machine.stop_at(None)

    def _fail_sync(self) -> None:
        self.world.machine.fail_next_syncs()
        self._may_part = True
        self._work()
        self._on_device(lambda process: process.sync())
        self.world.machine.fail_next_syncs(0)
        self._drop_process()

    def _compact(self) -> None:
        def act(process: Process) -> None:
            tend(process, Upkeep(process.committer))

        self._on_device(act)

    # -- set back ---------------------------------------------------------------------------------

    def _back_up(self) -> None:
        if self.random.random() < 0.5 and self.log_id is not None:
            self._device_backup = files_of(self.world.machine)
        else:
            self._hub_backup = files_of(self.hub_machine)

    def _set_device_back(self) -> None:
        """A copy of yesterday comes back: with other inodes, in place, or over a reboot."""
        if self._device_backup is None:
            return
        self._drop_process()
        self._may_part = True
        log_id = json.loads(self._device_backup[f"{PATH}/taskq.json"])["log_id"]
        # In place a log that was left would come back, which the hub holds for a person to see.
        is_left = log_id in self.registry._facts(DEVICE).get("left", ())
        in_place = self.random.random() < 0.5 and not is_left
        self._seen = None
        set_back(self.world.machine, self._device_backup, in_place=in_place)
        if self.random.random() < 0.5:
            self.world.lose_power()
        self.due &= self._held()

    def _held(self) -> Records:
        if self.log_id is not None:
            with self._hub()._held(DEVICE, self.log_id):
                """The torn tail of a crash is cut off."""
        return self.hub_records() | self._device_records()

    def _set_hub_back(self) -> None:
        if self._hub_backup is None:
            return
        self._stop_hub()
        self._may_part = True
        set_back(self.hub_machine, self._hub_backup, in_place=False)
        self._answered, self.registry = None, Registry()  # that is set back with the rest
        self._checked.clear()
        self.due &= self._held()

    # -- the hub ----------------------------------------------------------------------------------

    def _hub(self) -> Copies:
        if self.hub is None:
            disk = CrashableDisk(self.hub_machine)
            disk.make_directory(HUB)
            disk.sync_directory(parent(HUB))
            disk.sync_directory("/")
            self.hub, self._hub_disk = Copies(lambda: disk, HUB, self.registry, 6_000), disk
        return self.hub

    def _stop_hub(self) -> None:
        if self.hub is not None:
            self._hub_disk.kill()
            self.hub = None
        self._drop_keeper()

    def _kill_hub(self) -> None:
        self._stop_hub()
        if self.random.random() < 0.5:
            self.hub_machine.lose_power()
            if self.random.random() < 0.5:
                self.registry = Registry()
            self._checked.clear()

    def _ask_hub(self, asked: Request) -> Answer:
        if isinstance(asked, Declare):
            self._answered = None
        before = self.hub_records() if isinstance(asked, Declare) else set()
        try:
            answer = self._hub().answer(DEVICE, asked)
        except (PowerLost, ProcessKilled):
            self.hub = None
            self._checked.clear()
            self._drop_keeper()
            self.out.everyone_is_gone(0)
            raise LineDropped from None
        except OSError:
            if self.hub is None:
                self._drop_keeper()
                self.out.everyone_is_gone(0)
            raise LineDropped from None
        if isinstance(answer, CopyEnd):
            self._session = answer.session
        if isinstance(answer, Stored) and answer.at.offset and isinstance(asked, Append):
            self._answered = asked.log_id, answer.at
        # H12: archived bytes are kept, on one side or the other.
        assert before <= self.hub_records() if before else True
        return self._checked_answer(answer)

    def _checked_answer(self, answer: Answer) -> Answer:
        if self._answered is not None and self.hub is not None:
            log_id, at = self._answered
            copy = self.hub._copies.get((DEVICE, log_id))
            assert copy is None or copy.has(at), at
        return answer

    def _copies(self) -> Files:
        return {
            path: data
            for path, data in files_of(self.hub_machine).items()
            if path.startswith(f"{HUB}/devices/")
        }

    # -- the line ---------------------------------------------------------------------------------

    def _line(self, asked: Request) -> Answer:
        chance = self.random.random()
        if chance < 0.04:
            raise LineDropped
        if chance < 0.07:
            self._late.append(asked)
            raise LineDropped
        if chance < 0.10:
            self._ask_hub(asked)
            raise LineDropped
        if chance < 0.14 and isinstance(asked, Append):
            came = asked.data[: self.random.randrange(len(asked.data) + 1)]
            self._ask_hub(replace(asked, data=came))
            raise LineDropped
        if chance < 0.18:
            steps = self.hub_machine.steps + self.random.randrange(1, 15)
            self.hub_machine.stop_at(steps, power=self.random.random() < 0.5)
            try:
                return self._ask_hub(asked)
            finally:
                self.hub_machine.stop_at(None)
        if chance < 0.20:
            self.hub_machine.fail_next_syncs()
            try:
                return self._ask_hub(asked)
            finally:
                self.hub_machine.fail_next_syncs(0)
        answer = self._ask_hub(asked)
        if chance < 0.25 and not isinstance(asked, Sync):
            # H4: a repeated request changes nothing, whether answered or not.
            before = self._copies()
            self._ask_hub(asked)
            assert self._copies() == before, asked
        return answer

    def _deliver_late(self) -> None:
        if self._late:
            asked = self._late.pop(self.random.randrange(len(self._late)))
            before = self._copies()
            try:
                answer = self._ask_hub(asked)
            except LineDropped:
                return
            if isinstance(answer, Refused):
                assert self._copies() == before, asked

    def _read_device(self) -> DurableLog | None:
        disk = CrashableDisk(self.world.machine)
        try:
            log = DurableLog(disk, PATH)
        except LogFailed:
            return None
        self.log_id = log.identity.log_id
        self._remember(log)
        return log

    def _drive(self, log: DurableLog, part: int, line: Callable[[Request], Answer]) -> None:
        async def ask(asked: Request) -> Answer:
            return line(asked)

        push = Push(log, ask, lambda: part, lambda: part)
        verdicts = at_once(push.run())
        self.verdicts += verdicts
        # H3: nothing was sent that the device could still lose.
        parted = {Verdict.DIFFERS, Verdict.AHEAD} & {*verdicts}
        assert self._may_part or not parted, verdicts
        self._may_part = self._may_part and bool(parted)
        if push.parting.segment:
            self._fork(push.parting)

    def _fork(self, parting: Border) -> None:
        self._drop_process()
        self._answered = None
        disk = CrashableDisk(self.world.machine)

        def forked() -> None:
            writer = WriterLock(disk, PATH, 1)
            journal = Journal(disk, self.world.clock, PATH, _CONFIG, writer)
            journal.open()
            fork_journal(journal, parting.next_lsn)
            journal.close()

        try:
            forked()
        except PowerLost:
            self.world.everyone_is_gone()
        except (LogError, OSError, ProcessKilled):
            """The next session finds the same."""
        finally:
            disk.kill()

    def _remember(self, log: DurableLog) -> None:
        if self._seen == (log.segments, log.end):
            return
        self._seen = log.segments, log.end
        for segment in log.segments:
            end = log.end_of(segment)
            data = self.world.machine.content(f"{PATH}/log/{segment:020d}.log")
            data = data[: end.offset].ljust(end.offset, b"\0")
            known = self.versions.setdefault(segment, [])
            if known and data.startswith(known[-1]):
                known[-1] = data
            elif not any(job.startswith(data) for job in known):
                known.append(data)
        self.due |= _records(CrashableDisk(self.world.machine), PATH, log.end)

    # -- what must hold ---------------------------------------------------------------------------

    def check_bytes(self) -> None:
        # A crash leaves damage in a copy until its next request, which opens it.
        copies = self.hub._copies if self.hub is not None else {}
        opened = tuple(f"{HUB}/devices/{device}/{log_id}/" for device, log_id in copies)
        for path in self.hub_machine.paths():
            lsn = segment_lsn(path.rpartition("/")[2])
            if lsn is None or not path.startswith(opened):
                continue
            data = self.hub_machine.content(path)
            if self._checked.get(path) == hash(data):
                continue
            known = self.versions.get(lsn, [])
            assert any(job.startswith(data) for job in known), path
            self._checked[path] = hash(data)
        device = hash(tuple(files_of(self.world.machine).items()))
        if self._checked.get(PATH) == device:
            return
        self._checked[PATH] = device
        born = Counter(
            record.headers[JOB]
            for record in self._device_log()
            if record.type == RecordKind.ENQUEUED and JOB in record.headers
        )
        assert not born or max(born.values()) == 1, born

    def settle(self) -> None:
        """The line and both machines are well again: everything must be found."""
        self._late.clear()
        self._on_device(lambda process: process.enqueue(b"last"))
        self._device().rest()
        for _ in range(4):
            log = self._read_device()
            assert log is not None
            end = log.end
            self._drive(log, 20_000, self._ask_hub)
            log.close()
        copy = self._copy_path()
        hub_end = self._hub()._copies[(DEVICE, self.log_id)].at  # type: ignore[index]
        assert hub_end == end, (hub_end, end)
        for each in self._hub().all():
            with self._hub()._held(DEVICE, each.log_id):
                """It is opened."""
        self.check_bytes()
        self._check_ids()
        self._check_records(copy)
        self._check_fold(copy)

    def settle_jobs(self) -> None:
        """The device takes and ends all jobs, and the hub hears of it."""
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

    def _check_records(self, copy: str) -> None:
        device, hub = self._device_records(), self._records_at(copy)
        assert device <= hub
        oldest = min(lsn for _, lsn in device)
        assert not {item for item in hub - device if item[1] >= oldest}
        lost = [gap for copy in self._hub().all() for gap in gaps(copy)]
        # At first contact the device may have had less than it ever wrote.
        oldest = min(lsn for _, lsn in self.hub_records())
        for epoch, lsn in self.due - self.hub_records():
            is_told = any(gap.first <= lsn <= gap.last for gap in lost)
            assert is_told or lsn < oldest, (epoch, lsn, lost)

    def _check_ids(self) -> None:
        """H12: on the hub a log and a number name one record, also after a set-back."""
        known: dict[tuple[bytes, int], bytes] = {}
        for copy in self._hub().all():
            with copy.files() as files:
                for segment in files.lsns:
                    for frame in files.frames_of(segment):
                        key = copy.identity.owner(segment).log_id.bytes, frame.header.first_lsn
                        body = frame.data[frame.at : frame.at + frame.header.body_size]
                        assert not frame.header.records or known.setdefault(key, body) == body

    def _check_fold(self, copy: str) -> None:
        theirs, ours = self.world.reader(), self._reader(copy)
        assert verify(ours).damage == verify(theirs).damage == ()
        now_ns = self.world.clock.wall_ns()
        seen = []
        for journal in (theirs, ours):
            facets = Facets(journal)
            facets.need_agenda()
            facets.need_dedup()
            seen.append(meaning(facets, now_ns))
        assert seen[0] == seen[1]

    def _reader(self, path: str) -> Journal:
        disk = CrashableDisk(self.hub_machine)
        journal = Journal(disk, self.world.clock, path, _CONFIG, None)
        journal.open_for_reading()
        return journal

    def _copy_path(self) -> str:
        return f"{HUB}/devices/{DEVICE}/{self.log_id}"

    def _device_records(self) -> Records:
        return _records(CrashableDisk(self.world.machine), PATH)

    def _records_at(self, path: str) -> Records:
        return _records(CrashableDisk(self.hub_machine), path)

    def hub_records(self) -> Records:
        paths = {path.rpartition("/log/")[0] for path in self.hub_machine.paths()}
        records: Records = set()
        for path in paths:
            if path.startswith(f"{HUB}/devices/"):
                records |= self._records_at(path)
        return records

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

        def act() -> None:
            keeper, begins = self._outbox(), outbox.begins(HUB, DEVICE, self._hub_disk)
            headers = {outbox.FROM: begins}
            extras = Extras(due_ns=due_ns, expires_ns=expires_ns, headers=headers)
            keeper.offer(body, extras, spec)

        self._on_hub(act)

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
            jobs, headers = keeper.ask(Op.LOOK, (outbox.waiting_in, Trait.AGENDA))
            reader = self._reading(headers)
            tag = keeper.journal.tag
            over = [job for job in jobs if reader.is_settled(tag, job)]
            self._words.update({tag.id(job): reader.find(tag, job) for job in over})
            keeper.ask(Op.WITHDRAW, Withdrawal(over, expired=True))

        self._on_hub(act)

    def _reading(self, headers: Mapping[str, str]) -> outbox.DeviceReader:
        if self.log_id is not None:
            with self._hub()._held(DEVICE, self.log_id):
                """The torn tail of a crash is cut off."""
        reader = outbox.DeviceReader(HUB, DEVICE, self._hub_disk)
        reader.read(headers)
        return reader

    def _waiting(self) -> list[int]:
        agenda = self._outbox().catch_up().need_agenda()
        ids = [chunk.ids[index] for chunk, index in agenda.table]
        return [job for job in ids if agenda.table.state(job) in WAITING_STATES]

    # -- the line ---------------------------------------------------------------------------------

    def _give(self, asked: Question) -> Given | None:
        asked = adapter(Question).validate_json(as_json(asked))

        def act() -> Given | None:
            if not self._hub().is_latest(DEVICE, asked):
                return None
            self._outbox()
            journal = self.out.reader()
            now_ns = self.out.clock.wall_ns()
            return outbox.given(journal, self.out.view, asked, now_ns)

        answer = self._at_hub(act)
        if answer is None:
            return None
        given: Given = adapter(Given).validate_json(as_json(answer))
        return given

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

    def _device_log(self) -> list[Record]:
        if read_identity(CrashableDisk(self.world.machine), PATH) is None:
            return []
        return self.world.records()

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
        """Each job ended once here, as its device's log has it unless it never arrived."""
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


def _records(disk: CrashableDisk, path: str, end: Border | None = None) -> Records:
    """(epoch, lsn) of every record in the whole frames of a directory's segments."""
    identity = read_identity(disk, path)
    records: Records = set()
    if identity is None:
        return records
    files = SegmentFiles(disk, path, writable=False)
    files.identity = identity
    files.refresh()
    for segment in files.lsns:
        size = files.size(segment)
        if end is not None and segment >= end.segment:
            size = end.offset if segment == end.segment else 0
        for _, header in hop(files, segment, Replica.START, size):
            records.update((header.epoch, lsn) for lsn in range(header.first_lsn, header.next_lsn))
    files.forget()
    return records


def hub_files(simulation: Simulation) -> Files:
    return files_of(simulation.hub_machine)


def files_of(machine: Machine) -> Files:
    return {path: machine.content(path) for path in machine.paths()}


def set_back(machine: Machine, files: Files, *, in_place: bool) -> None:
    disk, before = CrashableDisk(machine), machine.paths()
    for path in before:
        if not in_place or path not in files:
            disk.remove(path)
    for path in files:
        disk.make_directory(parent(path))
    # Entries of removed files, too: a loss of power would bring some back.
    for directory in {parent(path) for path in [*before, *files]}:
        below = directory
        while True:
            disk.sync_directory(below)
            if below == "/":
                break
            below = parent(below)
    for path, data in files.items():
        machine.put(path, data)
