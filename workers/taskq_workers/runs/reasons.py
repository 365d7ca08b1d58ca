"""Describe a failure as text that fits a record: the error first, then its place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final

import taskq
from taskq.values import REASON_BYTES_MAX, failures, names_of, text_of

#: A file, the code of a function in it, and a place in it: instruction and line.
_Place = tuple[str, CodeType, int, int]


#: Innermost frames that a reason keeps of each exception in a chain.
FRAMES_MAX: Final = 12
#: Longest message that is read; a longer one could not be stored anyway.
MESSAGE_CHARACTERS_MAX: Final = REASON_BYTES_MAX
#: Folders of machinery, whose frames do not help a user, like frames of context managers; the
#: examples are no machinery.
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
#: Most classes of a group's members that the first line names.
KINDS_MAX: Final = 3
#: Errors of these modules are named without the module, since every user knows them.
_PLAIN_HOMES: Final = frozenset({"builtins", "__main__", "asyncio", "taskq"})
#: Cache of frames as text, and its size.
_said: Final[dict[tuple[_Place, ...], str]] = {}
_SAID_MAX: Final = 256
_EXAMPLES: Final = f"{_MACHINERY[0]}_examples{os.sep}"


def describe(error: BaseException, head: str = "") -> str:
    """Return the reason of one exception.

    The first line is ``Type: message``, or ``head``. The innermost frames follow, from the user's
    first frame on, with the exceptions that caused it.
    """
    head = head or summary(error)
    try:
        return f"{head}\n{_where(error)}".rstrip()
    except BaseException:  # noqa: BLE001 - an exception may have been built to break its reader
        return head


def summary(error: BaseException) -> str:
    """Return ``Type: message`` on one line; for a group, of its failures.

    Each type occurs once: number and order differ between attempts with the same failure.
    """
    kinds: dict[str, BaseException] = {}
    leaves = failures(error)
    if len(leaves) == 1:
        return _said_by(_name(leaves[0]), leaves[0])
    for item in leaves:
        kinds.setdefault(_name(item), item)
    names = sorted(kinds)
    parts = [_said_by(name, kinds[name]) for name in names[:KINDS_MAX]]
    return "; ".join(parts) + "; ..." * (len(names) > KINDS_MAX)


def _said_by(name: str, error: BaseException) -> str:
    message = _message(error).strip().partition("\n")[0]
    return f"{name}: {message}" if message else name


def _name(error: BaseException) -> str:
    home, name = names_of(type(error))
    return name if not home or home.partition(".")[0] in _PLAIN_HOMES else f"{home}.{name}"


def with_note(reason: str, note: str) -> str:
    """Return the reason with a note at the end of its first line, which lists and hooks show."""
    head, line_end, rest = reason.partition("\n")
    return f"{head} [{note}]{line_end}{rest}" if head else note


def raised_by_call(error: BaseException) -> bool:
    """Return whether no line of the user ran: the call itself was refused."""
    return user_traceback(_traceback_of(error)) is None


def user_traceback(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def is_machinery(path: str) -> bool:
    return path.startswith(_MACHINERY) and not path.startswith(_EXAMPLES)


def _message(error: BaseException) -> str:
    return text_of(error)[:MESSAGE_CHARACTERS_MAX]


def _traceback_of(error: BaseException) -> TracebackType | None:
    # A subclass may override the attribute.
    trace: TracebackType | None = vars(BaseException)["__traceback__"].__get__(error)
    return trace


def _where(error: BaseException) -> str:
    trace = user_traceback(_traceback_of(error))
    has_context = error.__context__ is not None and not error.__suppress_context__
    is_alone = error.__cause__ is None and not has_context
    is_alone = is_alone and not isinstance(error, BaseExceptionGroup)
    is_alone = is_alone and not getattr(error, "__notes__", None)
    if is_alone and "\n" not in _message(error).strip():
        return _frames(trace)
    traced = traceback.TracebackException(
        type(error), error, trace, limit=-FRAMES_MAX, compact=True, capture_locals=False
    )
    return "".join(traced.format())


def _frames(trace: TracebackType | None) -> str:
    """Return the innermost frames as text, from a cache.

    Python parses the line again to find the failing part: two thirds of a failure's time.
    """
    places: list[_Place] = []
    last = trace
    while last is not None:
        code = last.tb_frame.f_code
        # Equal code in two files compares equal.
        places.append((code.co_filename, code, last.tb_lasti, last.tb_lineno))
        last = last.tb_next
    key = tuple(places[-FRAMES_MAX:])
    text = _said.get(key)
    if text is None:
        if len(_said) >= _SAID_MAX:
            _said.clear()
        text = _said[key] = "".join(traceback.extract_tb(trace, -FRAMES_MAX).format())
    return text
