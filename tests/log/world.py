"""A machine, its clock, and processes that have one log open: what the tests of the log drive."""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from taskq.calls.call import Options, make_call
from taskq.core.controls import values_of
from taskq.core.errors import JobNotFound, TaskqError
from taskq.core.flows import Policy
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import UNTIL_SETTLED
from taskq.core.folds.jobtable import META_BACK, META_EXPIRES, STATE_MASK
from taskq.core.kinds import RUNNING
from taskq.core.model import SECOND_NS, WAITING_STATES, Durability, Extras
from taskq.core.records import Cause, Flag, Kind
from taskq.core.views import JobView
from taskq.flows.flow import Chain, Flow, Leaf, Node, Parallel, plan_of
from taskq.log.commit.committer import Committer
from taskq.log.commit.room import with_reserve
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.context import BatchNeeds
from taskq.log.format.codec import SEGMENT_HEADER
from taskq.log.format.flows import decode_step
from taskq.log.format.frames import Frame, Gap, segment_name
from taskq.log.format.record import Record
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.machine import peers
from taskq.log.read.selection import waiting_job
from taskq.log.requests import (
    ClaimRequest,
    Delivery,
    Duplicate,
    Edit,
    EnqueueSpec,
    Op,
    Request,
    Settlement,
)
from taskq.log.segments.segments import FLOOR, SegmentGone
from taskq.log.state.facets import Facets
from taskq.log.state.job_history import job_view, records
from taskq.log.store.caller_commit import CallerCommit
from taskq.log.store.mailbox import Mailbox
from taskq.log.upkeep.backup import RepairReport, survey_damage, write_repaired
from taskq.log.upkeep.snapshots import Snapshots
from taskq.log.upkeep.upkeep import Upkeep
from taskq.testing.sandbox import FakeClock
from tests.effort import every
from tests.machine.crashable import CrashableDisk, Machine, Neighbourhood, PowerLost, ProcessKilled

PATH: Final = "/srv/data"
PLAIN: Final = EnqueueSpec(task="mail.send")
#: Uses its disk up: a test that wants a reserve asks for it.
SMALL: Final = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=0)


@contextmanager
def fixed_ids() -> Iterator[None]:
    """Let what is random or of a process be the same in every log, until the block is left."""
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
        patch.setattr(os, "urandom", lambda size: bytes([next(numbers) % 250 + 1]) * size)
        patch.setattr(peers, "_now_ns", lambda: 1)
        yield


class Cut:
    """A crash at one disk step, of the power or of one process, and whether it came."""

    def __init__(self, step: int, *, power: bool) -> None:
        self.step, self.power, self.came = step, power, False

    @contextmanager
    def during(self, world: World, process: Process | None = None) -> Iterator[None]:
        machine = world.machine
        machine.stop_at(machine.steps + self.step, power=self.power)
        self.came = True
        try:
            yield
            self.came = False
        except PowerLost:
            world.everyone_is_gone()
        except ProcessKilled:
            if process is not None:
                process.kill()
        machine.stop_at(None)


def cuts(*, power: bool, stride: int = 2) -> Iterator[Cut]:
    for step in itertools.count(1, every(stride)):
        cut = Cut(step, power=power)
        yield cut
        if not cut.came:
            return


