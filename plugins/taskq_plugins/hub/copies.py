"""The hub's side of a session: carry out requests on the copies, which are opened at first use."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import random
import re
import threading
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

from taskq import engine
from taskq.errors import FormatError, LogError
from taskq.values import SECOND_NS, parse_json
from taskq_plugins.fleet.inventory import BREAKS
from taskq_plugins.hub import models
from taskq_plugins.hub.models import Declare
from taskq_plugins.hub.registry import Registry

if TYPE_CHECKING:
    from taskq_plugins.hub.registry import Hint

SEALS: Final = "seals.jsonl"
IDENTITY, LOG = engine.Replica.IDENTITY, engine.Replica.LOG
#: Folder for the parts of segments that the device sends again.
AGAIN: Final = "again"
#: Field in the identity of a copy: its number among the device's logs, in order of arrival. File
#: times do not show this order, since files are rewritten and restored.
CAME: Final = "came"
#: Names of logs.
LOG_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
#: File with its own inode number as content; a copy of the file has another inode.
_PLACE: Final = ".place"
_READ_BYTES: Final = 1024 * 1024
_log: Final = logging.getLogger("taskq")
_LSN_MAX: Final = 2**63


class CopyFiles:
    """Files of one copy, also for other processes than the server.

    Attributes:
        disk: disk to read from.
        hub: directory of the hub.
        device: name of the device.
        log_id: id of the log.
        path: directory of the copy.
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
        """Return the copy's number among its device's logs, in order of arrival."""
        return int(_described(self.disk, self.path).get(CAME, 0))

    @property
    def seals(self) -> dict[int, dict[str, Any]]:
        lines = whole_lines(self.disk, f"{self.path}/{SEALS}")[0]
        return {line["segment"]: line for line in lines}

    @property
    def breaks(self) -> list[dict[str, Any]]:
        return whole_lines(self.disk, f"{self.path}/{BREAKS}")[0]

    @property
    def is_in_gap(self) -> bool:
        """Return whether a kill cut a declared gap short; the next opening carries it out."""
        return any(line["step"] == "begun" for line in self.breaks[-1:])

    @property
    def begins(self) -> int:
        """Return the first lsn that was ever here; 0 if there was none, or it is unknown."""
        folder = f"{self.path}/old/1" if self.breaks else self.path
        lines = whole_lines(self.disk, f"{folder}/{SEALS}")[0]
        sealed = [line["segment"] for line in lines[:1]]
        return min(sealed + segments(self.disk, folder)[:1], default=0)

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

    def last_of(self, log: engine.Identity) -> engine.Border:
        """Return the end of the records here that are another log's, too: a parent's of both.

        A recovery of the device writes some again in a new segment. Their first place counts.
        """
        own, end = self.identity, models.NOWHERE
        with self.files() as files:
            for segment in reversed(files.lsns):
                name, last = own.owner(segment).log_id, models.NOWHERE
                for frame in files.frames_of(segment):
                    if log.owner(frame.header.first_lsn).log_id == name:
                        last = engine.Border.after(segment, frame)
                if last.next_lsn < end.next_lsn:
                    break
                end = last if last.frame else end
        return end

    def has(self, at: engine.Border) -> bool:
        with self.files() as files:
            return files.has(at)

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


def devices(hub: str | Path, disk: engine.Disk | None = None) -> list[str]:
    """Return the devices that sent something."""
    names = (disk or engine.PatientDisk()).names(f"{hub}/devices")
    return [name for name in names if name[0] != "."]  # a stray .DS_Store is no device's


def kept(hub: str | Path, device: str, disk: engine.Disk | None = None) -> list[CopyFiles]:
    """Return the copies of a device, but none whose making was cut short."""
    disk = disk or engine.PatientDisk()
    copies = [
        CopyFiles(disk, hub, device, UUID(log_id))
        for log_id in disk.names(f"{hub}/devices/{device}")
        if LOG_ID.match(log_id)
    ]
    return [copy for copy in copies if copy.is_there or segments(disk, copy.path)]


