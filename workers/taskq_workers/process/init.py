"""As process 1 of a container: a child of it is the worker, and it reaps what tasks leave behind.

The kernel hands every orphan to process 1. A worker cannot take them, since it would take the exit
codes of its own children from those who wait for them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Final

_INIT: Final = 1
#: What a shell calls the exit of a process that a signal ended.
_SIGNALLED: Final = 128
#: What is of the process itself, and no word for the worker.
_OWN: Final = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT,
}  # fmt: skip


def leave_init() -> None:
    """Go on in a child if this is process 1, which stays to reap and to hand signals on."""
    if os.getpid() == _INIT:
        split()


def split() -> None:
    """Return in a child; this process ends when it does, with its exit code."""
    handed = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handed)  # none is lost meanwhile
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    with contextlib.suppress(OSError):  # so that a terminal's Ctrl-C is told once
        os.setpgid(child, child)
        os.tcsetpgrp(0, child)
    for number in handed:
        with contextlib.suppress(OSError, ValueError):  # the C library's own
            signal.signal(number, lambda number, _: _hand_on(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os._exit(_reap_until(child))


def _hand_on(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _reap_until(child: int) -> int:
    """Reap whoever ends; return the exit code of the child as a shell would tell it."""
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNALLED - code
