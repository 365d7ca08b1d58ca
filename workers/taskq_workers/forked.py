"""What a process that a task forks keeps of its worker's signal handling: nothing.

Pools end their processes with SIGTERM; one that drained, as a worker does, would never end.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
