"""Show the progress of a sync: live on a terminal, line by line elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Lines of progress without a terminal.
_PARTS: Final = 5


class Display:
    """Print chapters, and below them the number of arrived files."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = progress.add_task("files", total=None, visible=False)
        self._part = 0

    def phase(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, done: int, total: int) -> None:
        """Move the bar, or print a line for every fifth of the files without a terminal."""
        self._progress.update(self._bar, completed=done, total=total, visible=True)
        part = done * _PARTS // total
        if part > self._part and not self._progress.console.is_terminal:
            self.phase(f"  {done} of {total} files have arrived")
        self._part = part


@contextmanager
def display() -> Iterator[Display]:
    console = Console()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("files arrived"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Display(progress)
