"""Where the records of many frames stand.

Each record tells where the next one starts, so this is the one walk that numpy cannot take at once.
Frames are independent of each other, though: many small ones are walked in step, a record of each
at a time. In large ones records of one size often follow each other, and are told by a glance at
where the next ones' lengths would be.

Where its records have all sizes, a long frame is walked in many stretches at a time. Near points
that are spread evenly over it, something is looked for that looks like a record with two more
behind it. From there on all stretches are walked in step. Whether a guess was right shows when the
stretch before ends: exactly there, or it was none, and the frame is walked once more from its
beginning. So nothing but time depends on guesses: they halve it.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from taskq.arrow.layout import (
    FIXED_SIZES,
    IS_KNOWN,
    PAD_SIZE,
    Bytes,
    Ints,
    Mask,
    heads,
    numbers_at,
)
from taskq.core.errors import FormatError
from taskq.log.format import codec

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
    """Return the places of the records of each frame, None for one that must be walked otherwise.

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
    places, bad = _walk(data, frame, place, limit)
    places.sort()
    first = np.searchsorted(places, starts)
    behind = np.searchsorted(places, ends)
    bad |= behind - first != counts
    return [
        None if is_bad else places[begin:end]
        for is_bad, begin, end in zip(bad.tolist(), first.tolist(), behind.tolist(), strict=True)
    ]


def _walk(data: Bytes, frame: Ints, place: Ints, limit: Ints) -> tuple[Ints, Mask]:
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
    """Return (frame, place) of what looks like records, one for each stretch or so."""
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


#: From so many frames on a step for all of them costs less than one for each.
_IN_STEP_MIN: Final = 48
#: A run shorter than this costs more to find than to walk.
_RUN_MIN: Final = 24
#: Records that are walked before a run is looked for again, at first and at most.
_WALK_MIN: Final = 64
_WALK_MAX: Final = 65_536
_NO_RECORD: Final = codec.PREFIX.size


def places(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, lsns: Ints) -> tuple[Ints, Ints]:
    """Return (place, length) of each record, frame by frame.

    Args:
        data: what holds the bodies of the frames, with ``PAD_SIZE`` bytes behind them.
        starts: places of the bodies.
        sizes: of the bodies.
        counts: of the records in each.
        lsns: of the first record of each; for the error.

    Raises:
        FormatError: a length that cannot be.
    """
    # More than fit are not worth the memory that they would take.
    room = np.minimum(counts, sizes // _NO_RECORD + 1)
    ends = np.cumsum(room)
    at = np.zeros(int(ends[-1]) if len(ends) else 0, np.int64)
    _walk_all(data, starts, sizes, room, ends - room, at)
    # Behind a wrong length, of which the check tells, a place may be anywhere.
    np.minimum(at, len(data) - PAD_SIZE, out=at)
    length = numbers_at(data, at, "<u4").astype(np.int64)
    least = FIXED_SIZES[data[at + 4]]
    limit = np.repeat(starts + sizes, room)
    wrong = (at + length > limit) | (length < least)
    if wrong.any() or not np.array_equal(room, counts):
        index = int(np.argmax(wrong))
        frame = int(np.searchsorted(ends, index, side="right"))
        lsn = int(lsns[frame] + index - (ends[frame] - room[frame]))
        raise FormatError(
            f"record at lsn {lsn} has an impossible length of {int(length[index])} bytes"
        )
    return at, length


def _walk_all(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, first: Ints, out: Ints) -> None:
    """Write the places of frame ``n`` to ``out[first[n]:]``; beyond a wrong length anything."""
    is_long = counts >= RECORDS_MIN
    if is_long.any():
        long = [column[is_long] for column in (starts, sizes, counts, first)]
        _walk_long(data, long[0], long[1], long[2], long[3], out)
        starts, counts, first = starts[~is_long], counts[~is_long], first[~is_long]
    order = np.argsort(-counts, kind="stable")
    last = len(data) - 8
    place, slot, left = starts[order], first[order], counts[order]
    # A frame without records has no slot of its own to write to.
    active, step = int(np.searchsorted(-left, 0, side="left")), 0
    while active >= _IN_STEP_MIN:
        place, slot = place[:active], slot[:active]
        out[slot] = place
        place = np.minimum(place + numbers_at(data, place, "<u4"), last)
        slot = slot + 1
        step += 1
        active = int(np.searchsorted(-left, -step, side="left"))
    rest = (place[:active].tolist(), slot[:active].tolist(), (left[:active] - step).tolist())
    for at, begin, count in zip(*rest, strict=True):
        _walk_one(data, at, out[begin : begin + count])


def _walk_long(
    data: Bytes, starts: Ints, sizes: Ints, counts: Ints, first: Ints, out: Ints
) -> None:
    slots = [out[begin : begin + count] for begin, count in zip(first, counts, strict=True)]
    left: list[int] = []
    for index, (at, slot) in enumerate(zip(starts.tolist(), slots, strict=True)):
        length = codec.LENGTH.unpack_from(data.data, at)[0]
        room = (len(data) - 8 - at) // max(length, 1) + 1
        if _run(data, at, length, min(len(slot), room)) == len(slot):
            slot[:] = at + length * np.arange(len(slot))
        elif sizes[index] <= RECORD_BYTES_MAX * counts[index]:
            left.append(index)
        else:
            _walk_one(data, at, slot)
    if not left:
        return
    walked = walk_in_stretches(data, starts[left], sizes[left], counts[left])
    for index, reached in zip(left, walked, strict=True):
        if reached is None:
            _walk_one(data, int(starts[index]), slots[index])
        else:
            slots[index][:] = reached


def _walk_one(data: Bytes, at: int, out: Ints) -> None:
    """Write the places of one frame's records from ``at`` on."""
    done, count, last = 0, len(out), len(data) - 8
    length_at = codec.LENGTH.unpack_from
    view = data.data
    walk = _WALK_MIN
    walked: list[int] = []
    try:
        while done < count and at <= last:
            length = length_at(view, at)[0]
            run = _run(data, at, length, min(count - done, (last - at) // max(length, 1) + 1))
            out[done : done + run] = at + length * np.arange(run)
            done += run
            at += length * run
            if run >= _RUN_MIN:
                walk = _WALK_MIN
                continue
            walked.clear()
            for _ in range(min(walk, count - done)):
                walked.append(at)
                at += length_at(view, at)[0]
            out[done : done + len(walked)] = walked
            done += len(walked)
            walk = min(walk * 2, _WALK_MAX)
    except struct.error:
        out[done : done + len(walked)] = walked
        done += len(walked)
    out[done:] = min(at, last)


def _run(data: Bytes, at: int, length: int, most: int) -> int:
    """Return how many records of this length follow each other from ``at`` on, up to ``most``."""
    if most < 2 or length < _NO_RECORD:  # noqa: PLR2004 - a run of one
        return 1
    lengths: np.ndarray[tuple[int], np.dtype[np.uint32]] = np.ndarray(
        (most,), "<u4", data.data, offset=at, strides=(length,)
    )
    same = lengths == length
    return most if same.all() else int(np.argmin(same))
