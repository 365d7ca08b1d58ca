"""Prevent workers in child processes, while they import tasks and after a task has forked.

A script that starts a worker at its import would start another worker in each of its children, and
these in theirs, without end. And process pools end their processes with SIGTERM: a forked process
that drained, like a worker, would never end.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, Final, Never

from taskq import JobContext, errors, hooks
from taskq_workers.runs import system

_importing: ContextVar[bool] = ContextVar("taskq_importing", default=False)

#: Set in a frozen child until it runs jobs: "main" if the main program defines tasks of the worker,
#: before it calls ``freeze_support()``; "modules" if only modules do.
MARK: Final = "_TASKQ_CHILD"
_STDERR: Final = 2
#: Remedy if a copy of a frozen program did not become a child.
ADVICE: Final = (
    "a frozen program starts itself to run jobs in a child process: call "
    'multiprocessing.freeze_support() first under if __name__ == "__main__"'
)


@contextmanager
def importing() -> Iterator[None]:
    """Refuse workers inside the block; a child process imports the user's modules in it."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Refuse a worker in a child process that is importing, and in a mere copy of the program.

    A copy of a frozen program that did not become a child is ended.
    """
    if MARK in os.environ:
        os.write(2, f"taskq: {ADVICE}\n".encode())
        os._exit(1)
    if _importing.get():
        raise errors.UsageError(
            "a worker is started as the module is imported, which each child process of "
            'runs_in="process" does: put it under if __name__ == "__main__":'
        )


def show_crashes() -> None:
    """Write each thread's stack to stderr when a signal such as SIGSEGV ends this process."""
    if not faulthandler.is_enabled():
        faulthandler.enable(_STDERR)  # by its number: a windowed program has no sys.stderr


def signal_name(number: int) -> str:
    known = {known.value: known.name for known in signal.Signals}
    return known.get(number, f"signal {number}")


def keep_from_children(handlers: Mapping[signal.Signals, Any]) -> Callable[[], None]:
    """Give every forked child of this process these handlers instead of its own.

    The signals are blocked during the fork: a signal right after it would end the child, too. The
    returned function undoes this, for a process that goes on without its worker.
    """
    masks = threading.local()
    kept = dict(handlers)

    def before() -> None:
        masks.mask = system.mask(kept)

    def in_parent() -> None:
        system.mask(masks.mask, "SIG_SETMASK")

    def in_child() -> None:
        if kept:
            signal.set_wakeup_fd(-1)
        for number, handler in kept.items():
            signal.signal(number, handler)
        system.mask(masks.mask, "SIG_SETMASK")

    system.at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
    return kept.clear


# If a job forks, the child must end: a child that returned from the job would be a second worker
# on the same loop, thread or channel, and run jobs of the first.

#: loop -> (its thread, functions that keep the slots there from their next job)
_workers: Final[dict[asyncio.AbstractEventLoop, tuple[int, list[Callable[[], object]]]]] = {}


def end_children_of(
    loop: asyncio.AbstractEventLoop, abandon: Callable[[], object]
) -> Callable[[], None]:
    """End forked children that return to a worker's loop; return an undo function.

    Called on the loop's thread. ``abandon`` is called in such a child, so that no slot begins its
    next job.
    """
    for closed in [item for item in _workers if item.is_closed()]:
        del _workers[closed]  # its worker never ended: no other code removes the entry
    _, abandons = _workers.setdefault(loop, (threading.get_ident(), []))
    abandons.append(abandon)

    def undo() -> None:
        abandons.remove(abandon)
        if not abandons:
            _workers.pop(loop, None)

    return undo


def end_child(*_: object) -> Never:
    """End this process, a forked child that returned from its job, with a message."""
    job = hooks.running_job.get(None)
    what = "a job" if job is None else f"job {job.id} ({job.task})"
    line = (
        f"taskq: {what} forked, and its child came back to the worker: the child {os.getpid()} "
        f"ends here. End it within the task, by os._exit(), or start a program with subprocess\n"
    )
    os.write(2, line.encode())
    os._exit(1)


def _in_forked_child() -> None:
    workers = dict(_workers)
    _workers.clear()
    for loop, (thread, abandons) in workers.items():
        if thread != threading.get_ident() or hooks.running_job.get(None) is None:
            continue
        for abandon in abandons:
            abandon()
        handle = loop.call_soon(end_child)
        ready: Any = getattr(loop, "_ready", None)
        if ready is not None:  # run before the parent's callbacks of this turn
            ready.remove(handle)
            ready.appendleft(handle)


system.at_fork(after_in_child=_in_forked_child)


_THROUGH: Final = (SystemExit, KeyboardInterrupt)


class Keeper(asyncio.Task[None]):
    """The task of a worker's life; calls ``blame`` with a job that cancels it, and the act."""

    blame: Callable[[JobContext, BaseException], None] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if self.blame is not None and not self.done():
            error = sys.exception()
            if isinstance(error, _THROUGH):
                job = _culprit(error)
            else:
                job = hooks.running_job.get(None)
                error = RuntimeError("it cancelled the worker that ran it")
            if job is not None:
                self.blame(job, error)
        return super().cancel(msg)


def forbid_stop(
    loop: asyncio.AbstractEventLoop, runs: Callable[[JobContext], bool]
) -> Callable[[], None]:
    """Make ``loop.stop()`` raise in jobs for which ``runs`` is true; return an undo function.

    Code outside of jobs may still stop the loop. Several workers on one loop each add their
    ``runs``.
    """
    attributes = vars(loop)
    stop = attributes.get("stop")
    guard = stop if isinstance(stop, _Guard) else _Guard(loop)
    attributes["stop"] = guard
    guard.runs.append(runs)

    def undo() -> None:
        guard.runs.remove(runs)
        # Another wrapper around it may go on calling it, which is harmless.
        if not guard.runs and attributes.get("stop") is guard:
            del attributes["stop"]
            attributes.update(guard.before)

    return undo


class _Guard:
    """Replaces ``loop.stop`` while workers run there; ``before`` is the loop's own attribute."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.runs: list[Callable[[JobContext], bool]] = []
        self.before = {name: value for name, value in vars(loop).items() if name == "stop"}
        self._stop = loop.stop

    def __call__(self) -> None:
        job = hooks.running_job.get(None)
        if job is not None and any(runs(job) for runs in self.runs):
            raise RuntimeError(
                f"job {job.id} ({job.task}) may not stop the event loop: its worker runs on it"
            )
        self._stop()


def _culprit(error: BaseException) -> JobContext | None:
    trace = error.__traceback__
    while trace is not None:
        handle = trace.tb_frame.f_locals.get("self")
        if isinstance(handle, asyncio.Handle):
            context: Context | None = getattr(handle, "_context", None)
            return None if context is None else context.get(hooks.running_job)
        trace = trace.tb_next
    return None
