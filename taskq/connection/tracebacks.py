"""Which lines are a program's own: where a wrong call ends its traceback, and who opened a log."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Final

from taskq.core.errors import UsageError

_OURS: Final = frozenset({"taskq", "taskq_plugins", "taskq_workers"})


def install() -> None:
    """Let a ``UsageError`` that ends the program show the caller's line last, and none of ours.

    What else ends it is shown as before, by whoever shows it.
    """
    if getattr(sys.excepthook, "__name__", "") != _show.__name__:
        sys.excepthook = functools.wraps(_show)(functools.partial(_show, sys.excepthook))


def end_at_caller(error: UsageError) -> None:
    """Cut the traceback behind the last line that is neither ours nor of the standard library."""
    last: TracebackType | None = None
    trace = error.__traceback__
    while trace is not None:
        if _is_of_program(trace.tb_frame.f_globals):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    # What we met on the way to it, such as an error of a library, says nothing more.
    error.__suppress_context__ = True
    if error.__cause__ is not None and not _is_of_caller(error.__cause__):
        error.__cause__ = None


def caller() -> FrameType:
    """Return the innermost line being run that is the program's; the outermost of all if none is.

    A call of the kind ``…_sync`` may run on a thread where the program has none.
    """
    frame = sys._getframe(1)
    while not _is_of_program(frame.f_globals) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_of_program(names: Mapping[str, object]) -> bool:
    """Return whether code with these globals is neither ours nor of the standard library."""
    package = _package(names)
    return package not in _OURS and package not in sys.stdlib_module_names


def _package(names: Mapping[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def _is_of_caller(cause: BaseException) -> bool:
    trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or _package(trace.tb_frame.f_globals) not in _OURS


def _show(
    show: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if isinstance(error, UsageError):
        end_at_caller(error)
        trace = error.__traceback__
    show(kind, error, trace)