class World:
    """One machine with one log directory."""

    def __init__(self, seed: int = 0, config: LogConfig = SMALL) -> None:
        self.machine = Machine(seed)
        self.clock = FakeClock()
        self.machine.wall_ns = self.clock.wall_ns
        self.neighbourhood = Neighbourhood()
        self.config = config
        #: of the log
        self.path = PATH
        #: whether no test takes anything away: then no opener may miss anything
        self.is_whole = True
        self._pids = 100

    def process(self, config: LogConfig | None = None) -> Process:
        self._pids += 1
        return Process(self, config or self.config, self._pids)

    def lose_power(self, off_seconds: float = 60.0) -> None:
        self.machine.lose_power()
        self.everyone_is_gone(off_seconds)

    def everyone_is_gone(self, off_seconds: float = 60.0) -> None:
        self.neighbourhood.living.clear()
        self.clock.reboot(off_seconds)

    def reader(self) -> Journal:
        journal = Journal(CrashableDisk(self.machine), self.clock, self.path, self.config, None)
        journal.open_for_reading()
        assert not (self.is_whole and journal.lost)
        return journal

    def view(self, lsn: int) -> JobView | None:
        return job_view(self.reader(), lsn, self.clock.wall_ns())

    def job(self, lsn: int) -> JobView:
        view = self.view(lsn)
        assert view is not None, f"job {lsn} is gone"
        return view

    def records(self) -> list[Record]:
        journal = self.reader()
        return list(records(journal, journal.start()))

    def has_gap(self) -> bool:
        journal = self.reader()
        return any(isinstance(item, Gap) for _, item in journal.frames(journal.start()))

    def kinds(self) -> list[int]:
        return [record.type for record in self.records() if record.type != Kind.OWNER]

    def fold(self) -> Facets:
        facets = Facets(self.reader())
        facets.need_agenda()
        facets.need_dedup()
        return facets

    def repair(self) -> RepairReport:
        """Put a repaired copy in the place of the log, which the repair leaves as it is."""
        journal, disk = self.reader(), CrashableDisk(self.machine)
        before = self.files()
        report, target = survey_damage(journal), f"{self.path}/repaired"
        disk.make_directory(target)
        written = write_repaired(journal, disk, target)
        old = {path: self.machine.content(path) for path in before}
        assert old == before
        beside = (f"{self.path}/log/", f"{self.path}/snapshot/")
        for path in [path for path in before if path.startswith(beside)]:
            self.machine.unlink(path)
        self.machine.put(f"{self.path}/write.lock", b"")
        for name in map(segment_name, written):
            self.machine.put(f"{self.path}/log/{name}", self.machine.content(f"{target}/{name}"))
        return report

    def remove_oldest(self, count: int) -> None:
        for path in self.segments()[count:][:1]:
            self.machine.put(path.replace(".log", FLOOR), b"")
        for path in self.segments()[:count]:
            self.machine.unlink(path)

    def segments(self) -> list[str]:
        return [path for path in self.machine.paths() if path.endswith(".log")]

    def files(self) -> dict[str, bytes]:
        return {path: self.machine.content(path) for path in self.machine.paths()}

    def frames(self, segment: int = 0) -> list[Frame]:
        files = self.reader().files
        lsn = files.lsns[segment]
        scanner = files.scanner(lsn, files.size(lsn), lsn, sealed=True)
        return [item for item in scanner.frames(SEGMENT_HEADER.size) if isinstance(item, Frame)]


def revived(files: dict[str, bytes], *, same_boot: bool = True) -> World:
    """Return a machine on which these files stand."""
    world = World()
    world.process().close()
    for path, data in files.items():
        world.machine.put(path, data)
    if not same_boot:
        world.lose_power()
    return world


