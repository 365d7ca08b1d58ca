"""A machine, its clock, and processes that have one log open: what the tests of the log drive."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from taskq.core.errors import TaskqError
from taskq.core.model import Durability, Extras
from taskq.core.records import Cause, Kind
from taskq.core.views import JobView
from taskq.log.commit.committer import Committer
from taskq.log.commit.room import with_reserve
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.context import BatchNeeds
from taskq.log.format.frames import segment_name
from taskq.log.format.record import Record
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.requests import (
    ClaimRequest,
    Delivery,
    Duplicate,
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
from taskq.testing.sandbox import FakeClock
from tests.effort import every
from tests.machine.crashable import CrashableDisk, Machine, Neighbourhood, PowerLost, ProcessKilled

PATH: Final = "/srv/data"
PLAIN: Final = EnqueueSpec(task="mail.send")
#: Uses its disk up: a test that wants a reserve asks for it.
SMALL: Final = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=0, reserve_bytes=0)


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
    """Yield a crash at each disk step in turn, by default at some, until one comes too late."""
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

    def records(self) -> list[Record]:
        journal = self.reader()
        return list(records(journal, journal.start()))

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
        before = {path: self.machine.content(path) for path in self.machine.paths()}
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

    def commit_here(self, request: Request, needs: BatchNeeds, *, syncs: bool) -> bool:
        self.committer.commit([request], needs)
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
