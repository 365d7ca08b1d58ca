"""Refusal of calls that interrupt another call of their thread, and would wait for it.

A signal handler or a finalizer may run between any two steps of a thread. A first call imports
modules and starts threads, and a commit takes locks: a handler's call would wait for ever, or meet
half of a module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Final, ParamSpec, TypeVar

from taskq.core.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

#: Threads within the engine: they have, or will take, locks that other threads wait for.
inside: Final[set[int]] = set()


def refuse_inside(what: str) -> None:
    """Refuse to wait for the engine on a thread within it.

    Raises:
        UsageError: this thread is a storage thread, or in the middle of a first call or a commit.
    """
    if get_ident() in inside:
        raise UsageError(
            f"{what}: a signal handler or a finalizer came in the midst of another call of its "
            f"thread, and would wait for that for ever: enqueue from another thread, or later"
        )


def uninterrupted(call: Callable[P, R]) -> Callable[P, R]:
    """Return the function so that calls which interrupt it on its thread are refused."""

    @functools.wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_inside("a call")
        # Nested, since a handler may raise in one of both.
        try:
            try:
                inside.add(get_ident())
                return call(*args, **kwargs)
            finally:
                inside.discard(get_ident())
        finally:
            inside.discard(get_ident())

    return guarded