class Process:
    """One process that has the log open: commits and syncs when told to."""

    def __init__(self, world: World, config: LogConfig, pid: int) -> None:
        self.world = world
        self.disk = CrashableDisk(world.machine)
        self.disk.make_directory(world.path)
        writer = WriterLock(self.disk, world.path, pid)
        self.journal = Journal(self.disk, world.clock, world.path, config, writer)
        try:
            with_reserve(self.disk, world.path, self.journal.open)
            self.peers = world.neighbourhood.join()
            self.committer = Committer(self.journal, self.peers, config, b"{}")
            self.journal.writer.release()
            self.mailbox = Mailbox(world.path)
            self.here = CallerCommit(self, self.mailbox, lambda: True)
            self.here.leave()
        except Exception:
            self.disk.kill()
            raise
        assert not (world.is_whole and self.journal.lost)

    # -- step by step -----------------------------------------------------------------------------

    def send(self, op: Op, operand: Any) -> Future[Any]:
        """Commit one request, and hand out what need not wait; ``sync`` hands out the rest."""
        future: Future[Any] = Future()
        self.commit([(op, None, future, operand)])
        return future

    def commit(self, requests: list[Request]) -> None:
        self.committer.commit(requests)
        self.committer.take_interest()
        self._hand_out_now()
        if not self.committer.must_sync():
            self._hand_out_later()

    def commit_alone(self, request: Request, raise_in: int = 0) -> bool:
        """Do as a caller on its own thread, at whom a signal handler raises within it, or later.

        Returns whether it was committed there; what was interrupted is not answered.
        """
        self.mailbox.asleep, self.disk.raise_in = True, raise_in
        try:
            return self.here.commit_for_thread(request)
        except KeyboardInterrupt:
            return True
        finally:
            self.disk.raise_in = 0
            if self.here.in_doubt and not self.disk.is_dead:
                self.committer.look_again()
                self.commit([])
                self.here.in_doubt = False

    def commit_here(self, requests: list[Request], needs: BatchNeeds, *, syncs: bool) -> bool:
        self.committer.commit(requests, needs)
        self.journal.writer.release()
        self.committer.take_interest()
        if syncs and self.committer.must_sync():
            self.committer.sync()
        self._hand_out_now()
        self._hand_out_later()
        return False

    def sync(self) -> None:
        idle = self.committer.unsynced and self.committer.config.durability is Durability.FSYNC
        if self.committer.must_sync() or idle:
            self.committer.sync()
        self._hand_out_now()
        self._hand_out_later()

    def rest(self) -> None:
        self.committer.rest()
        self._hand_out_now()
        self._hand_out_later()

    def follow(self) -> None:
        self.committer.follow()
        if not self.committer.must_sync():
            self._hand_out_later()

    def _hand_out_now(self) -> None:
        answers = self.committer.answers.take_now()
        _resolve(answers)

    def _hand_out_later(self) -> None:
        answers, self.committer.answers.later = self.committer.answers.later, []
        self.committer.answers.later_lsn = 0
        _resolve(answers)

    def kill(self) -> None:
        self.disk.kill()
        self.peers.close()

    def close(self) -> None:
        self.peers.close()
        self.journal.close()

    # -- whole calls ------------------------------------------------------------------------------

    def ask(self, op: Op, operand: Any) -> Any:
        """Commit, sync, and return the answer or raise it."""
        future = self.send(op, operand)
        self.sync()
        return future.result(0)

    def enqueue(
        self, body: bytes = b"{}", extras: Extras | None = None, spec: EnqueueSpec = PLAIN
    ) -> int:
        lsn = self.offer(body, extras, spec)
        assert isinstance(lsn, int)
        return lsn

    def offer(
        self, body: bytes = b"{}", extras: Extras | None = None, spec: EnqueueSpec = PLAIN
    ) -> int | Duplicate:
        answer: int | Duplicate = self.ask(Op.ENQUEUE, (spec, body, extras))
        return answer

    def claim(self, count: int = 1) -> list[Delivery]:
        request = ClaimRequest(count, wait_until_ns=0)
        deliveries: list[Delivery] = self.ask(Op.CLAIM, request)
        return deliveries

    def settle(self, delivery: Delivery, kind: Kind = Kind.SUCCEEDED, **rest: Any) -> None:
        """End a delivery, durably; raises what it meets."""
        if kind in (Kind.RETRIED, Kind.RELEASED):
            rest.setdefault("cause", Cause.EXHAUSTED)
        answer = self.ask(Op.SETTLE, [Settlement(kind, delivery, **rest)])[0]
        if isinstance(answer, Exception):
            raise answer

    def settle_soon(
        self, delivery: Delivery, on_error: Callable[[Settlement, TaskqError], None] | None = None
    ) -> None:
        operand = ([Settlement(Kind.SUCCEEDED, delivery, b"done")], on_error or _unexpected)
        self.commit([(Op.SETTLE_NOWAIT, None, None, operand)])

    def append(self, body: bytes, count: int = 1) -> None:
        self.journal.lock()
        try:
            self.journal.append(body, count, self.world.clock.wall_ns())
        finally:
            self.journal.writer.release()

    def catch_up(self) -> Facets:
        """Return everything folded up to the end of the log; as a committer's look does."""
        try:
            return self._caught_up()
        except SegmentGone:  # the compacting process died before it could declare the log's end
            self.journal.lock()
            self.journal.writer.release()
            return self._caught_up()

    def _caught_up(self) -> Facets:
        self.journal.refresh()
        facets = self.committer.facets
        facets.catch_up()
        facets.need_agenda()
        facets.need_dedup()
        return facets


