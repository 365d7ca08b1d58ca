"""Counts of a day, a week and a month: folded from the log's records into a small file.

Upkeep folds whole segments, each before its removal, and rewrites the file. A reader folds the rest
for itself. So no record is left out, and a lost file is rebuilt from the log. Enqueues, claims and
ends do no work for it.
"""

from __future__ import annotations

import contextlib
import json
import operator
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

from taskq.core import kinds, model
from taskq.core.errors import FormatError
from taskq.log.format import codec, frames
from taskq.log.format.carried import born_in
from taskq.log.format.record import Record, places
from taskq.log.machine.ports import read_file, replace_file
from taskq.log.read.gauges import births_beside

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

#: Name of the file, next to the log's segments.
FILE: Final = "history"
_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
#: Most bytes of the unpacked file.
_DATA_BYTES_MAX: Final = 8 * _FILE_BYTES_MAX
_VERSION: Final = 1
#: Names of the counts, in this order.
COUNTED: Final = ("enqueued", "succeeded", "retried", "dead", "cancelled", "expired")
_OF_KINDS: Final[dict[int, int]] = {
    **dict.fromkeys(kinds.BIRTHS, 0),
    kinds.RETRY: COUNTED.index("retried"),
    **{kind: COUNTED.index(str(state)) for state, kind in kinds.ENDING.items()},
}
_ENDING: Final = kinds.ENDS | kinds.RETURNS
_FAILING: Final = kinds.DEATHS | {kinds.RETRY}
_TIMED: Final = _FAILING | kinds.SUCCESSES
MINUTE_NS: Final = 60 * model.SECOND_NS
HOUR_NS: Final = 60 * MINUTE_NS
#: Numbers of minutes, hours and days kept for the whole log, and for a task or cause.
_MINUTES: Final = 25 * 60
_HOURS: Final = 35 * 24
_DAYS: Final = 400
_OWN_HOURS: Final = 8 * 24
_OWN_DAYS: Final = 35
#: Hours up to which a clock that is set back still counts in the present hour.
_BACK_HOURS: Final = 2
#: Most tasks and causes kept by name, the most frequent; most new names in an hour; most acts.
TASKS_MAX: Final = 200
CAUSES_MAX: Final = 50
_NEW_MAX: Final = 5_000
ACTS_MAX: Final = 1_000
#: Jobs whose tasks are cached.
_NAMES_MAX: Final = 100_000
_TWO: Final = struct.Struct("<QQ")

#: Counts, and the number of attempts by class of their duration.
Cell = tuple[list[int], dict[int, int]]


def class_of(took_ns: int) -> int:
    """Return the class of a duration; each doubling has four classes."""
    bits = max(took_ns, 8).bit_length()
    return bits * 4 + (max(took_ns, 8) >> (bits - 3) & 3)


def middle_of(number: int) -> int:
    """Return the duration in the middle of a class, in nanoseconds."""
    bits, quarter = divmod(number, 4)
    return ((4 + quarter) * 2 + 1) << (bits - 4)


class Series:
    """Counts of a task by hour and by day."""

    __slots__ = ("days", "hours")

    def __init__(self) -> None:
        self.hours: dict[int, Cell] = {}
        self.days: dict[int, Cell] = {}

    def add(self, other: Series) -> None:
        """Add the counts of another series."""
        for mine, others in ((self.hours, other.hours), (self.days, other.days)):
            for at, (counts, times) in others.items():
                cell = mine.setdefault(at, ([0] * len(COUNTED), {}))
                cell[0][:] = map(operator.add, cell[0], counts)
                for number, count in times.items():
                    cell[1][number] = cell[1].get(number, 0) + count

    def weight(self) -> int:
        return sum(sum(counts) for counts, _ in self.days.values())


