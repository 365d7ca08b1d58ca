"""A log open in this process, as its callers see it; its one thread does the work."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import UsageError, no_loop, refusal
from taskq.core.model import SECOND_NS
from taskq.core.parsing import Tag
from taskq.core.views import OwnerView, Serving
from taskq.log import config, requests
from taskq.log.machine import forks
from taskq.log.machine.access import enter, exposures
from taskq.log.machine.forks import fill_standard
from taskq.log.machine.inside import inside, refuse_inside
from taskq.log.machine.owners import ProgressBoard, Stall, publish, publish_stall
from taskq.log.machine.system import system
from taskq.log.machine.threads import Reporter, drain, start_thread
from taskq.log.store.mailbox import Mailbox
from taskq.log.store.port import LoopPort, ThreadPort
from taskq.log.store.thread import StorageThread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from taskq.log.decide.listeners import DeadLetter, Writer
    from taskq.log.segments.identity import Identity

_log: Final = Reporter("taskq")


class Store:
    """A log open in this process.

    Attributes:
        mailbox: requests and chores for the storage thread.
        usable: False once closed, and in a forked child.
        tag: prefix of every job id of this log.
        owner: this process's owner number.
    """

    def __init__(self, path: str, config: config.LogConfig) -> None:
        self.path = path
        self.config = config
        self.mailbox: Mailbox = Mailbox(path)
        self.usable: bool = True
        self.openers: int = 1
        self.tag: Tag = Tag("")
        self.owner: int = 0
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._storage: StorageThread | None = None
        self._progress: ProgressBoard | None = None
        self._servings: dict[object, Serving] = {}
        self._ports: dict[AbstractEventLoop, LoopPort] = {}
        self._latest: dict[int, LoopPort] = {}
        #: of threads without an event loop
        self.thread_port: ThreadPort = ThreadPort(self.mailbox)
        self._thread = start_thread(self._run, "taskq-storage")

    def _run(self) -> None:
        # A program may set SIGPIPE to end it; waking a dead process must not do so.
        system.block_broken_pipe()
        inside.add(get_ident())
        try:
            self._run_inside()
        finally:
            inside.discard(get_ident())

    def _run_inside(self) -> None:
        try:
            storage = self._storage = StorageThread(
                self.mailbox, self.config, self.leave_closed_loops, self._shut
            )
            try:
                storage.open()
                self.tag, self.owner = storage.journal.tag, storage.committer.peers.owner
            except BaseException:
                storage.close_files()
                raise
        except BaseException as error:  # noqa: BLE001 - the opener of the log gets it
            self._error = refusal(self.path, error) if isinstance(error, OSError) else error
            self._shut()
            return
        finally:
            self._opened.set()
        storage.run()
        for port in list(self._ports.values()):
            port.leave()

    def _shut(self) -> None:
        """Take no more requests. Every enqueue checks the flag, so it has two copies, set here."""
        self.usable = self.mailbox.usable = False

    def wait_open(self) -> None:
        """Block until the log is open; only a wait for the lock has a time limit.

        Raises:
            LogError: the log cannot be opened.
        """
        left = limit = self.config.lock_wait_seconds
        while not self._opened.wait(left):
            since = 0.0 if self._storage is None else self._storage.writer.waiting_since
            left = since + limit - time.monotonic() if since else limit
            if left <= 0:
                self.mailbox.closing = True
                self._shut()
                raise self._open.writer.locked_error(limit)
        if self._error is not None:
            raise self._error

    @property
    def _open(self) -> StorageThread:
        assert self._storage is not None
        return self._storage

    @property
    def identity(self) -> Identity:
        """Return the identity of the log and of its parents."""
        return self._open.journal.identity

    @property
    def taken_back(self) -> int:
        """Jobs of dead processes that this process gave back or ended."""
        return self._open.committer.taken_back

    @property
    def takes_writes(self) -> bool:
        """Return whether the last second had an accepted batch, and room on the disk."""
        storage = self._storage
        if storage is None or not self.usable:
            return False
        committer = storage.committer
        # If the disk is short or refuses, its next check is due at once.
        return committer.trouble is None and self.steady_ns() < committer.room.look_at_ns

    @property
    def batches(self) -> int:
        """Number of frames appended by this process."""
        return self._open.journal.meters.batches

    def steady_ns(self) -> int:
        """Return the time of the clock of ``ClaimRequest.wait_until_ns``."""
        return self._open.journal.clock.steady_ns()

    def wall_ns(self) -> int:
        """Return the log's time, in nanoseconds since 1970."""
        return self._open.journal.clock.wall_ns()

    def port(self) -> LoopPort:
        """Return the port of the running event loop.

        Every enqueue calls it. Before Python 3.12 ``get_running_loop`` makes a system call (0.3
        µs), so this thread's latest loop is tried first.
        """
        thread = get_ident()
        port = self._latest.get(thread)
        if port is not None and getattr(port.loop, "_thread_id", None) == thread:
            return port
        if "asyncio" not in sys.modules:
            raise no_loop()
        from asyncio import get_running_loop  # noqa: PLC0415 - a program of threads alone has none

        try:
            loop = get_running_loop()
        except RuntimeError:
            raise no_loop() from None
        port = self._latest[thread] = self._port_of(loop)
        return port

    def _port_of(self, loop: AbstractEventLoop) -> LoopPort:
        port = self._ports.get(loop)
        if port is None:
            self._latest.clear()
            self.leave_closed_loops()
            port = self._ports[loop] = LoopPort(self.mailbox, loop)
        return port

    def leave_closed_loops(self) -> bool:
        """Take back deliveries of closed loops; False while answers are pending.

        Any thread may call it.
        """
        settled = True
        for loop, port in list(self._ports.items()):
            if loop.is_closed():
                self._ports.pop(loop, None)
                port.close()
            elif port.busy:
                settled = False
        return settled

    def on_death(
        self, hook: object, call: Callable[[DeadLetter, Any], object]
    ) -> Callable[[], None]:
        """Call ``call(letter, hook)`` in the running loop for each job that dies here.

        Return a function to stop.
        """
        return self._open.committer.operations.deaths.listen(self.port(), hook, call)

    def write_deaths(self, owner: object, writer: Writer) -> None:
        """Let ``writer`` return jobs for each death here; they join the death's frame.

        It is called on the storage thread, and replaces its owner's earlier writer.
        """
        self._open.committer.operations.deaths.write(owner, writer)

    def on_cancel(self, call: Callable[[requests.Ask, None], object]) -> Callable[[], None]:
        """Call ``call(ask, None)`` in the running loop for each cancel request for a job here.

        Return a function to stop.
        """
        leave = self._open.committer.operations.asks.listen(self.port(), call)
        self.mailbox.wake_up()
        return leave

    def on_steering(self, call: Callable[[None, None], object]) -> Callable[[], None]:
        """Call ``call(None, None)`` in the running loop after changes of controls or schedules.

        Ticks do not count. Return a function to stop.
        """
        asks = self._open.committer.operations.asks
        leave = asks.listen_for_steering(self.port(), call)
        self.mailbox.wake_up()
        return leave

    @property
    def progress(self) -> ProgressBoard:
        """Return the board for the progress of running jobs; made at first use."""
        with _registry_guard:
            if self._progress is None:
                self._progress = ProgressBoard(Path(self.path) / "owners", self.owner)
            return self._progress

    def between_batches(self, chore: Callable[[], object]) -> None:
        """Run ``chore`` on the storage thread, while that holds no lock."""
        self.mailbox.between_batches(chore)

    @property
    def pulse(self) -> tuple[int, bool]:
        """Return the number of the storage thread's turns, and whether another is due."""
        mailbox = self.mailbox
        return mailbox.turns, not mailbox.asleep or mailbox.has_work

    @property
    def thread_id(self) -> int | None:
        """Return the identifier of the storage thread."""
        return self._thread.ident

    def publish_stall(self, text: str, seconds: float = 0, *, is_engine: bool = False) -> None:
        """Publish a standstill of this process, with its duration; "" for none.

        Do not call it on the storage thread, since it writes a file.
        """
        since_ns = time.time_ns() - int(seconds * SECOND_NS)
        stall = Stall(text, since_ns, is_engine) if text else None
        publish_stall(Path(self.path) / "owners", self.owner, stall)

    def live_workers(self) -> tuple[OwnerView, ...]:
        """Return the live processes that claim jobs of this log; reads their files."""
        from taskq.log.read.diagnosis import live_workers  # noqa: PLC0415 - rarely needed at start

        return live_workers(self.path)

    def serve(self, worker: object, serving: Serving | None) -> None:
        """Publish the claims of a worker of this process; None when it stops claiming."""
        before = self._servings.get(worker)
        if before is serving or (before and serving and before == serving):
            return
        if serving is None:
            del self._servings[worker]
        else:
            self._servings[worker] = serving
        directory = Path(self.path) / "owners"
        self.between_batches(lambda: publish(directory, self.owner, [*self._servings.values()]))

    def close(self) -> None:
        """Answer everything, sync, and leave; the last opener closes. May be called twice."""
        refuse_inside(self.path)
        with _registry_guard:
            if not self.mailbox.closing:
                self.openers -= 1
                if self.openers > 0:
                    # The leaving caller may have closed its loop.
                    self.leave_closed_loops()
                    return
                self.mailbox.closing = True
                for key in [key for key, store in _registry.items() if store is self]:
                    del _registry[key]
                self.mailbox.wake_up()
        if self._progress is not None:
            self._progress.close()
        self._thread.join(self.config.lock_wait_seconds + 1)
        self._shut()
        if self._thread.is_alive() and self._storage is not None:
            self._storage.abandon()
        drain()

    def forget_in_child(self) -> None:
        """Detach the log in a forked child: its thread and its pipes belong to the parent."""
        self._storage = None
        self._shut()
        self.mailbox.leave_to_parent()


_registry: dict[tuple[int, int], Store] = {}
#: reentrant: a signal handler may run while its thread holds it
_registry_guard = threading.RLock()


def open_store(path: str, config: config.LogConfig) -> Store:
    """Open a log, or share it if this process has it open already.

    Raises:
        UsageError: it is open here with other options.
        LogError: it cannot be opened.
    """
    fill_standard()
    # The directory may be a link, but nothing inside it.
    directory = system.resolved(path)
    status = enter(directory, config.mode)
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
            store = _registry[key] = Store(directory, config)
            for exposure in exposures(directory):
                _log.warning("%s", exposure)
    try:
        store.wait_open()
    except BaseException:
        with _registry_guard:
            if _registry.get(key) is store:
                del _registry[key]
        raise
    return store


def _close_all() -> None:
    for store in list(_registry.values()):
        store.openers = 1
        store.close()


def _forget_all() -> None:
    global _registry_guard  # noqa: PLW0603 - the parent may have held it at the fork
    _registry_guard = threading.RLock()
    for store in _registry.values():
        store.forget_in_child()
    _registry.clear()


atexit.register(_close_all)
forks.on_fork(_forget_all)
