"""Walking long frames whose records have all sizes: many stretches of them at a time.

Near points that are spread evenly over a frame, something is looked for that looks like a record
with two more behind it. From there on all stretches are walked in step. Whether a guess was right
shows when the stretch before ends: exactly there, or it was none, and the frame is walked once more
from its beginning. So nothing but time depends on guesses: they halve it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from taskq_plugins.spark.decode.layout import (
    FIXED_SIZES,
    IS_KNOWN,
    Bytes,
    Ints,
    Mask,
    heads,
    numbers_at,
)

#: Records of a stretch, about.
_STRETCH_RECORDS: Final = 32
#: Frames of fewer records, or of larger ones on average, are not worth it.
RECORDS_MIN: Final = 4 * _STRETCH_RECORDS
RECORD_BYTES_MAX: Final = 200
#: Bytes behind a point in which a record must start.
_WINDOW_BYTES: Final = 256
#: Records that must seem to follow a guess.
_HOPS: Final = 2
#: With fewer stretches left, a step for all of them costs more than one for each.
_STRETCHES_MIN: Final = 12
_SMALLEST: Final = int(FIXED_SIZES[0])
_KIND_AT: Final = 4


def walk_in_stretches(data: Bytes, starts: Ints, sizes: Ints, counts: Ints) -> list[Ints | None]:
    """The places of the records of each frame, None for one that must be walked otherwise.

    Args:
        data: what holds the bodies of the frames, with ``PAD_SIZE`` bytes behind them.
        starts: places of the bodies.
        sizes: of the bodies.
        counts: of the records in each.
    """
    ends = starts + sizes
    frame, place = _guesses(data, starts, ends, counts)
    # The first stretch of a frame starts with it, and the last ends with it.
    frame = np.concatenate((np.arange(len(starts)), frame))
    place = np.concatenate((starts, place))
    order = np.lexsort((place, frame))
    frame, place = frame[order], place[order]
    limit = np.append(place[1:], 0)
    is_last = np.append(frame[1:] != frame[:-1], True)
    limit[is_last] = ends[frame[is_last]]
    found, bad = _walk(data, frame, place, limit)
    found.sort()
    first = np.searchsorted(found, starts)
    behind = np.searchsorted(found, ends)
    bad |= behind - first != counts
    return [
        None if is_bad else found[begin:end]
        for is_bad, begin, end in zip(bad.tolist(), first.tolist(), behind.tolist(), strict=True)
    ]


def _walk(data: Bytes, frame: Ints, place: Ints, limit: Ints) -> tuple[Ints, Mask]:
    """(all places, which frames a stretch of which does not end where the next one starts)."""
    bad = np.zeros(int(frame[-1]) + 1, np.bool_)
    last = len(data) - 8
    steps: list[Ints] = []
    while len(place) >= _STRETCHES_MIN:
        steps.append(place)
        length = numbers_at(data, place, "<u4")
        place = np.minimum(place + length, last)
        goes_on = (place < limit) & (length >= _SMALLEST)
        if not goes_on.all():
            over = ~goes_on
            bad[frame[over][place[over] != limit[over]]] = True
            frame, place, limit = frame[goes_on], place[goes_on], limit[goes_on]
    for number, at, end in zip(frame.tolist(), place.tolist(), limit.tolist(), strict=True):
        walked: list[int] = []
        while at < end:
            walked.append(at)
            size = int.from_bytes(data[at : at + 4].tobytes(), "little")
            at += size if size >= _SMALLEST else len(data)  # noqa: PLW2901 - it walks
        bad[number] |= at != end
        steps.append(np.array(walked, np.int64))
    return np.concatenate(steps), bad


def _guesses(data: Bytes, starts: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """(frame, place) of what looks like records, about so many apart that each has its stretch."""
    stretches = np.maximum(counts // _STRETCH_RECORDS, 1)
    points = stretches - 1
    frame = np.repeat(np.arange(len(starts)), points)
    number = np.arange(len(frame)) - np.repeat(np.cumsum(points) - points, points) + 1
    point = starts[frame] + (ends - starts)[frame] * number // stretches[frame]
    fits = point + _WINDOW_BYTES + _KIND_AT < len(data)
    frame, point = frame[fits], point[fits]
    if not len(point):
        return frame, point
    window = heads(data, point, _WINDOW_BYTES + _KIND_AT).view(np.uint8)
    window = window.reshape(len(point), _WINDOW_BYTES + _KIND_AT)
    # Of sizes below 64 KiB the upper bytes are 0, while there is no kind 0.
    looks = (window[:, 2:-2] == 0) & (window[:, 3:-1] == 0) & (window[:, 4:] != 0)
    row, column = np.nonzero(looks)
    place = candidate = point[row] + column
    for _ in range(_HOPS + 1):
        kind = data[candidate + _KIND_AT]
        length = numbers_at(data, candidate, "<u4").astype(np.int64)
        behind = candidate + length
        fits = IS_KNOWN[kind] & (length >= FIXED_SIZES[kind])
        fits &= behind + _SMALLEST <= ends[frame[row]]
        row, place, candidate = row[fits], place[fits], behind[fits]
    row, index = np.unique(row, return_index=True)
    return frame[row], place[index]
