"""Ranges of hours: what the rows of a file tell of, so that others need not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq_plugins.spark.lake.manifest import Hours

HOUR_NS: Final = 3_600 * 1_000_000_000
#: A file's ranges; more are joined over the narrowest gaps, which costs only reading too much.
RANGES_MAX: Final = 32


def ranges(hours: Iterable[int]) -> Hours:
    """Hours as few ranges; they may name hours besides, never leave one out."""
    joined: list[list[int]] = []
    for hour in sorted(set(hours)):
        if joined and hour == joined[-1][1] + 1:
            joined[-1][1] = hour
        else:
            joined.append([hour, hour])
    if len(joined) > RANGES_MAX:
        joined = _coarser(joined)
    return tuple((first, last) for first, last in joined)


def _coarser(joined: list[list[int]]) -> list[list[int]]:
    gaps = sorted(range(1, len(joined)), key=lambda at: joined[at][0] - joined[at - 1][1])
    kept = sorted(gaps[len(joined) - RANGES_MAX :])
    starts, ends = [0, *kept], [*kept, len(joined)]
    return [[joined[start][0], joined[end - 1][1]] for start, end in zip(starts, ends, strict=True)]


def union(many: Iterable[Hours]) -> Hours:
    """All hours of all of them, exactly: the ranges are joined where they touch."""
    joined: list[list[int]] = []
    for first, last in sorted(pair for one in many for pair in one):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return tuple((first, last) for first, last in joined)


def overlap(left: Hours, right: Hours) -> bool:
    """Whether they have an hour in common."""
    return any(a <= d and c <= b for a, b in left for c, d in right)