def in_order(copies: list[CopyFiles]) -> list[CopyFiles]:
    """Return the copies of one device in order of arrival, parents of other logs first."""
    there = [copy for copy in copies if copy.is_there]
    parents = {log_id for copy in there for log_id, _ in copy.identity.parents}
    return sorted(there, key=lambda copy: (copy.log_id not in parents, copy.came))


def newest(hub: str | Path, device: str) -> CopyFiles:
    copies = [copy for copy in kept(hub, device) if copy.is_there]
    if not copies:
        raise LogError(f"{hub} has nothing of {device}: it has not synced yet")
    return max(copies, key=lambda copy: copy.arrived_ns)


def described(hub: Path, device: str) -> list[dict[str, Any]]:
    """Return a description of each log of a device, for people and programs."""
    logs = []
    for copy in kept(hub, device):
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
    """Records of a device that are lost: the hub never received them."""

    first: int
    last: int
    cause: str


def gaps(copy: CopyFiles) -> list[LostRecords]:
    """Return the lost records within a copy, and between the copies of its parents and it."""
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
    """Return the identity of a copy; its features may be unknown to this version."""
    parents = _described(disk, path).get("parents", ())
    ends = [(UUID(parent["log_id"]), parent["next_lsn"]) for parent in parents]
    return engine.Identity.of_replica(log_id, 0, frozenset(), ends)


def _described(disk: engine.Disk, path: str) -> dict[str, Any]:
    file = f"{path}/{IDENTITY}"
    try:
        values = parse_json(content(disk, file) or b"{}")
    except ValueError as error:
        raise FormatError(f"{file}: not readable ({error}); restore it from a backup") from error
    if not isinstance(values, dict):
        raise FormatError(f"{file}: not readable (no object); restore it from a backup")
    return values


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
            break  # an incomplete line: cut short, or being written
        lines.append(values)
        size += len(line)
    return lines, size, len(data)


