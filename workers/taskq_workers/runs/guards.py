"""Guard child processes against being workers: as they import tasks, and when a task forks one.

A script that starts a worker as it is imported would start another one in each of its children,
whose children do the same, without an end. And pools end their processes with SIGTERM: a forked one
that drained, as a worker does, would never end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Never

from taskq.errors import UsageError
from taskq.hooks import running_job

if TYPE_CHECKING:
    import asyncio

_importing: ContextVar[bool] = ContextVar("taskq_importing", default=False)

#: Set in a frozen child until it runs jobs: "main" if the program itself has tasks of it, which
#: makes them before it calls ``freeze_support()``; "modules" if it need not get that far.
MARK: Final = "_TASKQ_CHILD"
#: What to do where a copy of a frozen program did not become a child.
ADVICE: Final = (
    "a frozen program starts itself to run jobs in a child process: call "
    'multiprocessing.freeze_support() first under if __name__ == "__main__"'
)


@contextmanager
def importing() -> Iterator[None]:
    """Refuse workers within; for a child process, around what runs the user's modules."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Let no worker start in a child process that is importing, nor in one that is a mere copy.

    A frozen program that should run jobs, and did not notice, is ended.

    Raises:
        UsageError: it is.
    """
    if MARK in os.environ:
        os.write(2, f"taskq: {ADVICE}\n".encode())
        os._exit(1)
    if _importing.get():
        raise UsageError(
            "a worker is started as the module is imported, which each child process of "
            'runs_in="process" does: put it under if __name__ == "__main__":'
        )


def signal_name(number: int) -> str:
    known = {known.value: known.name for known in signal.Signals}
    return known.get(number, f"signal {number}")


def keep_from_children(handlers: Mapping[signal.Signals, Any]) -> Callable[[], None]:
    """Give every child that this process forks these handlers instead of its own.

    The signals are blocked meanwhile: one that comes just after the fork ends the child, too. What
    is returned ends that, for a process that goes on without its worker.
    """
    masks = threading.local()
    kept = dict(handlers)

    def before() -> None:
        masks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, kept)

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.mask)

    def in_child() -> None:
        if kept:
            signal.set_wakeup_fd(-1)
        for number, handler in kept.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.mask)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
    return kept.clear


# A job that forks has to see to the child: one that returns as the job does would be a second
# worker on the same loop, thread or channel, which runs jobs of the first.

#: loop -> (its thread, what keeps the slots there from their next job)
_workers: Final[dict[asyncio.AbstractEventLoop, tuple[int, list[Callable[[], object]]]]] = {}


def end_children_of(
    loop: asyncio.AbstractEventLoop, abandon: Callable[[], object]
) -> Callable[[], None]:
    """End forked children that come back to the loop of a worker; returns what undoes that.

    Args:
        loop: on whose thread this is called.
        abandon: called in such a child, so that no slot goes on to its next job.
    """
    for closed in [item for item in _workers if item.is_closed()]:
        del _workers[closed]  # its worker never ended: nobody else lets go of either
    _, abandons = _workers.setdefault(loop, (threading.get_ident(), []))
    abandons.append(abandon)

    def undo() -> None:
        abandons.remove(abandon)
        if not abandons:
            _workers.pop(loop, None)

    return undo


def end_child(*_: object) -> Never:
    """End this process, a forked child that its job let come back, and say so."""
    job = running_job.get(None)
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
        if thread != threading.get_ident() or running_job.get(None) is None:
            continue
        for abandon in abandons:
            abandon()
        handle = loop.call_soon(end_child)
        ready: Any = getattr(loop, "_ready", None)
        if ready is not None:  # before what waits for this very turn, which is the parent's
            ready.remove(handle)
            ready.appendleft(handle)


os.register_at_fork(after_in_child=_in_forked_child)
