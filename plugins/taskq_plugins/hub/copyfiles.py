"""Read the copies of a hub: what is wrong with one, and what of it may go.

Nothing here writes to a copy but ``ask_again``, for which nobody may serve the hub.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from taskq import engine
from taskq.errors import LogError
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub.models import Declare

if TYPE_CHECKING:
    from taskq_plugins.hub.registry import Registry

SEALS: Final = "seals.jsonl"
IDENTITY, LOG = engine.Replica.IDENTITY, engine.Replica.LOG
#: The folder of segments that come again: what came of each.
AGAIN: Final = "again"
#: In the identity of a copy: as which of its device's logs it came. No time tells that: files are
#: written again, and brought back.
CAME: Final = "came"
#: Names of logs.
LOG_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
#: Has its own inode in it, so that a copy of it shows.
_PLACE: Final = ".place"
_READ_BYTES: Final = 1024 * 1024
_LSN_MAX: Final = 2**63


class CopyFiles:
    """Stand for one copy, beside its server or not.

    Attributes:
        disk: to read by.
        hub: its directory.
        device: whose it is.
        log_id: of the log.
        path: of its directory.
    """

    def __init__(self, disk: engine.Disk, hub: str | Path, device: str, log_id: UUID) -> None:
        self.disk, self.hub, self.device, self.log_id = disk, hub, device, log_id
        self.path = f"{hub}/devices/{device}/{log_id}"

    @property
    def is_there(self) -> bool:
        return self.disk.status(f"{self.path}/{IDENTITY}") is not None

    @property
    def identity(self) -> engine.Identity:
        return lineage(self.disk, self.path, self.log_id)

    @property
    def came(self) -> int:
        """Return as which of its device's logs it came."""
        return int(json.loads(content(self.disk, f"{self.path}/{IDENTITY}")).get(CAME, 0))

    @property
    def seals(self) -> dict[int, dict[str, Any]]:
        lines = whole_lines(self.disk, f"{self.path}/{SEALS}")[0]
        return {line["segment"]: line for line in lines}

    @property
    def breaks(self) -> list[dict[str, Any]]:
        return whole_lines(self.disk, f"{self.path}/{BREAKS}")[0]

    @property
    def begins(self) -> int:
        """Return the first lsn that was ever here; 0: nothing was, or it is not known any more."""
        folder = f"{self.path}/old/1" if self.breaks else self.path
        lines = whole_lines(self.disk, f"{folder}/{SEALS}")[0]
        sealed = [line["segment"] for line in lines[:1]]
        return min(sealed + _segments(self.disk, folder)[:1], default=0)

    @property
    def next_lsn(self) -> int:
        with self.files() as files:
            for segment in reversed(files.lsns):
                size = files.size(segment)
                last = files.scanner(segment, size, segment, sealed=False).last_before(
                    size, start=engine.Replica.START
                )
                return segment if last is None else last[1].next_lsn
        return 0

    @property
    def arrived_ns(self) -> int:
        with self.files() as files:
            times = (self.disk.modified_ns(files.file_path(lsn)) for lsn in files.lsns)
            return max((when or 0 for when in times), default=0)

    @contextlib.contextmanager
    def files(self) -> Iterator[engine.Replica]:
        files = engine.Replica(self.disk, self.path, self.identity)
        try:
            yield files
        finally:
            files.forget()

    def size(self, name: str) -> int:
        status = self.disk.status(f"{self.path}/{name}")
        return -1 if status is None else status[2]

    def digest(self, name: str, size: int) -> str:
        return file_digest(self.disk, f"{self.path}/{name}", size)


def kept(hub: str | Path, disk: engine.Disk | None = None, device: str = "") -> list[CopyFiles]:
    disk, folder = disk or engine.PatientDisk(), f"{hub}/devices"
    return [
        CopyFiles(disk, hub, name, UUID(log_id))
        for name in ([device] if device else disk.names(folder))
        for log_id in disk.names(f"{folder}/{name}")
        if LOG_ID.match(log_id)
    ]


def in_order(copies: list[CopyFiles]) -> list[CopyFiles]:
    """Return the copies of one device as they came, those that another goes on from before it."""
    there = [copy for copy in copies if copy.is_there]
    parents = {log_id for copy in there for log_id, _ in copy.identity.parents}
    return sorted(there, key=lambda copy: (copy.log_id not in parents, copy.came))


