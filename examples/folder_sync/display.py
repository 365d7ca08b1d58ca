"""Tell the story of a sync: live on a terminal, line by line elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

#: Without a terminal, a line for each such part of the files.
_PARTS: Final = 5


class Lines:
    """Plain occasional lines."""

    def __init__(self) -> None:
        self._part = 0

    def phase(self, text: str) -> None:
        """Print the chapter's title."""
        print(text, flush=True)

    def progress(self, done: int, total: int) -> None:
        """Print a line for every fifth of the files."""
        part = done * _PARTS // total
        if part > self._part:
            self._part = part
            print(f"  {done} of {total} files have arrived", flush=True)


class Live:
    """A progress bar, with the chapters above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar: TaskID | None = None

    def phase(self, text: str) -> None:
        """Print the chapter's title above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def progress(self, done: int, total: int) -> None:
        """Move the bar, which shows up at the first call."""
        if self._bar is None:
            self._bar = self._progress.add_task("files", total=total)
        self._progress.update(self._bar, completed=done)


@contextmanager
def display() -> Iterator[Lines | Live]:
    """Yield the display that fits standard output."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    from rich.progress import (  # noqa: PLC0415 - loaded for a terminal only
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files have arrived"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        yield Live(progress)
