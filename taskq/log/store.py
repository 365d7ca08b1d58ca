"""The storage thread: one per open log and process. It alone touches the disk.

It takes the mailbox as one batch, commits it, wakes whoever sleeps for it, syncs if answers wait
for that, and hands all answers out in one wake-up per event loop. Between batches it sleeps until
poked, woken by another process, or until something falls due.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import LogClosed, LogError, TaskqError, UsageError
from taskq.core.model import SECOND_NS, Durability
from taskq.log import forks
from taskq.log.committer import DEAD_OWNER_CHECK_NS, Committer, Request, Survey
from taskq.log.config import BATCH_BYTES_MAX, MAILBOX_MAX, LogConfig
from taskq.log.disk import LocalDisk, SystemClock
from taskq.log.journal import Journal
from taskq.log.lock import WriterLock
from taskq.log.operations import failure
from taskq.log.peers import LocalPeers
from taskq.log.port import LoopPort, ThreadPort
from taskq.log.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.requests import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.log.committer import Answer

_log: Final = logging.getLogger("taskq")
#: A sleeper looks by itself this often, should a wake-up ever be lost.
_FALLBACK_SECONDS: Final = 5.0
#: How soon settlements that the disk refused are tried again.
_HELD_SECONDS: Final = 0.5
#: How often the lock watcher looks, as a share of the longest wait.
_WATCH_SHARE: Final = 8


class Store:
    """A log that is open in this process.

    Attributes:
        mailbox: requests that the storage thread has not taken yet.
        asleep: whether the storage thread must be poked to look at the mailbox.
        usable: False once closed, and in a forked child.
    """

    def __init__(self, path: str, config: LogConfig) -> None:
        self.path = path
        self.config = config
        self.mailbox: deque[Request] = deque()
        self.asleep = False
        self.usable = True
        self.openers = 1
        self.recovered: list[str] = []
        self._closing = False
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._chores: deque[Callable[[], object]] = deque()
        self._waiting_for_room: deque[Callable[[], object]] = deque()
        self._ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPort]
        self._ports = weakref.WeakKeyDictionary()
        self._port_of_thread = ThreadPort(self)
        self._watcher: threading.Thread | None = None
        self._last_sync = time.monotonic()
        self._journal: Journal | None = None
        self._peers: LocalPeers | None = None
        self._thread = threading.Thread(target=self._run, name="taskq-storage", daemon=True)
        self._thread.start()

    # -- for callers ------------------------------------------------------------------------------

    def wait_open(self) -> None:
        """Block until the log is open.

        Raises:
            LogError: it cannot be opened.
        """
        if not self._opened.wait(self.config.lock_wait_seconds):
            journal = self._journal
            self._closing = True
            self.usable = False
            if journal is not None:
                raise journal.writer.locked_error(self.config.lock_wait_seconds)
            raise LogError(f"{self.path}: opening took over {self.config.lock_wait_seconds} s")
        if self._error is not None:
            raise self._error

    @property
    def tag(self) -> str:
        """What every job id of this log starts with."""
        assert self._journal is not None
        return self._journal.tag

    @property
    def owner(self) -> int:
        """This process's owner number."""
        assert self._peers is not None
        return self._peers.owner

    @property
    def taken_back(self) -> int:
        """Jobs of dead processes that this one gave back or ended."""
        return self._committer.taken_back

    @property
    def longest_lock_wait_seconds(self) -> float:
        """The longest wait for the writer lock so far."""
        assert self._journal is not None
        return self._journal.writer.longest_wait_seconds

    @property
    def batches(self) -> int:
        """Frames appended by this process."""
        return self._committer.batches

    def steady_ns(self) -> int:
        """The clock of ``ClaimRequest.wait_until_ns``."""
        assert self._journal is not None
        return self._journal.clock.steady_ns()

    def port(self) -> LoopPort:
        """The port of the running event loop."""
        loop = asyncio.get_running_loop()
        port = self._ports.get(loop)
        if port is None:
            port = self._ports[loop] = LoopPort(self, loop)
        return port

    @property
    def thread_port(self) -> ThreadPort:
        """The port of threads that run no event loop."""
        return self._port_of_thread

    @property
    def full(self) -> bool:
        """Whether the mailbox is at its limit."""
        return len(self.mailbox) >= MAILBOX_MAX

    def when_room(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` once the mailbox has been taken."""
        self._waiting_for_room.append(wake)
        self.wake_up()

    def between_batches(self, chore: Callable[[], object]) -> None:
        """Run ``chore`` on the storage thread, while it holds no lock."""
        self._chores.append(chore)
        self.wake_up()

    def wake_up(self) -> None:
        """Make the storage thread look at its mailbox."""
        self.asleep = False
        if self._peers is not None:
            self._peers.poke()

    def close(self) -> None:
        """Answer everything, sync, and leave. Legal twice; the last of several openers closes."""
        with _registry_guard:
            if self._closing:
                return
            self.openers -= 1
            if self.openers > 0:
                return
            self._closing = True
            for key, store in list(_registry.items()):
                if store is self:
                    del _registry[key]
        self.wake_up()
        self._thread.join(self.config.lock_wait_seconds + 1)
        self.usable = False

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
        except BaseException as error:  # noqa: BLE001 - whoever opens the log gets it
            self._error = error
            self.usable = False
            self._opened.set()
            self._close_files()
            return
        self._opened.set()
        while True:
            while self._chores:
                _run_chore(self._chores.popleft())
            requests, survey = self._take()
            if requests:
                self._cycle(requests, survey)
            elif self._closing:
                break
            else:
                self._idle()
        self._finish()

    def _open(self) -> None:
        config = self.config
        disk = LocalDisk()
        writer = WriterLock(disk, self.path, os.getpid(), config.lock_wait_seconds)
        journal = self._journal = Journal(disk, SystemClock(), self.path, config, writer)
        writer.on_wait = self._watch_lock
        journal.open()
        try:
            if self._closing:
                raise LogClosed(f"{self.path}: closed while it waited for the writer lock")
            self._peers = LocalPeers(self.path, config.name)
            self._committer = Committer(journal, self._peers, config, self._peers.description)
            self.recovered = journal.recovered
            if config.exclusive:
                journal.writer.exclusive = True
                journal.writer.acquire()
        finally:
            journal.unlock()
        for note in journal.recovered:
            _log.warning("%s: %s", self.path, note)

    def _take(self) -> tuple[list[Request], Survey]:
        """The next batch: 256 KiB, and whatever the last request has beyond that."""
        mailbox = self.mailbox
        requests: list[Request] = []
        survey = Survey()
        add = survey.add
        for _ in range(len(mailbox)):
            request = mailbox.popleft()
            requests.append(request)
            add(request)
            if survey.size >= BATCH_BYTES_MAX:
                break
        while self._waiting_for_room:
            _run_chore(self._waiting_for_room.popleft())
        return requests, survey

    def _cycle(self, requests: list[Request], survey: Survey) -> None:
        committer = self._committer
        try:
            committer.commit(requests, survey)
            interest = committer.take_interest()
            if interest and self._peers is not None:
                self._peers.wake(interest)
            self._sync_if_due()
        except Exception as error:  # a bug must not leave callers waiting for ever
            _log.exception("%s: the storage thread met an unexpected error", self.path)
            committer.facets.discard()
            known = {id(answer[1]) for answer in (*committer.now, *committer.later)}
            committer.now += [
                (port, future, failure(error))
                for _, port, future, _ in requests
                if future is not None and id(future) not in known
            ]
        self._hand_out()

    def _sync_if_due(self) -> None:
        committer = self._committer
        if committer.must_sync():
            # What does not wait for the disk goes out first: claimed jobs run while it syncs.
            if committer.now:
                now, committer.now = committer.now, []
                self._deliver(now)
            self._sync()
        elif committer.unsynced and self.config.durability is Durability.INTERVAL:
            if time.monotonic() - self._last_sync >= self.config.interval_seconds:
                self._sync()

    def _sync(self) -> None:
        self._last_sync = time.monotonic()
        self._committer.sync()
        took = time.monotonic() - self._last_sync
        if took > 1:
            _log.warning("%s: an fsync took %.1f s", self.path, took)

    def _hand_out(self) -> None:
        committer = self._committer
        answers = committer.now + committer.later
        if answers:
            committer.now, committer.later, committer.later_lsn = [], [], 0
            self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        port = answers[0][0]
        if len(self._ports) == 1 and port is not self._port_of_thread:
            if all(answer[0] is port for answer in answers):
                port.deliver(answers)
                return
        by_port: dict[Any, list[Answer]] = {}
        for answer in answers:
            by_port.setdefault(answer[0], []).append(answer)
        for port, part in by_port.items():
            port.deliver(part)

    # -- sleeping ---------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Nothing is in the mailbox: do what has fallen due, else sleep until something does."""
        committer, journal, peers = self._committer, self._journal, self._peers
        assert journal is not None
        assert peers is not None
        if committer.unsynced and self.config.durability is Durability.FSYNC:
            with contextlib.suppress(TaskqError, OSError):
                self._sync()
            return
        committer.forget_cancelled_watchers()
        interest = (INTEREST_READY if committer.waiting else 0) | (
            INTEREST_OUTCOME if committer.watchers else 0
        )
        timeout = self._timeout()
        if timeout is not None and timeout <= 0:
            self._wake_for_due()
            return
        self.asleep = True
        if self.mailbox or self._closing or self._chores or self._waiting_for_room:
            self.asleep = False
            return
        if interest:
            peers.announce(interest)
        if not interest or not journal.has_grown():
            peers.sleep(interest, timeout)
        self.asleep = False
        if interest:
            peers.announce(0)
        if not self.mailbox:
            self._wake_for_due()

    def _timeout(self) -> float | None:
        """Seconds until something falls due; None when nothing will."""
        committer, journal = self._committer, self._journal
        assert journal is not None
        limits: list[float] = []
        if committer.held:
            limits.append(_HELD_SECONDS)
        if committer.unsynced and self.config.durability is Durability.INTERVAL:
            limits.append(self._last_sync + self.config.interval_seconds - time.monotonic())
        if committer.watchers:
            limits.append(_FALLBACK_SECONDS)
        if committer.waiting:
            limits.append(_FALLBACK_SECONDS)
            agenda = committer.facets.agenda
            if agenda is not None:
                wall = journal.clock.wall_ns()
                moments = (agenda.next_due_ns(), agenda.next_expiry_ns())
                limits += [(at - wall) / SECOND_NS for at in moments if at is not None]
            if committer.other_owners():
                limits.append(DEAD_OWNER_CHECK_NS / SECOND_NS)
            steady = journal.clock.steady_ns()
            limits += [
                (claim[0].wait_until_ns - steady) / SECOND_NS
                for claim in committer.waiting
                if claim[0].wait_until_ns is not None
            ]
        return min(limits, default=None)

    def _wake_for_due(self) -> None:
        committer, journal = self._committer, self._journal
        assert journal is not None
        if committer.waiting or committer.held:
            if committer.dead_owners():
                committer.look_for_dead_now()
            self._cycle([], Survey())
        elif committer.watchers and journal.has_grown():
            try:
                committer.follow()
                self._sync_if_due()
            except (TaskqError, OSError) as error:
                _log.warning("%s: %s", self.path, error)
            self._hand_out()
        elif committer.unsynced:
            self._sync_if_due()

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everything in the mailbox was answered: sync what is left, and refuse the rest."""
        self.usable = False
        committer = self._committer
        if committer.unsynced and self.config.durability is not Durability.OS:
            with contextlib.suppress(TaskqError, OSError):
                committer.sync()
        closed = LogClosed(f"{self.path}: the log was closed")
        committer.now += [(port, future, closed) for _, port, future in committer.waiting]
        for watchers in committer.watchers.values():
            committer.now += [(port, future, closed) for port, future in watchers]
        committer.now += [
            (port, future, closed) for _, port, future, _ in self.mailbox if future is not None
        ]
        self._hand_out()
        self._close_files()

    def _close_files(self) -> None:
        if self._peers is not None:
            self._peers.close()
        if self._journal is not None:
            self._journal.close()

    def forget_in_child(self) -> None:
        """In a forked child: this log belongs to the parent."""
        self.usable = False
        self._closing = True
        for part in (self._peers, self._journal):
            if part is not None:
                for descriptor in part.descriptors:
                    with contextlib.suppress(OSError):
                        os.close(descriptor)

    # -- the lock's watcher -----------------------------------------------------------------------

    def _watch_lock(self) -> None:
        """The storage thread is about to wait in line: have somebody mind the time."""
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = threading.Thread(
                target=self._mind_the_lock, name="taskq-lock-watch", daemon=True
            )
            self._watcher.start()

    def _mind_the_lock(self) -> None:
        """Tell callers when the lock is not to be had; ends when nobody has waited for a while."""
        assert self._journal is not None
        writer = self._journal.writer
        limit = self.config.lock_wait_seconds
        quiet = 0
        tick = threading.Event()
        while quiet < 10 * _WATCH_SHARE and not self._closing:
            tick.wait(limit / _WATCH_SHARE)
            since = writer.waiting_since
            waited = time.monotonic() - since if since else 0.0
            quiet = 0 if since else quiet + 1
            if waited > limit and self._opened.is_set():
                self._answer_locked(waited)

    def _answer_locked(self, waited: float) -> None:
        assert self._journal is not None
        committer = self._committer
        error = self._journal.writer.locked_error(waited)
        requests = committer.take_in_flight()
        patient = [one for one in requests if one[0] in (Op.SETTLE_SOON, Op.CLAIM)]
        committer.held_back(patient)
        answers: list[Answer] = [
            (port, future, error)
            for op, port, future, _ in requests
            if op not in (Op.SETTLE_SOON, Op.CLAIM)
        ]
        with contextlib.suppress(IndexError):
            while True:
                request = self.mailbox.popleft()
                if request[0] in (Op.SETTLE_SOON, Op.CLAIM):
                    committer.held_back([request])
                else:
                    answers.append((request[1], request[2], error))
        if answers:
            self._deliver(answers)


_registry: dict[tuple[int, int], Store] = {}
_registry_guard = threading.Lock()


def open_store(path: str, config: LogConfig) -> Store:
    """Open a log, or share it if this process has it open already.

    Raises:
        UsageError: it is open here with other options.
        LogError: it cannot be opened.
    """
    directory = Path(path).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise LogError(f"{path}: cannot make the directory ({error.strerror})") from error
    key = (status.st_dev, status.st_ino)
    with _registry_guard:
        store = _registry.get(key)
        if store is not None and store.usable:
            if store.config != config:
                raise UsageError(
                    f"{path} is open in this process with other options ({store.config}): "
                    f"use the same ones, or close it first"
                )
            store.openers += 1
        else:
            store = _registry[key] = Store(str(directory), config)
    try:
        store.wait_open()
    except BaseException:
        with _registry_guard:
            if _registry.get(key) is store:
                del _registry[key]
        raise
    return store


def _run_chore(chore: Callable[[], object]) -> None:
    try:
        chore()
    except Exception:
        _log.exception("a chore on the storage thread raised")


def _close_all() -> None:
    for store in list(_registry.values()):
        store.openers = 1
        store.close()


def _forget_all() -> None:
    global _registry_guard  # noqa: PLW0603 - the parent may have held it when it forked
    _registry_guard = threading.Lock()
    for store in _registry.values():
        store.forget_in_child()
    _registry.clear()


atexit.register(_close_all)
forks.on_fork(_forget_all)
