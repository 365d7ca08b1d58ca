"""The number of cases of a test, and its time limits.

By default a test looks at some cases, to be quick. Among the torture runs (``pytest -m slow``),
which include each test with the mark ``grows``, it looks at all cases.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import pytest


class _Run:
    """This run of pytest; ``tortures`` is known before the first test is imported.

    ``begin_limit`` begins the time limit of the running test again: a test of many programs hangs
    if one of them does.
    """

    tortures = False
    begin_limit: Callable[[], object] = staticmethod(lambda: None)


run: Final = _Run()
#: Mark of a test with more cases among the torture runs.
grows: Final = pytest.mark.grows


def some(few: int, of: int) -> int:
    return of if run.tortures else few


def spread(nth: int) -> pytest.MarkDecorator:
    """Mark a test: by default each nth case runs, among the torture runs the others do."""
    return pytest.mark.spread(nth)


def every(nth: int) -> int:
    """Return the step through the cases: ``nth`` by default, 1 among the torture runs."""
    return 1 if run.tortures else nth


def at_most(seconds: float) -> float:
    """Return a limit for an act of ``seconds`` on a quiet machine; others get ten times as long."""
    return seconds if run.tortures else 10 * seconds


@contextlib.asynccontextmanager
async def within(seconds: float = 30) -> AsyncIterator[None]:
    """Fail if the block takes longer, even if it swallows the cancellation."""
    async with asyncio.timeout(seconds) as limit:
        yield
    if limit.expired():
        pytest.fail(f"it took over {seconds:g} s, and swallowed its cancellation")


def ended(thread: threading.Thread, seconds: float = 30) -> None:
    thread.join(seconds)
    assert not thread.is_alive(), f"{thread.name} goes on after {seconds:g} s"


@contextlib.contextmanager
def turns_counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[list[int]]:
    """Count the calls of a function in each turn of the event loop with a call."""
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