# -- faults ----------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault of a copy.

    Attributes:
        copy: the copy.
        what: description.
        name: segment to send again. "" if the copy's unreadable end is cut off instead; the device
            then sends it as new data.
    """

    copy: CopyFiles
    what: str
    name: str = ""


def faults_of(copy: CopyFiles, *, deep: bool) -> Iterator[Fault]:
    try:
        yield from _of_segments(copy)
        if deep:
            yield from _of_records(copy)
    except (LogError, OSError, ValueError, LookupError, TypeError) as error:
        yield Fault(copy, f"it cannot be read: {error}")


def _of_segments(copy: CopyFiles) -> Iterator[Fault]:
    lines = {} if copy.is_in_gap else copy.seals
    lsns = engine.Replica(copy.disk, copy.path, copy.identity).lsns if lines else []
    for segment in [lsn for lsn in lines if lsns and lsn >= lsns[0]]:
        name, line = engine.segment_name(segment), lines[segment]
        size, there = line["end"][1], copy.size(f"{LOG}/{name}")
        if there < 0:  # after the copy's end: the device sends it as new data
            what = f"{name} was sealed, and is not there"
            yield Fault(copy, what, name if segment < lsns[-1] else "")
        elif there < size:
            yield Fault(copy, f"{name} is shorter than when it was sealed", name)


def _of_records(copy: CopyFiles) -> Iterator[Fault]:
    with engine.LogReader.open(copy.path) as reader:
        report, last = reader.verify(), engine.segment_name(reader.journal.segment)
    for damage in report.damage:
        name = damage.segment if damage.size and damage.segment != last else ""
        yield Fault(copy, f"{damage.segment} does not read after offset {damage.offset}", name)


def ask_again(registry: Registry, fault: Fault) -> None:
    copy = fault.copy
    if not fault.name:  # opening the copy checks all of its last segment, and carries out a gap
        mark = registry.durable(copy.device, copy.log_id)
        mark.remove()
        if copy.is_there:
            with contextlib.suppress(LogError):
                Copy(copy.disk, copy.path, copy.log_id, mark).close()
        return
    disk, folder = copy.disk, f"{copy.path}/{AGAIN}/{LOG}"
    # An empty part requests the segment.
    disk.make_directory(folder)
    disk.close(disk.open(f"{folder}/{fault.name}", create=True))
    for directory in (folder, f"{copy.path}/{AGAIN}", copy.path):
        disk.sync_directory(directory)


def is_elsewhere(hub: Path) -> bool:
    """Return whether the directory is a copy of a served one, perhaps with files of two times."""
    place = hub / _PLACE
    try:
        return place.read_text(encoding="ascii") != f"{place.stat().st_ino}"
    except FileNotFoundError:
        return False


def note_place(hub: Path) -> None:
    if hub.is_dir():  # otherwise the hub is new
        place = hub / _PLACE
        place.touch()
        place.write_text(f"{place.stat().st_ino}", encoding="ascii")


# -- retention -------------------------------------------------------------------------------------


class CompactionFloor(NamedTuple):
    """Compaction state of a copy, so that COMPACTED records are read once.

    Attributes:
        breaks: number of noted breaks; another break may change the records.
        since: first segment of the next scan.
        below: compaction rewrote all records below this lsn that the log still needs.
    """

    breaks: int = 0
    since: int = 0
    below: int = 0


def due(
    copy: CopyFiles, before_ns: int, known: CompactionFloor
) -> tuple[list[str], CompactionFloor]:
    """Return the files that a copy no longer needs, and its new compaction state.

    Due are the oldest segments that arrived before the moment, once the log's own compaction has
    rewritten them. So are records set aside at a break, if all arrived before the moment. While a
    break is being carried out nothing is due.
    """
    if copy.is_in_gap:
        return [], known
    lines = copy.breaks
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
        gone = [f"{LOG}/{engine.segment_name(lsn)}" for lsn in over]
    aside = (name for folder in left for name in _aside(copy, folder, before_ns))
    return [*gone, *aside], known


def first_young(disk: engine.Disk, files: engine.Replica, before_ns: int) -> int:
    for segment in files.lsns:
        if (disk.modified_ns(files.file_path(segment)) or before_ns) >= before_ns:
            return segment
    return _LSN_MAX


def _floor(files: engine.Replica, since: int) -> int:
    segments = reversed([lsn for lsn in files.lsns if lsn >= since])
    return next(filter(None, map(files.compacted_below, segments)), 0)


def _aside(copy: CopyFiles, folder: str, before_ns: int) -> Iterator[str]:
    disk, path = copy.disk, f"{copy.path}/{folder}"
    names = [f"{LOG}/{name}" for name in disk.names(f"{path}/{LOG}")]
    if all((disk.modified_ns(f"{path}/{name}") or 0) < before_ns for name in names):
        names = [f"{folder}/{name}" for name in (IDENTITY, SEALS, *names)]
        yield from (name for name in names if copy.size(name) >= 0)


class DeclaredGap(NamedTuple):
    """A gap: where the copy ended, and where it continues."""

    left: engine.Border
    at: engine.Border


class Gaps:
    """The gaps of one copy; ``unmark`` drops the durable mark.

    The segments before a gap are set aside as a log of their own (``old/<n>``), since a fold over a
    gap would yield other jobs than the device has.

    Attributes:
        all: declared gaps, oldest first.
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
        # A crash may have interrupted an earlier try.
        lsns = [lsn for lsn in segments(disk, path) if lsn < at.segment]
        names = [f"{LOG}/{engine.segment_name(lsn)}" for lsn in lsns]
        if names:
            disk.make_directory(f"{old}/{LOG}")
            for name in (IDENTITY, SEALS, *names):
                _link(disk, f"{path}/{name}", f"{old}/{name}")
            for directory in (f"{old}/{LOG}", old, f"{path}/old", path):
                disk.sync_directory(directory)
        self._unmark()
        for name in (*reversed(names), SEALS):  # newest first: never a segment after a gap
            disk.remove(f"{path}/{name}")
        for directory in (f"{path}/{LOG}", path):
            disk.sync_directory(directory)
        self._notes.add(step="done", n=len(self.all))