def _resolve(answers: list[Any]) -> None:
    for _, future, value in answers:
        if future is None:
            on_error, item, error = value
            on_error(item, error)
        elif isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)


def _unexpected(item: Settlement, error: TaskqError) -> None:
    raise AssertionError(f"{item.delivery!r}: {error}")


#: More steps than any of the tests needs.
_STEPS_MAX: Final = 500_000
FILLER: Final = b"." * 12_000

T = TypeVar("T")


def keeping(**options: Any) -> LogConfig:
    return LogConfig(segment_bytes=SEGMENT_BYTES_MIN, **options)


def tend(process: Process, upkeep: Upkeep | None = None) -> Upkeep:
    upkeep = upkeep or Upkeep(process.committer)
    process.catch_up()
    for _ in range(_STEPS_MAX):
        requests = upkeep.step()
        if requests:
            process.commit(requests)
            process.sync()
        elif not upkeep.busy:
            return upkeep
    raise AssertionError("upkeep does not come to an end")


def tend_a_while(process: Process, upkeep: Upkeep, steps: int) -> None:
    for _ in range(steps):
        requests = upkeep.step()
        if requests:
            process.commit(requests)
            process.sync()
        elif not upkeep.busy:
            upkeep._look_at_ns = 0
            return


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def fill_segment(process: Process) -> int:
    """Enqueue and finish jobs until a new segment begins; returns the segment that was sealed."""
    segment = process.journal.segment
    while process.journal.segment == segment:
        process.enqueue(FILLER)
        for delivery in process.claim():  # none from a paused queue
            process.settle(delivery)
    return segment


Meaning = dict[str, Any]


def meaning(facets: Facets, now_ns: int) -> Meaning:
    """All state that a reader of the folds sees at this time."""
    agenda, dedup = facets.need_agenda(), facets.need_dedup()
    agenda.promote(now_ns, 10**9)
    table = {
        chunk.ids[at]: (agenda.lanes[chunk.lanes[at]].key, _told(chunk.metas[at]))
        for chunk, at in agenda.table
    }
    keys = {
        (number, job): _held(dedup.until_ns(number, job), until < 0, now_ns)
        for page in dedup._pages
        for number, job, until in zip(page.hashes, page.jobs, page.untils, strict=True)
        if until < 0 or until > now_ns - dedup.shift_ns
    }
    dues = sorted(
        (job, moment + (0 if is_wall else agenda.times.shift_ns), is_wall)
        for moments, jobs, is_wall in agenda.times.blocks()
        for moment, job in zip(moments, jobs, strict=True)
        if job in table
    )
    return {
        "jobs": table,
        "running": dict(agenda.running),
        "leases": {job: agenda.leases.deadline_ns(job) for job in agenda.leases.all()},
        "asked": set(agenda.leases.asked),
        "dues": dues,
        "dead": {chunk.ids[at]: chunk.metas[at] for chunk, at in agenda.dead},
        "paused": set(agenda.queues.paused),
        "schedules": dict(agenda.schedules),
        "sources": dict(agenda.sources),
        "controls": values_of(agenda.controls),
        "paused_tasks": set(agenda.queues.paused_tasks),
        "next": agenda.order.next_ready(10**6, None),
        "counts": [queue for queue in agenda.queues.stats() if any(_counts(queue))],
        "keys": keys,
        "steps": {job: _steps_of(facets, job) for job in _may_run(agenda)},
        "expiries": sorted(
            (job, moment)
            for job, moment in _expiries(agenda)
            if job in table and _may_expire(table[job][1])
        ),
    }


