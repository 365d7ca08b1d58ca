"""What a hub's copy of a log says of itself: where the device did not go on as it had sent it.

``breaks.jsonl`` has a line when a break is begun and one when it is done; what is left by it then
stands in ``old/<n>``, a whole log. Before a gap that is what the log went on from, and is listed as
its beginning; behind a fork it is a branch that was left. A directory that no hub made has none.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from taskq.engine import Border, read_file, segment_name
from taskq.values import parse_json
from taskq_plugins.fleet.places import LogPlace, facts_of

#: The file, in the directory of a copy.
BREAKS: Final = "breaks.jsonl"
_BYTES_MAX: Final = 64 * 1024 * 1024


class Break(NamedTuple):
    """A break that was declared: from ``at`` on the log is another.

    Attributes:
        is_fork: the device was restored and wrote other records; else it lost what came next.
        left: where the copy ended before.
        at: where the device goes on.
        end_lsn: behind the last record that the device had when it declared the break.
        cause: in words.
        high_lsn: no record that the copy ever had reaches it.
        old: the directory of what was left, once it was carried out.
    """

    is_fork: bool
    left: Border
    at: Border
    end_lsn: int
    cause: str
    high_lsn: int
    old: str = ""

    @property
    def lsn(self) -> int:
        return (self.at if self.is_fork else self.left).next_lsn

    def left_segment(self, first_lsn: int) -> str:
        return f"{self.old}/log/{segment_name(first_lsn)}"


def breaks(log: LogPlace) -> list[Break]:
    path = f"{log.path}/{BREAKS}"
    try:
        data = read_file(path, _BYTES_MAX) if facts_of(path) else b""
    except OSError:
        return []
    begun: dict[int, Break] = {}
    done: list[Break] = []
    for line in data.splitlines():
        try:
            values: dict[str, Any] = parse_json(line)
            number = int(values["n"])
            if values["step"] == "done":
                done.append(begun[number])
            else:
                begun[number] = decode_break(values)._replace(old=f"{log.path}/old/{number}")
        except (ValueError, LookupError, TypeError):
            break
    return done


def decode_break(values: dict[str, Any]) -> Break:
    """Return what a line of the file says that was noted when a break was begun.

    Raises:
        ValueError, LookupError, TypeError: it is none.
    """
    return Break(
        values["kind"] == "fork",
        Border.from_list(values["left"]),
        Border.from_list(values["at"]),
        int(values["end_lsn"]),
        str(values["cause"]),
        int(values.get("high_lsn", 0)),
    )
