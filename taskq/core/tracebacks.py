"""The traceback of a wrong call, up to the line that is wrong."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Final

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

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
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OURS and package not in sys.stdlib_module_names:
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    # What we met on the way to it, such as an error of a library, says nothing more.
    error.__suppress_context__ = True
    if error.__cause__ is not None and not _is_of_caller(error.__cause__):
        error.__cause__ = None


def _is_of_caller(cause: BaseException) -> bool:
    trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] not in _OURS


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
