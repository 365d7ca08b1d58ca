"""The number of cases of a test, and its time limits.

By default at some, so that nobody waits for long; among the torture runs (``pytest -m slow``), to
which each test with the mark ``grows`` belongs as well, at all that its author names.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest


class _Run:
    """This run of pytest; ``tortures`` is known before the first test is imported."""

    tortures = False


run: Final = _Run()
#: The mark of a test that looks at more cases among the torture runs.
grows: Final = pytest.mark.grows


def some(few: int, of: int) -> int:
    return of if run.tortures else few


def spread(nth: int) -> pytest.MarkDecorator:
    """Mark a test of which by default each nth case runs, and the others among the torture runs."""
    return pytest.mark.spread(nth)


def every(nth: int) -> int:
    """Return the distance of the cases to look at: each of them among the torture runs."""
    return 1 if run.tortures else nth


def at_most(seconds: float) -> float:
    """Return a limit for an act of at most ``seconds`` on a quiet machine.

    The torture runs, which have the machine to themselves, hold it; by default a machine may be
    ten times as slow, and what waits for a lease or for ever is still found.
    """
    return seconds if run.tortures else 10 * seconds


@contextlib.asynccontextmanager
async def within(seconds: float = 30) -> AsyncIterator[None]:
    """Fail if the block takes longer, even if what it awaits swallows the cancellation."""
    async with asyncio.timeout(seconds) as limit:
        yield
    if limit.expired():
        pytest.fail(f"it took over {seconds:g} s, and swallowed its cancellation")


def ended(thread: threading.Thread, seconds: float = 30) -> None:
    thread.join(seconds)
    assert not thread.is_alive(), f"{thread.name} goes on after {seconds:g} s"


@contextlib.contextmanager
def turns_counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[list[int]]:
    """Count how often a function is called in each turn of the event loop that calls it."""
    plain, counts, loop = getattr(owner, name), list[int](), asyncio.get_running_loop()
    is_new = True

    def begin() -> None:
        nonlocal is_new
        is_new = True

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_new
        if is_new:
            is_new = False
            counts.append(0)
            loop.call_soon(begin)
        counts[-1] += 1
        return plain(*args, **kwargs)

    with patch.context() as within:
        within.setattr(owner, name, counted)
        yield counts
