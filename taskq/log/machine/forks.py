"""First steps of a forked child: close and forget inherited files."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from typing import Final, ParamSpec

P = ParamSpec("P")

#: Error of a write to a pipe without a reader; systems without forks have another.
READER_GONE: Final = frozenset({errno.EPIPE if hasattr(os, "fork") else errno.EINVAL})

_actions: list[Callable[[], object]] = []
_unshared: set[int] = set()
_guard = threading.RLock()


def on_fork(action: Callable[[], object]) -> None:
    """Run ``action`` in every forked child of this process."""
    _actions.append(action)


# A lock inherited by a child outlives its owner, and a child has no storage thread. So files that
# are written or locked are opened and closed here, where a fork waits for them. The child then
# knows all of them, in spite of other threads during the fork.
def open_unshared(opener: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
    with _guard:
        descriptor = opener(*args, **kwargs)
        _unshared.add(descriptor)
        return descriptor


def close_unshared(descriptor: int) -> None:
    """Close a descriptor, of ``open_unshared`` or any other.

    An error of close is ignored: durable data was synced before.
    """
    with _guard:
        _unshared.discard(descriptor)
        try:
            os.close(descriptor)
        except OSError as error:
            if error.errno == errno.EBADF:
                raise


def _before() -> None:
    _guard.acquire()


def _in_parent() -> None:
    _guard.release()


def _in_child() -> None:
    global _guard  # noqa: PLW0603 - its threads do not exist here
    _guard = threading.RLock()
    for descriptor in _unshared:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _unshared.clear()
    for action in _actions:
        action()


if hasattr(os, "register_at_fork"):  # some systems have no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


# Descriptors 0 to 2 of a process that was started without some of them (``>&-``, a service).
#
# The next files that it opens get these numbers. Libraries would then write their messages into a
# segment of the log, and a child process would print into its channel for jobs.

_STANDARD: Final = (0, 1, 2)


def fill_standard() -> None:
    """Open /dev/null for closed standard streams, here and in child processes."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(nowhere, number)
                os.close(nowhere)