def newest(hub: str | Path, device: str) -> CopyFiles:
    copies = [copy for copy in kept(hub, device=device) if copy.is_there]
    if not copies:
        raise LogError(f"{hub} has nothing of {device}: it has not synced yet")
    return max(copies, key=lambda copy: copy.arrived_ns)


def described(hub: Path, device: str) -> list[dict[str, Any]]:
    """Return what there is of each log of a device, for people and programs."""
    logs = []
    for copy in kept(hub, device=device):
        with copy.files() as files:
            sizes = {lsn: files.size(lsn) for lsn in files.lsns}
        next_lsn, problem = 0, ""
        try:
            with engine.LogReader.open(copy.path) as reader:
                next_lsn = reader.journal.next_lsn
        except LogError as error:
            problem = str(error)
        logs.append({
            "path": copy.path, "log_id": str(copy.log_id), "bytes": sum(sizes.values()),
            "next_lsn": next_lsn, "arrived_ns": copy.arrived_ns, "problem": problem,
            "gaps": [gap._asdict() for gap in gaps(copy)], "begins": min(sizes, default=0),
            "parents": [[str(of), lsn] for of, lsn in copy.identity.parents],
        })  # fmt: skip
    return sorted(logs, key=lambda log: int(log["arrived_ns"]))


class LostRecords(NamedTuple):
    """Records of a device that its hub never got, and that are gone."""

    first: int
    last: int
    cause: str


def gaps(copy: CopyFiles) -> list[LostRecords]:
    """Return what is missing in a copy, and what between it and the copies of its parents."""
    lines = [line for line in copy.breaks if line["step"] == "begun"]
    ends = [(engine.Border.from_list(line["left"]).next_lsn, line["at"][0]) for line in lines]
    lost = [
        LostRecords(end, begin - 1, line["cause"])
        for (end, begin), line in zip(ends, lines, strict=True)
    ]
    parents = [
        (CopyFiles(copy.disk, copy.hub, copy.device, of), next_lsn)
        for of, next_lsn in copy.identity.parents
    ]
    had = [min(parent.next_lsn, next_lsn) for parent, next_lsn in parents if parent.is_there]
    if any(had) and max(had) < (begin := copy.begins):
        cause = "a limit of the device's log took it before it was sent, and the log was set back"
        lost.insert(0, LostRecords(max(had), begin - 1, cause))
    return lost


# -- files -----------------------------------------------------------------------------------------


def lineage(disk: engine.Disk, path: str, log_id: UUID) -> engine.Identity:
    """Return the identity of a copy as far as its bytes go: features may be unknown here."""
    values = json.loads(content(disk, f"{path}/{IDENTITY}") or "{}")
    parents = [(UUID(parent["log_id"]), parent["next_lsn"]) for parent in values.get("parents", ())]
    return engine.Identity.of_replica(log_id, 0, frozenset(), parents)


@contextlib.contextmanager
def opened(
    disk: engine.Disk, path: str, *, create: bool = False, write: bool = False
) -> Iterator[int]:
    descriptor = disk.open(path, create=create, write=create or write)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def content(disk: engine.Disk, path: str) -> bytes:
    try:
        with opened(disk, path) as file:
            size = disk.size(file)
            return b"".join(disk.read(file, _READ_BYTES, at) for at in range(0, size, _READ_BYTES))
    except FileNotFoundError:
        return b""


def whole_lines(disk: engine.Disk, path: str) -> tuple[list[dict[str, Any]], int, int]:
    data, lines, size = content(disk, path), list[dict[str, Any]](), 0
    for line in data.splitlines(keepends=True):
        try:
            values = json.loads(line)
        except ValueError:
            break
        if not (line.endswith(b"\n") and isinstance(values, dict)):
            break  # it was cut short, or is being added
        lines.append(values)
        size += len(line)
    return lines, size, len(data)


def file_digest(disk: engine.Disk, path: str, size: int) -> str:
    with opened(disk, path) as file:
        return engine.Replica.sha256(disk, file, size)


