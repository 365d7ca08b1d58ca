"""Why a job failed, as text that fits a record: what happened first, then where."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import taskq
from taskq.values import REASON_BYTES_MAX

if TYPE_CHECKING:
    from types import CodeType, TracebackType

    #: A file, the code of a function in it, and where that is: instruction and line.
    _Place = tuple[str, CodeType, int, int]

#: Innermost frames that a reason keeps of each exception in a chain.
FRAMES_MAX: Final = 12
#: Longest message that is looked at; a longer one could not be kept anyway.
MESSAGE_CHARACTERS_MAX: Final = REASON_BYTES_MAX
#: Frames in these folders, and of what lifespans are entered by, are machinery and tell a user
#: nothing, but for the examples beside it.
_MACHINERY: Final = (
    *(
        f"{folder.absolute()}{os.sep}"
        for folder in (
            Path(taskq.__file__).parent,
            Path(__file__).parents[1],
            Path(asyncio.__file__).parent,
        )
    ),
    contextlib.__file__,
)
#: Errors from here go by their bare names, as everybody knows them.
_PLAIN_HOMES: Final = frozenset({"builtins", "__main__", "asyncio", "taskq"})
#: Frames, and what was said of them; so many are kept.
_said: Final[dict[tuple[_Place, ...], str]] = {}
_SAID_MAX: Final = 256
_EXAMPLES: Final = f"{_MACHINERY[0]}_examples{os.sep}"


def describe(error: BaseException) -> str:
    """Return the reason of one exception.

    First line ``Type: message``, then the innermost frames from the first one of the user's on,
    with the exceptions that it was raised from.
    """
    head = summary(error)
    try:
        return f"{head}\n{_where(error)}".rstrip()
    except Exception:  # noqa: BLE001 - an exception may have been built to break its reader
        return head


def summary(error: BaseException) -> str:
    """Return ``Type: message`` on one line."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__.partition(".")[0] not in _PLAIN_HOMES:
        name = f"{kind.__module__}.{name}"
    message = _message(error).strip().partition("\n")[0]
    return f"{name}: {message}" if message else name


def with_note(reason: str, note: str) -> str:
    """Return the reason with a note at the end of its first line, which lists and hooks show."""
    head, line_end, rest = reason.partition("\n")
    return f"{head} [{note}]{line_end}{rest}" if head else note


def raised_by_call(error: BaseException) -> bool:
    """Return whether no line of the user's ran: the call itself was refused."""
    return user_traceback(error.__traceback__) is None


def user_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback from the user's first frame on; None when there is none."""
    while trace is not None and is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def is_machinery(path: str) -> bool:
    """Return whether the code of this file is no user's."""
    return path.startswith(_MACHINERY) and not path.startswith(_EXAMPLES)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARACTERS_MAX]
    except Exception:  # noqa: BLE001 - likewise
        return "(its message cannot be printed)"


def _where(error: BaseException) -> str:
    trace = user_traceback(error.__traceback__)
    has_context = error.__context__ is not None and not error.__suppress_context__
    is_alone = error.__cause__ is None and not has_context
    is_alone = is_alone and not isinstance(error, BaseExceptionGroup)
    if is_alone and "\n" not in _message(error).strip():
        return _frames(trace)
    traced = traceback.TracebackException(
        type(error), error, trace, limit=-FRAMES_MAX, compact=True, capture_locals=False
    )
    return "".join(traced.format())


def _frames(trace: TracebackType | None) -> str:
    """Return the innermost frames as text; what was said of them before is not made again.

    To find which part of a line raised, Python parses it anew each time: two thirds of a failure.
    """
    places: list[_Place] = []
    last = trace
    while last is not None:
        code = last.tb_frame.f_code
        # Code that was written alike in two files is equal.
        places.append((code.co_filename, code, last.tb_lasti, last.tb_lineno))
        last = last.tb_next
    key = tuple(places[-FRAMES_MAX:])
    text = _said.get(key)
    if text is None:
        if len(_said) >= _SAID_MAX:
            _said.clear()
        text = _said[key] = "".join(traceback.extract_tb(trace, -FRAMES_MAX).format())
    return text
