"""What a hub's copy of a log says of itself: where the device did not go on as it had sent it.

``breaks.jsonl`` has a line when a break is begun and one when it is done; what is left by it then
stands in ``old/<n>``, a whole log. A directory that no hub made has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.core.parsing import parse_json
from taskq.log.format.frames import segment_name
from taskq.log.machine.door import read_file

if TYPE_CHECKING:
    from taskq_plugins.fleet.places import LogPlace

_FILE: Final = "breaks.jsonl"
_BYTES_MAX: Final = 64 * 1024 * 1024


class Break(NamedTuple):
    """A break that was carried out: from ``segment`` and ``offset`` on the log is another.

    ``is_fork``: the device was restored and wrote other records; else it lost what came next.
    ``old`` is the directory of what was left.
    """

    is_fork: bool
    segment: int
    offset: int
    old: str

    def left_segment(self, first_lsn: int) -> str:
        """Where a segment of what was left is, or would be."""
        return f"{self.old}/log/{segment_name(first_lsn)}"


def breaks(log: LogPlace) -> list[Break]:
    """Those of a log, oldest first; what does not read ends the list."""
    try:
        data = read_file(f"{log.path}/{_FILE}", _BYTES_MAX)
    except OSError:
        return []
    begun: dict[int, Break] = {}
    found: list[Break] = []
    for line in data.splitlines():
        try:
            values: dict[str, Any] = parse_json(line)
            number = values["n"]
            if values["step"] == "done":
                found.append(begun[number])
                continue
            segment, offset = values["at"][:2]
            old = f"{log.path}/old/{number}"
            begun[number] = Break(values["kind"] == "fork", int(segment), int(offset), old)
        except (ValueError, KeyError, TypeError):
            break
    return found
