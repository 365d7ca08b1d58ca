"""What a hub's copy of a log says of itself: where the device did not go on as it had sent it.

``breaks.jsonl`` has a line when a break is begun and one when it is done; what is left by it then
stands in ``old/<n>``, a whole log. Before a gap that is what the log went on from, and is listed as
its beginning; behind a fork it is a branch that was left. A directory that no hub made has none.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.core.parsing import parse_json
from taskq.log.format import codec
from taskq.log.format.frames import segment_name
from taskq.log.machine.door import read_file

if TYPE_CHECKING:
    from taskq_plugins.fleet.places import LogPlace

#: The file, in the directory of a copy.
BREAKS: Final = "breaks.jsonl"
_BYTES_MAX: Final = 64 * 1024 * 1024


class Break(NamedTuple):
    """A break that was carried out: from ``segment`` and ``offset`` on the log is another.

    Attributes:
        is_fork: the device was restored and wrote other records; else it lost what came next.
        left: (segment, offset) where the copy ended before.
        lsn: of the first record that is missing; of a fork, behind the last that was kept.
        end_lsn: behind the last record that the device had when it declared the break.
        cause: in words.
        old: the directory of what was left.
    """

    is_fork: bool
    segment: int
    offset: int
    left: tuple[int, int]
    lsn: int
    end_lsn: int
    cause: str
    old: str

    def left_segment(self, first_lsn: int) -> str:
        """Where a segment of what was left is, or would be."""
        return f"{self.old}/log/{segment_name(first_lsn)}"


def home_of(segment_path: str) -> str:
    """The directory of the log that a segment's file is of, be it set aside; bodies are there."""
    directory = segment_path.rpartition("/log/")[0]
    home, old, _ = directory.rpartition("/old/")
    return home if old else directory


def breaks(log: LogPlace) -> list[Break]:
    """Those of a log, oldest first; what does not read ends the list."""
    try:
        data = read_file(f"{log.path}/{BREAKS}", _BYTES_MAX)
    except OSError:
        return []
    begun: dict[int, Break] = {}
    found: list[Break] = []
    for line in data.splitlines():
        try:
            values: dict[str, Any] = parse_json(line)
            number = int(values["n"])
            if values["step"] == "done":
                found.append(begun[number])
            else:
                begun[number] = _begun(values, f"{log.path}/old/{number}")
        except (ValueError, LookupError, TypeError, struct.error):
            break
    return found


def _begun(values: dict[str, Any], old: str) -> Break:
    is_fork, at, left = values["kind"] == "fork", values["at"], values["left"]
    return Break(
        is_fork,
        int(at[0]),
        int(at[1]),
        (int(left[0]), int(left[1])),
        _next_lsn(at if is_fork else left),
        int(values["end_lsn"]),
        str(values["cause"]),
        old,
    )


def _next_lsn(place: list[Any]) -> int:
    """The lsn behind a place: [segment, offset, frame, header of that frame in hex or ""]."""
    if not place[3]:
        return int(place[0])
    _, _, count, _, _, first, *_ = codec.FRAME_HEADER.unpack(bytes.fromhex(place[3]))
    return int(first + count)
