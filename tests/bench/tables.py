"""Percentiles and plain text tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which ``percent`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return percentile(values, 50)


def microseconds(seconds: float) -> str:
    """Return seconds as text in microseconds."""
    return f"{seconds * 1e6:,.1f}"


class Table:
    """Rows under a title, printed with each column as wide as it needs."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self.title = title
        self.rows: list[Sequence[str]] = [columns]

    def row(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append(cells)

    def print(self) -> None:
        """Print the whole; the first column left, the figures right."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        print(f"\n{self.title}")
        for index, cells in enumerate(self.rows):
            first = cells[0].ljust(widths[0])
            rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            print("  ".join((first, *rest)))
            if index == 0:
                print("  ".join("-" * width for width in widths))
