"""The number of cases of a test, and its time limits.

By default at some, so that nobody waits for long; among the torture runs (``pytest -m slow``), to
which each test with the mark ``grows`` belongs as well, at all that its author names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

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


@contextlib.asynccontextmanager
async def within(seconds: float = 30) -> AsyncIterator[None]:
    """Fail if the block takes longer, even if what it awaits swallows the cancellation."""
    async with asyncio.timeout(seconds) as limit:
        yield
    if limit.expired():
        pytest.fail(f"it took over {seconds:g} s, and swallowed its cancellation")