# -- what is wrong with one ------------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault of a copy.

    Attributes:
        copy: the copy.
        what: description.
        name: of the segment to send again; "" if its unreadable end is cut off, which then comes as
            new data.
    """

    copy: CopyFiles
    what: str
    name: str = ""


def faults(hub: Path, *, deep: bool) -> Iterator[Fault]:
    for copy in kept(hub):
        yield from faults_of(copy, deep=deep)


def faults_of(copy: CopyFiles, *, deep: bool) -> Iterator[Fault]:
    try:
        yield from _of_segments(copy, deep=deep)
        if deep:
            yield from _of_records(copy)
    except (LogError, OSError, ValueError, LookupError, TypeError) as error:
        yield Fault(copy, f"it cannot be read: {error}")


def _of_segments(copy: CopyFiles, *, deep: bool) -> Iterator[Fault]:
    lines = copy.seals
    lsns = engine.Replica(copy.disk, copy.path, copy.identity).lsns if lines else []
    for segment in [lsn for lsn in lines if lsns and lsn >= lsns[0]]:
        name, line = engine.segment_name(segment), lines[segment]
        size, digest, there = line["end"][1], line["sha256"], copy.size(f"{LOG}/{name}")
        if there < 0:  # after the end it comes as new data
            what = f"{name} was sealed, and is not there"
            yield Fault(copy, what, name if segment < lsns[-1] else "")
        elif there < size:
            yield Fault(copy, f"{name} is shorter than when it was sealed", name)
        elif deep and copy.digest(f"{LOG}/{name}", size) != digest:
            yield Fault(copy, f"{name} is not what was sealed", name)


def _of_records(copy: CopyFiles) -> Iterator[Fault]:
    with engine.LogReader.open(copy.path) as reader:
        report = reader.verify()
    for damage in report.damage:
        yield Fault(copy, f"{damage.segment} does not read behind offset {damage.offset}")


def ask_again(registry: Registry, fault: Fault) -> None:
    copy = fault.copy
    if not fault.name:  # opening the copy checks its whole end
        registry.durable(copy.device, copy.log_id).remove()
        return
    disk, folder = copy.disk, f"{copy.path}/{AGAIN}"
    # A part, though empty, requests the segment.
    disk.make_directory(folder)
    disk.close(disk.open(f"{folder}/{fault.name}", create=True))
    disk.sync_directory(folder)


def is_elsewhere(hub: Path) -> bool:
    """Return whether the directory was copied since it was served: files may be of two times."""
    place = hub / _PLACE
    try:
        return place.read_text(encoding="ascii") != f"{place.stat().st_ino}"
    except FileNotFoundError:
        return False


def note_place(hub: Path) -> None:
    if hub.is_dir():  # else nothing came yet
        place = hub / _PLACE
        place.touch()
        place.write_text(f"{place.stat().st_ino}", encoding="ascii")


# -- what of one may go ----------------------------------------------------------------------------


class Old(NamedTuple):
    """Name a file of a copy that a hub lets go, and its bytes."""

    name: str
    size: int


class CompactionFloor(NamedTuple):
    """Compaction state of a copy, so that COMPACTED records are read once.

    Attributes:
        breaks: number of noted breaks: another break may change the records.
        since: first segment of the next scan.
        below: records below this lsn were written again.
    """

    breaks: int = 0
    since: int = 0
    below: int = 0


def due(
    copy: CopyFiles, before_ns: int, known: CompactionFloor
) -> tuple[list[Old], CompactionFloor]:
    """Return what a copy does not need any more, and what is known of it then.

    That are the oldest segments that arrived before that moment and of which the log itself says
    that all is written again, and what a break left if all of it is from then. While a break is
    being carried out nothing is due.
    """
    lines = copy.breaks
    if lines and lines[-1]["step"] == "begun":
        return [], known
    known = known if known.breaks == len(lines) else CompactionFloor(len(lines))
    folders = [f"old/{line['n']}" for line in lines if line["step"] == "done"]
    left = [folder for folder in folders if copy.size(f"{folder}/{IDENTITY}") >= 0]
    with copy.files() as files:
        limit = first_young(copy.disk, files, before_ns)
        if files.lsns and limit > files.lsns[0]:
            below = max(known.below, _floor(files, known.since))
            known = known._replace(since=files.lsns[-1], below=below)
        limit = min(limit, known.below)
        over = [segment for segment, following in pairwise(files.lsns) if following <= limit]
        gone = [Old(f"{LOG}/{engine.segment_name(lsn)}", files.size(lsn)) for lsn in over]
    aside = (old for folder in left for old in _aside(copy, folder, before_ns))
    return [*gone, *aside], known


def first_young(disk: engine.Disk, files: engine.Replica, before_ns: int) -> int:
    for segment in files.lsns:
        if (disk.modified_ns(files.file_path(segment)) or before_ns) >= before_ns:
            return segment
    return _LSN_MAX


def _floor(files: engine.Replica, since: int) -> int:
    segments = reversed([lsn for lsn in files.lsns if lsn >= since])
    return next(filter(None, map(files.compacted_below, segments)), 0)


def _aside(copy: CopyFiles, folder: str, before_ns: int) -> Iterator[Old]:
    disk, path = copy.disk, f"{copy.path}/{folder}"
    names = [f"{LOG}/{name}" for name in disk.names(f"{path}/{LOG}")]
    if all((disk.modified_ns(f"{path}/{name}") or 0) < before_ns for name in names):
        for name in (IDENTITY, SEALS, *names):
            if (size := copy.size(f"{folder}/{name}")) >= 0:
                yield Old(f"{folder}/{name}", size)


class DeclaredGap(NamedTuple):
    """A gap: where the copy ended, and where it goes on."""

    left: engine.Border
    at: engine.Border


class Gaps:
    """The gaps of one copy; ``unmark`` drops the durable mark.

    The segments before a gap are set aside as a log of their own (``old/<n>``): a log with a hole
    folds to other jobs than the device's.

    Attributes:
        all: declared gaps, oldest first. The latest may still have to be carried out.
    """

    def __init__(
        self, disk: engine.Disk, path: str, unmark: Callable[[], None] = lambda: None
    ) -> None:
        self._disk, self._path, self._unmark = disk, path, unmark
        self._notes = Notes(disk, f"{path}/{BREAKS}")
        lines = [line for line in self._notes.lines if line["step"] == "begun"]
        self.all = [
            DeclaredGap(*(engine.Border.from_list(line[at]) for at in ("left", "at")))
            for line in lines
        ]
        if self._notes.lines and self._notes.lines[-1]["step"] == "begun":
            self._carry_out()

    def knows(self, asked: Declare) -> bool:
        return (asked.left, asked.at) in self.all

    def declare(self, asked: Declare) -> None:
        self._notes.add(
            step="begun", n=len(self.all) + 1, kind="gap", left=asked.left.as_list(),
            at=asked.at.as_list(), end_lsn=asked.end_lsn, cause=asked.cause,
        )  # fmt: skip
        self.all.append(DeclaredGap(asked.left, asked.at))
        self._carry_out()

    def _carry_out(self) -> None:
        disk, path, at = self._disk, self._path, self.all[-1].at
        old = f"{path}/old/{len(self.all)}"
        # An earlier try may have come some of the way.
        lsns = [lsn for lsn in _segments(disk, path) if lsn < at.segment]
        names = [f"{LOG}/{engine.segment_name(lsn)}" for lsn in lsns]
        if names:
            disk.make_directory(f"{old}/{LOG}")
            for name in (IDENTITY, SEALS, *names):
                _link(disk, f"{path}/{name}", f"{old}/{name}")
            for directory in (f"{old}/{LOG}", old, f"{path}/old", path):
                disk.sync_directory(directory)
        self._unmark()
        for name in reversed(names):  # nothing follows a hole at any time
            disk.remove(f"{path}/{name}")
        disk.sync_directory(f"{path}/{LOG}")
        Notes(disk, f"{path}/{SEALS}").keep([])
        self._notes.add(step="done", n=len(self.all))


def _segments(disk: engine.Disk, path: str) -> list[int]:
    names = disk.names(f"{path}/{LOG}")
    return sorted(lsn for name in names if (lsn := engine.segment_lsn(name)) is not None)


def _link(disk: engine.Disk, source: str, target: str) -> None:
    """Give a file a second name, unless that is taken: by an earlier try, which came further."""
    if disk.status(target) is None and disk.status(source) is not None:
        disk.link(source, target)


# -- small files of lines: what was sealed, and what breaks were declared --------------------------


class Notes:
    """Lines of JSON, each durable when ``add`` returns.

    Attributes:
        lines: what is noted, oldest first.
    """

    def __init__(self, disk: engine.Disk, path: str) -> None:
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
            engine.write_all(disk, file, line, self._size)
            disk.sync(file)
        if not self._size:  # it is new
            disk.sync_directory(self._path.rpartition("/")[0])
        self._size += len(line)
        self.lines.append(values)

    def keep(self, lines: list[dict[str, Any]]) -> None:
        if lines == self.lines:
            return
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        engine.replace_file(self._disk, self._path, data)
        self.lines, self._size = lines, len(data)
