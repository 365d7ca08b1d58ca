"""Setting aside what a break leaves, so that the current directory is always one whole history.

With a gap left in place a fold of the copy shows jobs that are over and misses others. So what is
before a gap, and the branch that a device left, go to ``old/<n>/``, a task log of its own: all
segments are linked there; then the current directory loses what does not go on. Every step can be
cut short and done again: the break is noted as begun before the first, and as done behind the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import Border, replace_file, segment_lsn, segment_name, write_all
from taskq_plugins.fleet.inventory import BREAKS, decode_break
from taskq_plugins.hub.kept import IDENTITY, LOG, SEALS, opened, whole_lines
from taskq_plugins.hub.messages import Declare, Kind

if TYPE_CHECKING:
    from taskq.engine import Disk

_COPY_BYTES: Final = 1024 * 1024


class Breaks:
    """The breaks of one copy; ``unmark`` forgets how far that is durable.

    Attributes:
        all: those that were declared, oldest first. The latest may still have to be carried out.
    """

    def __init__(self, disk: Disk, path: str, unmark: Callable[[], None] = lambda: None) -> None:
        self._disk, self._path, self._unmark = disk, path, unmark
        self._notes = Notes(disk, f"{path}/{BREAKS}")
        self.all = [decode_break(line) for line in self._notes.lines if line["step"] == "begun"]
        if self._notes.lines and self._notes.lines[-1]["step"] == "begun":
            self._carry_out()

    def knows(self, asked: Declare) -> bool:
        wanted = asked.kind is Kind.FORK, asked.left, asked.at
        return any(known[:3] == wanted for known in self.all)

    def declare(self, asked: Declare, high_lsn: int) -> None:
        """Note a break and carry it out.

        Raises:
            OSError: the disk refused; who opens the copy next carries it out, if it was noted.
        """
        self._notes.add(
            step="begun", n=len(self.all) + 1, kind=asked.kind.value, left=asked.left.as_list(),
            at=asked.at.as_list(), end_lsn=asked.end_lsn, cause=asked.cause, high_lsn=high_lsn,
        )  # fmt: skip
        self.all.append(decode_break(self._notes.lines[-1]))
        self._carry_out()

    def _carry_out(self) -> None:
        disk, path, latest = self._disk, self._path, self.all[-1]
        old = f"{path}/old/{len(self.all)}"
        # The place that a gap leaves keeps nothing; of a fork what is before it stays.
        keep = latest.at if latest.is_fork else Border()
        if _segments(disk, path):
            names = [f"{LOG}/{name}" for name in disk.names(f"{path}/{LOG}")]
            # What an earlier try had begun is no part of it: it is written over from now on.
            names = [name for name in names if not name.endswith(".tmp")]
            disk.make_directory(f"{old}/{LOG}")
            for name in (IDENTITY, SEALS, *names):
                _link(disk, f"{path}/{name}", f"{old}/{name}")
            for directory in (f"{old}/{LOG}", old, f"{path}/old", path):
                disk.sync_directory(directory)
        self._cut(keep)
        self._notes.add(step="done", n=len(self.all))

    def _cut(self, keep: Border) -> None:
        disk, log = self._disk, f"{self._path}/{LOG}"
        self._unmark()
        seals = Notes(disk, f"{self._path}/{SEALS}")
        seals.keep([line for line in seals.lines if line["segment"] < keep.segment])
        # The latest goes first: at no time does anything stand behind a gap.
        for segment in reversed(_segments(disk, self._path)):
            file = f"{log}/{segment_name(segment)}"
            if segment > keep.segment or (segment == keep.segment and not keep.offset):
                disk.remove(file)
            elif segment == keep.segment:
                _shorten(disk, file, keep.offset)
        disk.sync_directory(log)


def _segments(disk: Disk, path: str) -> list[int]:
    names = disk.names(f"{path}/{LOG}")
    return sorted(lsn for name in names if (lsn := segment_lsn(name)) is not None)


def _link(disk: Disk, source: str, target: str) -> None:
    """Give a file a second name, unless that is taken: by an earlier try, which came further."""
    if disk.status(target) is None and disk.status(source) is not None:
        disk.link(source, target)


def _shorten(disk: Disk, path: str, size: int) -> None:
    """Put a copy of a file's beginning in its place: under another name the whole one stays."""
    temporary = f"{path}.tmp"
    with opened(disk, path) as source, opened(disk, temporary, create=True) as target:
        disk.truncate(target, 0)
        for at in range(0, size, _COPY_BYTES):
            data = disk.read(source, min(_COPY_BYTES, size - at), at)
            write_all(disk, target, data, at)
        disk.sync(target)
    disk.rename(temporary, path)


# -- small files of lines: what was sealed, and what breaks were declared --------------------------


class Notes:
    """Lines of JSON, each durable when ``add`` returns.

    Attributes:
        lines: what is noted, oldest first.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.lines, self._size, whole = whole_lines(disk, path)
        if self._size < whole:
            with opened(disk, path, write=True) as file:
                disk.truncate(file, self._size)
                disk.sync(file)

    def add(self, **values: Any) -> None:
        disk, line = self._disk, json.dumps(values).encode() + b"\n"
        with opened(disk, self._path, create=True) as file:
            write_all(disk, file, line, self._size)
            disk.sync(file)
        if not self._size:  # it is new
            disk.sync_directory(self._path.rpartition("/")[0])
        self._size += len(line)
        self.lines.append(values)

    def keep(self, lines: list[dict[str, Any]]) -> None:
        if lines == self.lines:
            return
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        replace_file(self._disk, self._path, data)
        self.lines, self._size = lines, len(data)
