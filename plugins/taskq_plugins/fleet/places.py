"""Find task logs: a directory may be a log, or hold the logs of many devices."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NoReturn, Self, TypeAlias
from uuid import UUID

from pydantic import Field

from taskq.arrow.problems import SegmentUnreadable, shown
from taskq.engine import (
    Identity,
    LocalDisk,
    Replica,
    Scanner,
    Tag,
    open_file,
    segment_lsn,
    segment_name,
)
from taskq.errors import LogError
from taskq.values import SECOND_NS

if TYPE_CHECKING:
    from taskq.engine import FrameHeader

#: Logs, or segments, whose facts are remembered.
ENTRIES_MAX: Final = 200_000


class FleetError(LogError):
    """A directory of logs, or one of them, cannot be used as requested; the message names it."""


class LogTwice(FleetError):
    """Two directories hold a log of the same id, and neither is the beginning of the other."""

    def __init__(self, log_id: str, first: str, second: str) -> None:
        super().__init__(
            f"log {log_id} is there twice, in {shown(first)} and in {shown(second)}, and each has "
            f"records that the other lacks: move the wrong one out of there"
        )
        self.log_id = log_id


#: Gets the error of an unusable log, and the device.
OnLog: TypeAlias = Callable[[LogError, str], None]


def fail(error: LogError, _device: str) -> NoReturn:
    """Raise the error instead of leaving the log out."""
    raise error


#: Logs in one directory at most.
LOGS_MAX: Final = 100_000
#: File that marks a hub's directory.
HUB_FILE: Final = "serve.lock"
_HIDDEN: Final = (".", "_")
#: Last frames of a segment with two copies that are looked up in the other copy.
_COMPARED_MAX: Final = 64
#: Stands for the size of a directory or device with a segment's name.
_NO_FILE: Final = -2
#: Offset of the first frame.
START: Final = Replica.START


class LogPlace(NamedTuple):
    """A task log.

    Attributes:
        path: its directory as the system spells it, even if the name is not UTF-8.
        device: the directory's name as text; in a hub, the name of the device's directory.
        copies: other directories with the beginning of the log.
    """

    device: str
    path: str
    identity: Identity
    copies: tuple[str, ...] = ()

    @property
    def log_id(self) -> str:
        return str(self.identity.log_id)

    @property
    def tag(self) -> Tag:
        return self.identity.tag

    def of_segment(self, first_lsn: int) -> LogPlace:
        """Return the log that wrote a segment of this directory: this one or a parent."""
        if first_lsn >= self.identity.begins:
            return self
        return self._replace(identity=self.identity.owner(first_lsn))


class SegmentPlace(NamedTuple):
    """A segment's file.

    ``epoch`` is the epoch of the first frame, 0 if neither frame nor header can be read.
    """

    first_lsn: int
    path: str
    size_bytes: int
    modified_ns: int
    epoch: int


_Number: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]


class Position(NamedTuple):
    """A position between two frames of a log: all of the segment before ``offset`` is durable.

    The next record has an lsn of ``lsn`` or above. ``frame`` is the offset of the frame before
    ``offset`` (0: none, or not known) and ``time_ns`` its time, so a reader sees whether the frame
    is still there. ``held`` is the reason why reading stops here, or "". A log without segments
    ends in segment 0.
    """

    device: str
    segment: _Number
    offset: _Number
    lsn: _Number
    time_ns: _Number = 0
    frame: _Number = 0
    held: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset

    def after(self, offset: int, header: FrameHeader) -> Position:
        """Return the position after the frame that starts at an offset."""
        return self._replace(
            offset=offset + header.size, lsn=header.next_lsn, time_ns=header.time_ns, frame=offset
        )


class SegmentFile:
    """An open segment. Use ``with``.

    Attributes:
        scanner: reads frames and their headers.
        size_bytes: size of the file when it was opened.
        header: returns the segment's header, or one from its name and first frame; else None.
        frame_at: returns the header of the frame at an offset, or None.
        first_from: returns (offset, header) of the first frame between two offsets.
        last_before: returns (offset, header) of the last frame before an offset.
    """

    def __init__(self, path: str, log_id: str, first_lsn: int) -> None:
        self.path = path
        self.first_lsn = first_lsn
        try:
            self._descriptor = open_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SegmentUnreadable(path, error.strerror or str(error)) from error
        self.size_bytes = os.fstat(self._descriptor).st_size
        own = UUID(log_id)
        self.scanner = Scanner.of_segment(
            self.read, own, first_lsn, self.size_bytes, name=shown(path)
        )
        self.header = partial(self.scanner.segment_header, own, first_lsn)
        self.frame_at, self.first_from = self.scanner.header_at, self.scanner.first_from
        self.last_before = partial(self.scanner.last_before, start=START)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    def read(self, count: int, offset: int) -> bytes:
        try:
            return os.pread(self._descriptor, count, offset)
        except OSError as error:
            raise SegmentUnreadable(self.path, f"{error.strerror} at offset {offset}") from error

    def sync(self) -> bool:
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
            return True
        return False

    def hop(self, offset: int, end: int) -> Iterator[tuple[int, FrameHeader]]:
        return takewhile(lambda frame: frame[0] + frame[1].size <= end, self.scanner.hop(offset))


class FileFacts(NamedTuple):
    """Stat values of a file or directory; they change with its content."""

    mode: int
    inode: int
    size_bytes: int
    changed_ns: int


#: A file with a more recent change may change again without a new time.
SETTLED_NS: Final = 2 * SECOND_NS


@lru_cache(ENTRIES_MAX)
def _identity(path: str, _facts: FileFacts) -> Identity | None:
    """Return the identity in a directory with these stat values, which a new identity changes."""
    return Identity.read(LocalDisk(), path)


def find_logs(
    root: Path,
    devices: frozenset[str] | None = None,
    *,
    on_problem: OnLog = fail,
) -> list[LogPlace]:
    """Return the logs in a directory, by device and age.

    ``root`` is a log, a directory of logs, a directory of devices with logs in each (as in a hub),
    or a hub's own directory. Skipped are other files and directories, links, and names that start
    with a dot or underscore. A directory that vanishes meanwhile is left out.

    Args:
        root: where to look.
        devices: names of devices, or log ids; None for all.
        on_problem: gets the error and device of each unusable log; by default raises it.

    Raises:
        FleetError: the directory does not exist, cannot be read or holds too many logs.
        LogTwice: two directories hold the same log, and neither is the beginning of the other. A
            copy that is a beginning (the device was renamed or had a wrong token) is left out.
        FormatError: a log's ``taskq.json`` does not read, or a newer taskq wrote it.
    """
    top = os.path.abspath(root)  # noqa: PTH100 - Path has no way to drop ".." from a name
    if not _is_directory(top, follow=True):
        raise FleetError(f"{shown(top)} is no directory: give a directory of task logs")
    if os.path.exists(f"{top}/{HUB_FILE}") and _is_directory(f"{top}/devices", follow=False):  # noqa: PTH110 - as above
        top = f"{top}/devices"
    copies, count = dict[str, list[LogPlace]](), 0
    for device, path, facts in _candidates(top, on_problem):
        try:
            place = _look(device, path, facts)
        except LogError as error:
            if devices is None or device in devices:
                on_problem(error, device)
            continue
        if place is None or not (devices is None or _names(place) & devices):
            continue
        copies.setdefault(place.log_id, []).append(place)
        count += 1
        if count > LOGS_MAX:
            raise FleetError(
                f"{shown(top)} holds more than {LOGS_MAX} logs: read it a part at a time"
            )
    logs = [log for places in copies.values() if (log := _longest(places, on_problem)) is not None]
    return sorted(logs, key=lambda log: (log.device, log.identity.created_ns, log.log_id))


def _names(log: LogPlace) -> set[str]:
    return {log.device, log.log_id, *(str(parent.log_id) for parent in log.identity.parents)}


def _longest(copies: list[LogPlace], on_problem: OnLog) -> LogPlace | None:
    first = copies[0]
    if len(copies) == 1:
        return first
    problem: FleetError
    try:
        sizes = {copy.path: _segment_sizes(copy.path) for copy in copies}
        longest = max(copies, key=lambda copy: max(sizes[copy.path].items(), default=(0, 0)))
        others = [copy for copy in copies if copy is not longest]
        odd = [copy for copy in others if not _begins(sizes, copy, longest)]
    except OSError as error:
        problem = _refused(error)
    else:
        if not odd:
            return longest._replace(copies=tuple(copy.path for copy in others))
        problem = LogTwice(first.log_id, odd[0].path, longest.path)
    on_problem(problem, first.device)
    return None


def _refused(error: OSError) -> FleetError:
    return FleetError(f"{shown(str(error.filename))} cannot be read ({error.strerror})")


def _segment_sizes(path: str) -> dict[int, int]:
    sizes: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(f"{path}/log") as entries:
        for entry in entries:
            lsn = segment_lsn(entry.name)
            if lsn is not None:
                sizes[lsn] = entry.stat().st_size if entry.is_file() else _NO_FILE
    return sizes


def _begins(sizes: dict[str, dict[int, int]], short: LogPlace, long: LogPlace) -> bool:
    """Return whether a log's segments are the beginning of another's, if both can be read.

    Segments that compaction removed from the longer log are skipped.
    """
    others = sizes[long.path]
    for lsn, size in sizes[short.path].items():
        if lsn < min(others, default=0) or _NO_FILE in (size, others.get(lsn)):
            continue
        if size > others.get(lsn, -1) or _differ(lsn, size, short, long):
            return False
    return True


def _differ(lsn: int, size: int, short: LogPlace, long: LogPlace) -> bool:
    """Return whether the last frames that two files of a segment share differ.

    A frame's header has its lsn, its time and a checksum of its body, so the last ones are equal
    only if all are. A frame in only one of the files is damaged in the other.
    """
    log_id, name = short.of_segment(lsn).log_id, segment_name(lsn)
    with (
        contextlib.suppress(SegmentUnreadable),
        SegmentFile(f"{short.path}/log/{name}", log_id, lsn) as file,
        SegmentFile(f"{long.path}/log/{name}", log_id, lsn) as source,
    ):
        last = file.last_before(size)
        for _ in range(_COMPARED_MAX):
            if last is None:
                break
            offset, header = last
            there = source.frame_at(offset)
            if there is not None:
                return there != header
            last = file.last_before(offset)
    return False


def _candidates(top: str, on_problem: OnLog) -> Iterator[tuple[str, str, FileFacts]]:
    if facts := _facts_of_log(top):
        yield shown(Path(top).name) or top, top, facts
        return
    for name in _directories(top, fail):
        path = f"{top.rstrip('/')}/{name}"
        device = shown(name)
        if facts := _facts_of_log(path):
            yield device, path, facts
            continue
        for below in _directories(path, on_problem):
            if facts := _facts_of_log(f"{path}/{below}"):
                yield device, f"{path}/{below}", facts


def _look(device: str, path: str, facts: FileFacts) -> LogPlace | None:
    is_settled = facts.changed_ns < time.time_ns() - SETTLED_NS
    identity = (_identity if is_settled else _identity.__wrapped__)(path, facts)
    return None if identity is None else LogPlace(device, path, identity)


def _facts_of_log(path: str) -> FileFacts | None:
    identity = facts_of(f"{path}/{Replica.IDENTITY}")
    # Opening a pipe would block.
    return facts_of(path) if identity is not None and stat.S_ISREG(identity.mode) else None


def facts_of(path: str) -> FileFacts | None:
    try:
        at = os.stat(path)  # noqa: PTH116 - a str, perhaps not UTF-8
    except OSError:
        return None
    return FileFacts(at.st_mode, at.st_ino, at.st_size, at.st_ctime_ns)


def _directories(path: str, on_problem: OnLog) -> list[str]:
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            names += [
                entry.name
                for entry in entries
                if not entry.name.startswith(_HIDDEN) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        on_problem(_refused(error), shown(Path(path).name))
    return sorted(names)


def _is_directory(path: str, *, follow: bool) -> bool:
    try:
        mode = os.stat(path, follow_symlinks=follow).st_mode  # noqa: PTH116 - a str, perhaps not UTF-8
    except OSError:
        return False
    return stat.S_ISDIR(mode)