def _held(until_ns: int, also_lives: bool, now_ns: int) -> tuple[int, bool]:
    """A window that is over adds nothing to a key that is held until the job ends."""
    return (until_ns, also_lives) if until_ns > now_ns else (UNTIL_SETTLED, False)


def _told(meta: int) -> int:
    """Leave out a job's place in its lane, and that a running one could expire while it waited."""
    return meta & ~(META_BACK | META_EXPIRES if meta & STATE_MASK == RUNNING else META_BACK)


def _may_expire(meta: int) -> bool:
    return bool(meta & META_EXPIRES) and meta & STATE_MASK != RUNNING


def _may_run(agenda: Agenda) -> list[int]:
    tables = agenda.table, agenda.dead
    return [chunk.ids[at] for table in tables for chunk, at in table]


def _steps_of(facets: Facets, job: int) -> tuple[object, ...]:
    agenda = facets.need_agenda()
    steps, files = agenda.steps, facets._journal.files
    places = steps.places.get(job, ())
    return (
        [decode_step(files.unchecked_record(at)) for at in places],
        [
            (it[:3], decode_step(files.unchecked_record(it.location)).body)
            for it in steps.signals.get(job, ())
        ],
        steps.taken.get(job, set()),
        steps.awaiting(job, agenda.times.shift_ns),
    )


def _expiries(agenda: Agenda) -> Iterator[tuple[int, int]]:
    times = agenda.times
    for blocks, shift_ns in ((times._expiries_shifted, times.shift_ns), (times._expiries_wall, 0)):
        for moments, jobs in blocks.blocks():
            yield from ((job, at + shift_ns) for at, job in zip(moments, jobs, strict=True))


def _counts(stats: Any) -> list[int]:
    return [
        stats.scheduled, stats.ready, stats.running, stats.succeeded, stats.dead,
        stats.cancelled, stats.expired,
    ]  # fmt: skip


_SPANS_NS: Final = (10**9, 60 * 10**9, 3_600 * 10**9, 10**17)
_OFFSET: Final = 2**32
OTHER: Final = EnqueueSpec("mail", "send", 9, 2)
_HOUR: Final = Extras(due_ns=3_600 * SECOND_NS)


def folded(world: World, *, trusts_snapshots: bool) -> Facets:
    return fold_of(world.reader(), trusts_snapshots=trusts_snapshots)


def fold_of(journal: Journal, *, trusts_snapshots: bool) -> Facets:
    facets = Facets(journal)
    facets.trusts_snapshots = trusts_snapshots
    facets.need_agenda()
    facets.need_dedup()
    return facets


def told(facets: Facets, now_ns: int) -> dict[str, Any]:
    """The meaning, now and later, and all places in the log; these facets end in the future."""
    agenda, dedup, said = facets.need_agenda(), facets.need_dedup(), meaning(facets, now_ns)
    tables = agenda.table, agenda.dead
    said["places"] = [
        (chunk.ids[at], _place(facets, chunk.locations[at]))
        for table in tables
        for chunk, at in table
    ]
    said["places of keys"] = [
        (hashed, job, _place(facets, location))
        for page in dedup._pages
        for hashed, job, location, until in zip(*page.columns(), strict=True)
        if until < 0 or until + dedup.shift_ns > now_ns
    ]
    said["floor"] = agenda.floor_lsn
    said["later"] = []
    for span_ns in _SPANS_NS:
        agenda.promote(now_ns + span_ns, 2**62)
        said["later"].append(agenda.order.next_ready(10**6, None))
    return said


def _place(facets: Facets, location: int) -> tuple[int, int]:
    return facets._journal.files.segment_at(location), location % _OFFSET


class Folded(NamedTuple):
    """Counts of records that two folds of one log met: one began with a snapshot, one did not."""

    behind: int
    total: int