class History:
    """Counts of a log up to a cursor.

    Attributes:
        minutes, hours, days: number since 1970 -> counts of the whole log.
        tasks: series by name; "" sums up other tasks.
        causes: (task, class of the error, fingerprint) -> failures by hour, and by day.
        acts: (time, job, name and request), the latest.
    """

    #: names of the counts, in this order
    counted: ClassVar[tuple[str, ...]] = COUNTED

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.cursor: frames.Cursor = journal.start()
        self.minutes: dict[int, list[int]] = {}
        self.hours: dict[int, list[int]] = {}
        self.days: dict[int, list[int]] = {}
        self.tasks: dict[str, Series] = {}
        self.causes: dict[tuple[str, str, str], tuple[dict[int, int], dict[int, int]]] = {}
        self.acts: deque[tuple[int, int, str]] = deque(maxlen=ACTS_MAX)
        #: job -> start of its attempt
        self._running: dict[int, int] = {}
        self._tasks_of: dict[int, str] = {}
        #: task -> its cells of the present hour
        self._cells: dict[str, tuple[Cell, Cell]] = {}
        self._hour = 0
        self._is_saved = True
        #: of the file as it was last read or written
        self._stamp: object = None

    @staticmethod
    def quantile(times: dict[int, int], part: float) -> int:
        """Return the duration that this share of the attempts did not exceed; 0 for none."""
        left = part * sum(times.values())
        for number in sorted(times):
            left -= times[number]
            if left <= 0:
                return middle_of(number)
        return 0

    # -- the file ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Continue from the file, if it is valid, of this log, and ahead; else do nothing."""
        journal = self.journal
        try:
            stamp = self._file_stamp()
            if stamp == self._stamp:
                return
            packed = read_file(journal.disk, f"{journal.path}/{FILE}", _FILE_BYTES_MAX)
            data = json.loads(zlib.decompressobj().decompress(packed, _DATA_BYTES_MAX))
            segment, offset, next_lsn = _whole(data["at"])
            cursor = frames.Cursor(segment, offset, next_lsn)
            is_ours = (data["version"], data["log"]) == (_VERSION, journal.identity.log_id.hex)
            is_known = not journal.files.lsns or cursor.segment <= journal.files.lsns[-1]
            is_ahead = not self._hour or self.cursor.next_lsn < cursor.next_lsn
            if is_ours and is_known and is_ahead and cursor.next_lsn <= journal.next_lsn:
                loaded = History(journal)
                loaded.cursor, loaded._stamp = cursor, stamp
                loaded._fill(data)
                vars(self).update(vars(loaded))
        except Exception:  # noqa: BLE001 - with any fault of the file, the log has the counts
            return

    def _fill(self, data: dict[str, Any]) -> None:
        for name in ("minutes", "hours", "days"):
            setattr(self, name, {int(at): _counts(cell) for at, cell in data[name].items()})
        for name, parts in data["tasks"].items():
            series = self.tasks[name] = Series()
            series.hours, series.days = (
                {
                    int(at): (
                        _counts(cell[: len(COUNTED)]),
                        dict(zip(_whole(cell[6::2]), _whole(cell[7::2]), strict=True)),
                    )
                    for at, cell in part.items()
                }
                for part in parts
            )
        for task, error, fingerprint, *parts in data["causes"]:
            hours, days = (
                dict(zip(map(int, part), _whole(list(part.values())), strict=True))
                for part in parts
            )
            self.causes[str(task), str(error), str(fingerprint)] = hours, days
        for *numbers, text in data["acts"]:
            time_ns, job = _whole(numbers)
            self.acts.append((time_ns, job, str(text)))
        running = data["running"]
        self._running = dict(zip(map(int, running), _whole(list(running.values())), strict=True))
        (self._hour,) = _whole([data["hour"]])

    def save(self) -> None:
        """Replace the file.

        Raises:
            OSError: the disk refused.
        """
        journal, at = self.journal, self.cursor
        cells = {
            name: [
                {
                    at: [*counts, *(part for pair in sorted(times.items()) for part in pair)]
                    for at, (counts, times) in part.items()
                }
                for part in (series.hours, series.days)
            ]
            for name, series in self.tasks.items()
        }
        data = {
            "version": _VERSION, "log": journal.identity.log_id.hex,
            "at": [at.segment, at.offset, at.next_lsn], "hour": self._hour,
            "minutes": self.minutes, "hours": self.hours, "days": self.days, "tasks": cells,
            "causes": [[*cause, *parts] for cause, parts in self.causes.items()],
            "acts": list(self.acts), "running": self._running,
        }  # fmt: skip
        packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode())
        replace_file(journal.disk, f"{journal.path}/{FILE}", packed)
        self._is_saved, self._stamp = True, self._file_stamp()

    def _file_stamp(self) -> object:
        disk, path = self.journal.disk, f"{self.journal.path}/{FILE}"
        return disk.status(path), disk.modified_ns(path)

    # -- the fold ----------------------------------------------------------------------------------

    def steps(self, through: int) -> Iterator[None]:
        """Fold the sealed segments up to this one, a frame per step, and write the file.

        Raises:
            OSError: the disk refused.
        """
        files = self.journal.files
        files.refresh()
        if through not in files.lsns[:-1]:
            return
        if not self.has(through) or not self._is_saved:
            self.load()  # another process may have done it
        if self.has(through):
            if not self._is_saved:  # the disk refused it
                self.save()
            return
        self._pass_over()
        end = frames.Cursor(through, files.size(through), self.cursor.next_lsn)
        for frame in frames.whole(files.frames(self.cursor, end)):
            self.take(frame)
            yield
        following = min(lsn for lsn in files.lsns if lsn > through)
        next_lsn = max(self.cursor.next_lsn, following)
        self.cursor = frames.Cursor(following, codec.SEGMENT_HEADER.size, next_lsn)
        self._is_saved = False
        self.save()

    def _pass_over(self) -> None:
        """Skip removed segments; earlier counts stay."""
        at = self.cursor
        following = next((lsn for lsn in self.journal.files.lsns if lsn >= at.segment), at.segment)
        if following != at.segment:
            next_lsn = max(at.next_lsn, following)
            self.cursor = frames.Cursor(following, codec.SEGMENT_HEADER.size, next_lsn)

    def has(self, segment: int) -> bool:
        """Return whether the counts include a whole sealed segment."""
        return self.cursor.segment > segment

    def read_on(self) -> Iterator[None]:
        """Fold the new frames of the log, one per step."""
        if not self._hour or self.cursor.segment not in self.journal.files.lsns:
            self.load()
        self._pass_over()
        for frame in frames.whole(self.journal.frames(self.cursor)):
            self.take(frame)
            yield

    def take(self, frame: frames.Frame) -> None:  # noqa: C901, PLR0912 - one loop over records
        """Count the records of a frame."""
        data, now_ns = frame.data, frame.header.time_ns
        hour, total = now_ns // HOUR_NS, [0] * len(COUNTED)
        if self._hour - _BACK_HOURS <= hour < self._hour:
            hour = self._hour  # a clock that was set back counts in the present hour
        elif hour != self._hour:
            # By the earlier hour: a clock that is wrong for less than an hour drops no counts.
            self._prune(min(hour, self._hour))
            self._hour = hour
        names, running = self._tasks_of, self._running
        for lsn, at, length in places(frame):
            kind = data[at + codec.KIND_AT]
            if kind in kinds.BIRTHS:
                task = names[lsn] = _task_at(data, at)
                total[0] += 1
                self._cell(task, hour, 0, 0)
            elif kind in kinds.CLAIMS:
                running[_TWO.unpack_from(data, at + codec.JOB_AT)[0]] = now_ns
            elif kind in _ENDING:
                job = _TWO.unpack_from(data, at + codec.JOB_AT)[0]
                began_ns, number = running.pop(job, 0), _OF_KINDS.get(kind)
                if number is not None:
                    total[number] += 1
                    name = names.get(job)  # "" for a job without a task
                    task = self._find(job) if name is None else name
                    is_timed = began_ns and kind in _TIMED
                    self._cell(task, hour, number, now_ns - began_ns if is_timed else 0)
                    if kind in _FAILING:
                        self._fail(task, Record(data[at : at + length], lsn, 0, now_ns), hour)
                if kind in kinds.LAST:
                    names.pop(job, None)
            elif kind == kinds.ACT:
                self._act(Record(data[at : at + length], lsn, 0, now_ns))
        if len(names) > _NAMES_MAX:
            for job in list(names)[: _NAMES_MAX // 2]:
                del names[job]
        numbers = now_ns // MINUTE_NS, hour, hour // 24
        for known, at in zip((self.minutes, self.hours, self.days), numbers, strict=True):
            if any(total):
                counts = known.setdefault(at, [0] * len(COUNTED))
                counts[:] = map(operator.add, counts, total)

    def _act(self, record: Record) -> None:
        if not record.acted_ns:
            self.acts.append((record.time_ns, record.job, record.reason))

    def _cell(self, task: str, hour: int, number: int, took_ns: int) -> None:
        cells = self._cells.get(task)
        if cells is None and task not in self.tasks and len(self.tasks) >= _NEW_MAX:
            task = ""
            cells = self._cells.get(task)
        if cells is None:
            series = self.tasks.setdefault(task, Series())
            day = hour // 24
            cells = self._cells[task] = (
                series.hours.setdefault(hour, ([0] * len(COUNTED), {})),
                series.days.setdefault(day, ([0] * len(COUNTED), {})),
            )
        took = class_of(took_ns) if took_ns else 0
        for counts, times in cells:
            counts[number] += 1
            if took:
                times[took] = times.get(took, 0) + 1

    def _fail(self, task: str, record: Record, hour: int) -> None:
        from taskq.core.fingerprints import failure_of  # noqa: PLC0415 - it imports hashlib

        error, _, fingerprint = failure_of(task, record.kind, record.reason)
        cause = task, error, fingerprint
        if cause not in self.causes and len(self.causes) >= _NEW_MAX:
            cause = "", "", ""
        hours, days = self.causes.setdefault(cause, ({}, {}))
        for known, at in ((hours, hour), (days, hour // 24)):
            known[at] = known.get(at, 0) + 1

    def _find(self, job: int) -> str:
        """Return the task of an earlier job; cache the tasks of the frame's other jobs, too."""
        journal = self.journal
        with contextlib.suppress(FormatError, OSError):
            for lsn, data, at in births_beside(journal, job):
                self._tasks_of[lsn] = _task_at(data, at)
            if job not in self._tasks_of:  # compaction rewrote it
                for place in journal.indexes.about(job):
                    if place.record[codec.KIND_AT] in kinds.CARRYING:
                        self._tasks_of[job] = _task_at(born_in(place.record), 0)
                        break
        return self._tasks_of.setdefault(job, "")

    def _prune(self, hour: int) -> None:
        """Drop expired counts, and all but the most frequent names, once an hour."""
        self._cells.clear()
        _drop(self.minutes, hour * 60, _MINUTES)
        _drop(self.hours, hour, _HOURS)
        _drop(self.days, hour // 24, _DAYS)
        for name, series in list(self.tasks.items()):
            _drop(series.hours, hour, _OWN_HOURS)
            _drop(series.days, hour // 24, _OWN_DAYS)
            if not series.days:
                del self.tasks[name]
        for cause, (hours, days) in list(self.causes.items()):
            _drop(hours, hour, _OWN_HOURS)
            _drop(days, hour // 24, _OWN_DAYS)
            if not days:
                del self.causes[cause]
        named = [name for name in self.tasks if name]
        named.sort(key=lambda name: (-self.tasks[name].weight(), name))
        for name in named[TASKS_MAX:]:
            self.tasks.setdefault("", Series()).add(self.tasks.pop(name))
        often = sorted(self.causes, key=lambda cause: (-sum(self.causes[cause][1].values()), cause))
        for cause in often[CAUSES_MAX:]:
            rest = self.causes.setdefault(("", "", ""), ({}, {}))
            if cause != ("", "", ""):
                for mine, others in zip(rest, self.causes.pop(cause), strict=True):
                    for at, count in others.items():
                        mine[at] = mine.get(at, 0) + count


def _whole(numbers: list[Any]) -> list[int]:
    """Return the numbers of the file.

    Raises:
        ValueError: one is no whole number.
    """
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("no whole numbers")
    return numbers


def _counts(numbers: list[Any]) -> list[int]:
    if len(numbers) != len(COUNTED):
        raise ValueError("other counts")
    return _whole(numbers)


def _drop(known: dict[int, Any], now: int, most: int) -> None:
    """Drop expired entries, and entries in the future beyond the same number."""
    for at in [at for at in known if at <= now - most]:
        del known[at]
    if len(known) > 2 * most:
        for at in sorted(known)[2 * most :]:
            del known[at]


def _task_at(data: bytes, at: int) -> str:
    start = at + codec.BORN.size + data[at + codec.QUEUE_SIZE_AT]
    return data[start : start + data[at + codec.QUEUE_SIZE_AT + 1]].decode(errors="replace")
