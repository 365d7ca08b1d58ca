"""Where the records of many frames stand.

Each record tells where the next one starts, so this is the one walk that numpy cannot take at once.
Frames are independent of each other, though: many small ones are walked in step, a record of each
at a time. In large ones records of one size often follow each other, and are told by a glance at
where the next ones' lengths would be;
records of all sizes are left to ``stretches``.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from taskq.core.errors import FormatError
from taskq.log.format import codec
from taskq_plugins.spark.decode.layout import FIXED_SIZES, PAD_SIZE, Bytes, Ints, numbers_at
from taskq_plugins.spark.decode.stretches import RECORD_BYTES_MAX, RECORDS_MIN, walk_in_stretches

#: From so many frames on a step for all of them costs less than one for each.
_IN_STEP_MIN: Final = 48
#: A run shorter than this costs more to find than to walk.
_RUN_MIN: Final = 24
#: Records that are walked before a run is looked for again, at first and at most.
_WALK_MIN: Final = 64
_WALK_MAX: Final = 65_536
_NO_RECORD: Final = codec.PREFIX.size


def places(data: Bytes, starts: Ints, sizes: Ints, counts: Ints, lsns: Ints) -> tuple[Ints, Ints]:
    """(place, length) of each record, frame by frame.

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
        long = [one[is_long] for one in (starts, sizes, counts, first)]
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
    """Do so for frames of many records."""
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
    for index, found in zip(left, walked, strict=True):
        if found is None:
            _walk_one(data, int(starts[index]), slots[index])
        else:
            slots[index][:] = found


def _walk_one(data: Bytes, at: int, out: Ints) -> None:
    """Write the places of one frame's records from ``at`` on."""
    done, count, last = 0, len(out), len(data) - 8
    length_at = codec.LENGTH.unpack_from
    view = data.data
    walk = _WALK_MIN
    found: list[int] = []
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
            found.clear()
            for _ in range(min(walk, count - done)):
                found.append(at)
                at += length_at(view, at)[0]
            out[done : done + len(found)] = found
            done += len(found)
            walk = min(walk * 2, _WALK_MAX)
    except struct.error:
        out[done : done + len(found)] = found
        done += len(found)
    out[done:] = min(at, last)


def _run(data: Bytes, at: int, length: int, most: int) -> int:
    """How many records of this length follow each other from ``at`` on, up to ``most``."""
    if most < 2 or length < _NO_RECORD:  # noqa: PLR2004 - a run of one
        return 1
    lengths: np.ndarray[tuple[int], np.dtype[np.uint32]] = np.ndarray(
        (most,), "<u4", data.data, offset=at, strides=(length,)
    )
    same = lengths == length
    return most if same.all() else int(np.argmin(same))