def segments(disk: engine.Disk, path: str) -> list[int]:
    names = disk.names(f"{path}/{LOG}")
    return sorted(lsn for name in names if (lsn := engine.segment_lsn(name)) is not None)


def _link(disk: engine.Disk, source: str, target: str) -> None:
    """Give a file a second name, unless an earlier, interrupted try has done so."""
    if disk.status(target) is None and disk.status(source) is not None:
        disk.link(source, target)


# -- small files of lines: sealed segments, declared breaks ----------------------------------------


class Notes:
    """Lines of JSON, each durable when ``add`` returns.

    Attributes:
        lines: all lines, oldest first.
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
        if not self._size:  # a new file
            disk.sync_directory(self._path.rpartition("/")[0])
        self._size += len(line)
        self.lines.append(values)


_START: Final = engine.Replica.START
#: File of a frame that arrives in pieces, and the size of a frame's header.
_PIECES: Final = "pieces"
_FRAME_HEAD: Final = 56
#: A copy notes its durable end after this growth. An opening after a crash reads, and writes once
#: more, at most this number of bytes.
MARK_BYTES: Final = 4 * 1024 * 1024


class Copy:
    """One copy for its only writer. After an ``OSError`` the copy must be opened again.

    Attributes:
        at: end of the last durable frame; NOWHERE if empty. Offset 0: the copy waits, after a gap,
            for this segment.
        gaps: declared gaps.
        identity: identity of the log.
    """

    def __init__(
        self, disk: engine.Disk, path: str, log_id: UUID, mark: Hint, mark_bytes: int = MARK_BYTES
    ) -> None:
        self._disk, self._path = disk, path
        self._mark, self._mark_bytes = mark, mark_bytes
        self._marked = models.NOWHERE
        self._incompat: frozenset[str] = frozenset()
        self.gaps = Gaps(disk, path, mark.remove)
        self._seals = Notes(disk, f"{path}/{SEALS}")
        self.identity = lineage(disk, path, log_id)
        self._files = engine.Replica(disk, path, self.identity, writable=True)
        self.at = models.NOWHERE
        #: end before a beginning segment, by the segment's header
        self._ended = models.NOWHERE
        #: position before a frame that arrives in pieces, and number of its bytes so far
        self._pieces = models.NOWHERE, 0
        #: segments that the device must send again, with the notes of their seals
        self._lacks: dict[int, dict[str, Any]] = {}
        self._find_end()

    def close(self) -> None:
        self._files.forget()

    def rest(self) -> None:
        """Note the durable end, so that the next opening need not check it, and close the files."""
        if self.at.frame and self._marked != self.at:
            self._note_durable(self.at)
        self.close()

    def _find_end(self) -> None:
        disk, files, log = self._disk, self._files, f"{self._path}/{LOG}"
        files.forget()
        disk.remove(f"{self._path}/{_PIECES}")  # pieces may be torn
        for name in disk.names(log):
            if name.endswith(".tmp"):
                disk.remove(f"{log}/{name}")
        files.refresh()
        seals = {line["segment"]: line for line in self._seals.lines}
        self.at = self.gaps.all[-1].at if self.gaps.all else models.NOWHERE
        if files.lsns:
            self.at = self._secured(files.lsns[-1])
        self._lacks = {segment: seals[segment] for segment in self._lacking(seals)}
        if self._marked != self.at or not self.at.frame:
            # An earlier process may have been killed between a rename and its fsync.
            for directory in (log, self._path):
                disk.sync_directory(directory)

    def _size(self, segment: int) -> int:
        status = self._disk.status(self._files.file_path(segment))
        return 0 if status is None else status[2]

    def _lacking(self, seals: dict[int, dict[str, Any]]) -> Iterator[int]:
        lsns = self._files.lsns or [0]
        asked = {*self._disk.names(f"{self._path}/{AGAIN}/{LOG}")}
        for segment, line in seals.items():
            if lsns[0] <= segment <= lsns[-1]:
                is_short = segment < lsns[-1] and self._size(segment) < line["end"][1]
                if is_short or engine.segment_name(segment) in asked:
                    yield segment

    @property
    def lacks(self) -> tuple[tuple[int, int], ...]:
        some = islice(self._lacks.items(), models.AGAIN_MAX)
        return tuple((segment, line["end"][1]) for segment, line in some)

    def _secured(self, segment: int) -> engine.Border:
        files, noted = self._files, self._mark.read()
        mark = engine.Border.from_list(noted) if noted else models.NOWHERE
        if mark.segment != segment or not files.has(mark):
            mark = models.NOWHERE
            if noted:  # the same frames may arrive again: then the old mark would be wrong
                self._mark.remove()
        self._marked = mark
        if mark.frame and files.size(segment) == mark.offset:  # no growth since the mark
            return mark
        return files.secured(segment, mark)

    def learn(self, incompat: frozenset[str]) -> None:
        """Note features of the log before a frame needs them.

        Features that are unknown here concern only readers; frames are checked without them.
        """
        if self._incompat >= incompat:
            return
        values = json.loads(content(self._disk, f"{self._path}/{IDENTITY}"))
        features, known = values["features"], frozenset(values["features"]["incompat"])
        if len(known | incompat) > models.FEATURES_MAX:
            raise OSError(errno.EDQUOT, f"a log has at most {models.FEATURES_MAX} features")
        if not known >= incompat:
            features["incompat"] = sorted(known | incompat)
            data = json.dumps(values, indent=2).encode() + b"\n"
            engine.replace_file(self._disk, f"{self._path}/{IDENTITY}", data)
        self._incompat = known | incompat

    @property
    def begins(self) -> int:
        sealed = [line["segment"] for line in self._seals.lines[:1]]
        return min([*sealed, *self._files.lsns[:1]], default=0)

    def safe(self, before_ns: int) -> int:
        return min(first_young(self._disk, self._files, before_ns), self.at.next_lsn)

    def let_go(self, old: list[str]) -> None:
        """Remove files that ``due`` returned: segments one at a time, oldest first."""
        for name in old:
            folder, _, file = name.rpartition("/")
            lsn = engine.segment_lsn(file) if folder == LOG else None
            if lsn is not None:  # the rest is a valid log at any moment
                self._files.let_go(lsn)
            else:
                self._disk.remove(f"{self._path}/{name}")
                self._disk.sync_directory(f"{self._path}/{folder}")

    def has(self, at: engine.Border) -> bool:
        return self._files.has(at)

    # -- growing ----------------------------------------------------------------------------------

    def append(self, asked: models.Append) -> models.Stored:
        """Append all whole frames of the bytes, and keep the piece of a larger frame."""
        after, at, data = asked.after, self.at, asked.data
        if not after.offset and after.segment in self._lacks:
            return models.Stored(self.at, self._joined_segment(asked))
        if after.offset:
            fits = after == at
        else:
            is_awaited = at.segment in (0, after.segment) and not at.offset
            fits = is_awaited or (at.offset > 0 and after.segment > at.segment)
        if not fits:
            raise models.Refusal(models.Trouble.MISMATCH, at)
        end, is_well = (after, True) if asked.held else self._whole(asked, data)
        if data and is_well and end == after:
            data = self._joined(asked)
            if not data:
                return models.Stored(at, self._pieces[1])
            end, is_well = self._whole(asked, data)
        if end != after:
            if not after.offset:
                self._note_end(self._ended)
            # A view, not a copy: a disk takes any buffer.
            self._files.add(cast("bytes", memoryview(data)[: end.offset - after.offset]), after)
            self._stored(end)
        if not is_well:
            raise models.Refusal(models.Trouble.DAMAGED, end)
        return models.Stored(self.at)

    def _whole(self, asked: models.Append, data: bytes) -> tuple[engine.Border, bool]:
        after = asked.after
        if after.offset:
            header = after.header
            return self._files.whole(data, 0, after, 0 if header is None else header.epoch)
        if len(data) < _START:
            return after, True
        epoch = self._begin(asked, data[:_START])
        return self._files.whole(data, _START, after, epoch)

    def _joined(self, asked: models.Append) -> bytes:
        """Keep a piece of a frame; return the joined pieces once the frame is whole.

        Pieces survive a broken line, but not a crash of the hub: they are not synced.
        """
        disk, start = self._disk, 0 if asked.after.offset else _START
        size = self._pieces[1] if self._pieces[0] == asked.after else 0
        if asked.held <= size:
            with opened(disk, f"{self._path}/{_PIECES}", create=True) as file:
                after = asked.held + len(asked.data)
                if after > size or disk.read(file, len(asked.data), asked.held) != asked.data:
                    engine.write_all(disk, file, asked.data, asked.held)
                    size = after
                head = disk.read(file, _FRAME_HEAD, start)
                body = int.from_bytes(head[4:8], "little")
                if size >= (start + _FRAME_HEAD + body + 7) & ~7:
                    self._pieces = models.NOWHERE, 0
                    return disk.read(file, size, 0)
        self._pieces = asked.after, size
        return b""

    def _begin(self, asked: models.Append, data: bytes) -> int:
        """Begin a segment that continues the copy; return its epoch.

        Its header names the end of the segment before it. Later bytes of that segment stay there:
        a recovery of the device moved them, and they arrive again in the new segment.
        """
        at, header = self.at, self._files.header_in(asked.after.segment, data)
        if header is None:
            raise models.Refusal(models.Trouble.DAMAGED, at)
        end = self._files.end_before(at, header, asked.before) if at.frame else models.NOWHERE
        if end is None:
            # The device has no frame between this end and the segment: it lost a segment.
            is_lost = at.stem.hex() == asked.before
            trouble = models.Trouble.DAMAGED if is_lost else models.Trouble.MISMATCH
            raise models.Refusal(trouble, at)
        self._ended = end
        return header.epoch

    def _note_end(self, end: engine.Border) -> None:
        if end.frame and all(line["end"] != end.as_list() for line in self._seals.lines):
            self._seals.add(segment=end.segment, end=end.as_list())

    def _stored(self, at: engine.Border) -> None:
        self.at = at
        marked = self._marked
        if at.offset - (marked.offset if marked.segment == at.segment else 0) >= self._mark_bytes:
            self._note_durable(at)

    def _note_durable(self, at: engine.Border) -> None:
        self._mark.write(at.as_list())
        self._marked = at

    def declare(self, asked: models.Declare) -> models.Stored:
        """Set the present segments aside; the log continues after a gap."""
        if self.gaps.knows(asked):
            return models.Stored(self.at)
        at = asked.at
        if asked.left != self.at or at.offset or at.segment <= self.at.segment:
            raise models.Refusal(models.Trouble.MISMATCH, self.at)
        self._files.forget()
        self.gaps.declare(asked)
        self._seals = Notes(self._disk, f"{self._path}/{SEALS}")
        self._find_end()
        return models.Stored(self.at)

    def _joined_segment(self, asked: models.Append) -> int:
        """Add a piece of a repeated sealed segment; return its size so far, 0 once it is whole.

        The pieces have a file of their own until the whole segment passes its checks. The checks
        find torn pieces, so nothing is synced before.
        """
        disk, segment = self._disk, asked.after.segment
        target, size = self._files.file_path(segment), self._lacks[segment]["end"][1]
        folder = f"{self._path}/{AGAIN}/{LOG}"
        part = f"{folder}/{target.rpartition('/')[2]}"
        disk.make_directory(folder)
        with opened(disk, part, create=True) as file:
            if (has := disk.size(file)) == asked.held:
                engine.write_all(disk, file, asked.data, has)
                has += len(asked.data)
            if has < size:
                return has
            again = engine.Replica(disk, f"{self._path}/{AGAIN}", self.identity)
            is_whole = again.is_whole(segment, has)
            again.forget()
            if not is_whole:
                disk.remove(part)
                return 0
            disk.sync(file)
        disk.rename(part, target)
        for directory in (target.rpartition("/")[0], folder, self._path):
            disk.sync_directory(directory)
        self._find_end()
        return 0


#: Copies kept in memory; others are opened at their next request.
_COPIES_MAX: Final = 1_000
#: Logs of one device; each shard, restore and reinstallation adds one.
_LOGS_MAX: Final = 256


class Copies:
    """The copies of all devices; no other process writes to them.

    Threads may work on different devices at once, but only one thread on each device.

    Args:
        make_disk: makes a new disk for each copy.
        path: the hub's directory.
        registry: keeps the durable end of each copy, or None.
        mark_bytes: as for ``Copy``.

    Raises (any method):
        OSError: a disk operation failed; nothing of the request was acknowledged.
        LogError: a copy cannot be read.
    """

    def __init__(
        self,
        make_disk: Callable[[], engine.Disk],
        path: str,
        registry: Registry | None = None,
        mark_bytes: int = MARK_BYTES,
    ) -> None:
        self._registry = registry or Registry()
        self._make_disk = make_disk
        self._mark_bytes = mark_bytes
        self._path = path
        self._copies: dict[tuple[str, UUID], Copy] = {}
        self._floors: dict[tuple[str, UUID], CompactionFloor] = {}
        self._guard = threading.Lock()
        #: newest session of each log; sessions of an earlier process are superseded
        self._sessions: dict[tuple[str, UUID], int] = {}
        self._first_session = random.SystemRandom().getrandbits(48)

    def close(self) -> None:
        for copy in self._copies.values():
            copy.rest()
        self._copies.clear()

    def answer(self, device: str, asked: models.Request) -> models.Answer:
        """Carry out a request of a device."""
        begins = asked if isinstance(asked, models.Sync) else None
        if not begins and not self.is_latest(device, asked):
            return models.Refused(models.Trouble.SUPERSEDED, models.NOWHERE)
        try:
            with self._held(device, asked.log_id, begins) as copy:
                if copy is None:
                    return models.Refused(models.Trouble.SUPERSEDED, models.NOWHERE)
                return self._answered(device, copy, asked)
        except models.Refusal as refusal:
            return refusal.answer

    def is_latest(self, device: str, asked: Any) -> bool:
        is_latest: bool = self._sessions.get((device, asked.log_id)) == asked.session
        return is_latest

    @contextlib.contextmanager
    def _held(
        self, device: str, log_id: UUID, begins: models.Sync | None = None
    ) -> Iterator[Copy | None]:
        """Hold a copy exclusively for the block; the beginning of a session creates one.

        At any time thousands of devices are quiet. They keep no file open, and most use no memory.
        """
        key = device, log_id
        copy = self._copies.pop(key, None) or self._opened(device, log_id)
        if copy is None and begins is not None:
            copy = self._make(device, begins)
        try:
            yield copy
        except OSError:
            if copy is not None:
                copy.close()
            copy = None  # the next request reads the files again
            with contextlib.suppress(OSError, LogError):
                self._opened(device, log_id)  # cuts off a torn frame
            raise
        finally:
            if copy is not None:
                self._put_back(key, copy)

    def _put_back(self, key: tuple[str, UUID], copy: Copy) -> None:
        copy.close()
        with self._guard:
            self._copies[key] = copy
            is_full = len(self._copies) > _COPIES_MAX
            quiet = self._copies.pop(next(iter(self._copies))) if is_full else None
        if quiet is not None:
            quiet.rest()

    def _answered(self, device: str, copy: Copy, asked: Any) -> models.Answer:
        if isinstance(asked, models.Sync):
            return self._begin(device, copy, asked)
        if isinstance(asked, models.Ask):
            kin = self._kin(device, copy)
            has = (copy.has(at) or any(other.has(at) for other in kin) for at in asked.places)
            return models.PlacesKnown(tuple(has))
        if isinstance(asked, models.Leave):
            self._registry.leave(device, asked.log_id)
            return models.Stored(copy.at)
        # If a log grows after its device left it, another machine has this token.
        if self._registry.holds(device, asked.log_id):
            return models.Refused(models.Trouble.HELD, models.NOWHERE)
        if isinstance(asked, models.Declare):
            return copy.declare(asked)
        return copy.append(asked)

    def _begin(self, device: str, copy: Copy, asked: models.Sync) -> models.CopyEnd:
        key = device, asked.log_id
        # Only logs with a copy are remembered.
        session = self._sessions[key] = self._sessions.get(key, self._first_session) + 1
        copy.learn(asked.incompat)
        kin, end = self._kin(device, copy), asked.end
        for other in kin:  # their late requests may bring other records with the same lsns
            if (named := (device, other.log_id)) in self._sessions:
                self._sessions[named] += 1
        ends = [copy.at, *(other.last_of(copy.identity) for other in kin)]
        last = max(ends, key=lambda end: end.next_lsn)
        has_end = not end.segment or copy.has(end) or any(other.has(end) for other in kin)
        safe = copy.safe(self._registry.now_ns() - asked.grace_seconds * SECOND_NS)
        return models.CopyEnd(
            session, copy.at, has_end, copy.begins, safe, copy.lacks,
            models.NOWHERE if last is copy.at else last,
        )  # fmt: skip

    def _kin(self, device: str, copy: Copy) -> list[CopyFiles]:
        """Return the copies of parents and children with records that this copy still lacks.

        A record has one log id and lsn in all copies, so it is the same in all of them.
        """
        kin, own, next_lsn = list[CopyFiles](), copy.identity, copy.at.next_lsn
        for other in kept(self._path, device, self._make_disk()):
            if other.log_id == own.log_id or not other.is_there:
                continue
            with contextlib.suppress(LogError):  # a damaged copy must not stop other logs
                if other.identity.owner(next_lsn).log_id == own.owner(next_lsn).log_id:
                    kin.append(other)
        return kin

    def all(self) -> list[CopyFiles]:
        """Return the copies of all devices that can be read."""
        copies: list[CopyFiles] = []
        disk = self._make_disk()
        for device in devices(self._path, disk):
            try:
                copies += kept(self._path, device, disk)
            except OSError as error:
                _log.warning("hub: the copies of %s are left out: %s", device, error)
        return copies

    def keep(self, copy: CopyFiles, before_ns: int) -> list[str]:
        """Remove the files that ``due`` returns; return their names."""
        key = copy.device, copy.log_id
        if copy.is_in_gap:
            with self._held(*key):
                """It is opened."""
        gone, self._floors[key] = due(copy, before_ns, self._floors.get(key, CompactionFloor()))
        if gone:
            with self._held(*key) as held:
                if held is not None:
                    held.let_go(gone)
            self.forget(*key)
        return gone

    def forget(self, device: str, log_id: UUID) -> None:
        copy = self._copies.pop((device, log_id), None)
        if copy is not None:
            copy.close()

    def _opened(self, device: str, log_id: UUID) -> Copy | None:
        place = CopyFiles(self._make_disk(), self._path, device, log_id)
        if not place.is_there:
            return None
        mark = self._registry.durable(device, log_id)
        return Copy(place.disk, place.path, log_id, mark, self._mark_bytes)

    def _make(self, device: str, asked: models.Sync) -> Copy:
        disk = self._make_disk()
        path = CopyFiles(disk, self._path, device, asked.log_id).path
        if len(disk.names(path.rpartition("/")[0])) >= _LOGS_MAX:
            raise OSError(
                errno.EDQUOT,
                f"this device has sent {_LOGS_MAX} logs, as many as it may: give it another name "
                f"with 'taskq hub enroll HUB OTHER'",
            )
        disk.make_directory(f"{path}/log")
        above = path
        while len(above) >= len(self._path):
            disk.sync_directory(above)
            above = above.rpartition("/")[0]
        named = asked.log_id, asked.created_ns, asked.incompat, asked.parents
        values = json.loads(engine.Identity.of_replica(*named).encode())
        others = in_order(kept(self._path, device, disk))
        values[CAME] = 1 + max((other.came for other in others), default=0)
        # The identity is written after its directories are durable.
        engine.replace_file(disk, f"{path}/{IDENTITY}", json.dumps(values).encode())
        copy = self._opened(device, asked.log_id)
        assert copy is not None
        return copy