def check_same(world: World, *, loosely: bool = False) -> Folded:
    """With snapshots and without the folds say the same.

    ``loosely``: the clock may have fallen, and a process seen a job ready that waits again.
    """
    some = folded(world, trusts_snapshots=True)
    every = folded(world, trusts_snapshots=False)
    # Windows of keys that were over may be forgotten before the fall of a clock is noted.
    now_ns = max(world.clock.wall_ns(), every._journal.time_ns)
    told_some, told_all = told(some, now_ns), told(every, now_ns)
    if loosely:
        for said in (told_some, told_all):
            said["jobs"] = list(said["jobs"])
            for name in ("next", "later", "counts", "dues"):
                del said[name]
    assert told_some == told_all
    return Folded(some.caught_up, every.caught_up)


def write(process: Process) -> list[str]:
    for _ in Snapshots(process.committer).write_steps():
        pass
    return names(process.world)


def names(world: World) -> list[str]:
    seen = [path.rpartition("/")[2] for path in world.machine.paths() if "/snapshot/" in path]
    return [name for name in seen if name != "lock"]


def fill(process: Process) -> None:
    for number in range(12):
        process.enqueue(b"plain %d" % number, spec=OTHER if number % 3 else PLAIN)
    for number in range(4):
        process.offer(b"keyed", Extras(key=b"key %d" % number, window_ns=number * 10**10))
    process.enqueue(b"later", _HOUR)
    process.enqueue(b"soon", Extras(due_ns=SECOND_NS, expires_ns=60 * SECOND_NS))
    for number, delivery in enumerate(process.claim(6)):
        kind = (Kind.SUCCEEDED, Kind.DEAD, Kind.RETRIED)[number % 3]
        process.settle(delivery, kind, delay_ns=SECOND_NS if kind is Kind.RETRIED else 0)
    process.claim(2)
    process.catch_up()


def grow(process: Process) -> None:
    for delivery in process.claim(3):
        process.settle(delivery)
    process.enqueue(b"after", Extras(key=b"key of %d" % process.journal.next_lsn))
    process.catch_up()


def exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def found(process: Process, job: int, **wish: Any) -> Edit:
    process.catch_up()
    return Edit(waiting_job(process.committer.sight, job), **wish)


def edit(process: Process, job: int, **wish: Any) -> bool | None:
    answer: bool | None = process.ask(Op.EDIT, found(process, job, **wish))
    return answer


def some_edit(process: Process, chance: random.Random, queues: Sequence[bytes]) -> Edit | None:
    agenda = process.catch_up().need_agenda()
    waiting = [
        chunk.ids[index]
        for chunk, index in agenda.table
        if chunk.metas[index] & STATE_MASK in WAITING_STATES
    ]
    if not waiting:
        return None
    job = chance.choice(waiting)
    span_ns = chance.choice((0, 5, 60)) * SECOND_NS
    date = process.journal.log_time()[0] + span_ns, True
    due = chance.choice((None, (span_ns, False), date))
    if job in agenda.flows.held:
        due = None
    queue = chance.choice((None, *queues))
    priority = chance.choice((None, 1, 5, 9))
    try:
        return found(process, job, priority=priority, queue=queue, due=due)
    except JobNotFound:  # cut off after a failed fsync, which this process learns at its next lock
        hint = process.journal.writer.peek()
        assert hint is not None
        assert hint.failed
        return None


def call(name: str = "part") -> Any:
    return make_call(name, None, b"{}", Flag(0), Options())


def leaf() -> Leaf:
    return Leaf(call())


def step() -> Leaf:
    return Leaf(call("step"), takes=True)


def items_of(node: Node) -> list[Any]:
    return [(call.spec, call.body, call.extras) for call in plan_of(Flow(node)).calls]


def chord(count: int, policy: Policy = Policy.CANCEL) -> Chain:
    return Chain((Parallel(tuple(leaf() for _ in range(count))), step()), policy)
