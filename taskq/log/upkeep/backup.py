"""Copies of a log: backups, restored logs, excerpts, repaired logs and forks."""

from __future__ import annotations

import itertools
import json
import operator
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from taskq.core import errors, kinds, model, views
from taskq.core.records import PACKED, Body, Flag
from taskq.core.values import NamedTuple, dataclass
from taskq.log.config import LogConfig
from taskq.log.format import codec, frames
from taskq.log.format.carried import decode_carried, encode_carried
from taskq.log.format.options import without_body, without_secret_headers
from taskq.log.format.record import places
from taskq.log.format.salvage import salvage
from taskq.log.journal import lock, recovery
from taskq.log.journal.journal import Journal
from taskq.log.machine import access, peers, ports
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.owners import owner_view
from taskq.log.machine.system import system
from taskq.log.read.reader import LogReader, concerned_jobs, describe_damage, everything
from taskq.log.segments.identity import (
    BACKUP,
    FILE,
    REPLICA,
    Cut,
    Identity,
    read_identity,
    write_identity,
)
from taskq.log.segments.segments import SegmentGone, encode_segment, write_segment
from taskq.text import hidden

#: Most tries while compaction removes segments to copy.
_TRIES: Final = 8
_PIECE_BYTES: Final = 1024 * 1024
_TEMPORARY: Final = ".tmp"
#: Suffix of a whole file before all files of the backup are whole.
NEW: Final = ".new"
#: List of the files of a complete backup, before they get their names.
_LIST: Final = "backup.json"
_LOCK: Final = "backup.lock"
#: Other files of a log by folder: positions of readers.
_FOLDERS: Final = {"readers": re.compile(r".+\.place")}
_SEGMENT_FILE: Final = re.compile(r"[0-9]{20}\.(log|idx)")
#: Files that a directory may have before it becomes a backup.
_OURS: Final = frozenset(
    {_LOCK, "log", *_FOLDERS}
    | {name + rest for name in (FILE, _LIST) for rest in ("", _TEMPORARY, NEW, NEW + _TEMPORARY)}
    - {FILE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """Content of a backup or a restored log, and the copied part of it."""

    log_id: str
    #: all records below this lsn
    next_lsn: int
    segments: int
    #: segments that were copied; others were there already
    copied: int
    copied_bytes: int


class End(NamedTuple):
    """Part of a log that a backup has."""

    segments: tuple[int, ...]
    #: bytes of the last segment
    offset: int
    next_lsn: int


class _Vanished(Exception):
    """A file to copy is gone: the log has moved on."""


def back_up(path: str, target: str) -> BackupReport:
    """Copy the log of a directory while processes work with it.

    The copy includes all jobs acknowledged before the call.

    A backup is a directory like a log's, which read commands open and no process writes to. It has
    the log up to one frame. All segments except the last never change, so a backup copies each of
    them once. If compaction removes a segment meanwhile, it was rewritten after the frame at which
    the backup began, so the backup begins anew.

    Files of an older backup stay unchanged until all new files are whole and on disk, under names
    that end in ``.new``. Then ``backup.json`` lists them, and they get their final names. The next
    backup or restore that finds the list finishes this first. So a backup that is interrupted at
    any step is the older one, or the new one.

    Args:
        path: the log's directory.
        target: the backup's directory, which is made, or brought up to date if it is of this log.

    Raises:
        LogError: the log lacks segments or failed, or the target is something else.
    """
    disk = LocalDisk()
    source, target = map(system.resolved, (path, target))
    _refuse_nested(source, target)
    try:
        with LogReader.open(source) as reader:
            _check_target(disk, target, reader.log_id.bytes)
        if not Path(target).exists():
            access.enter(target, None)
        with _alone(disk, target):
            return Copier(disk, source, target).run()
    except OSError as error:
        raise errors.refusal(target, error) from error


def _refuse_nested(source: str, target: str) -> None:
    if os.path.commonpath([source, target]) in {source, target}:
        raise errors.LogError(f"{target} and {source} lie within each other: name another place")


def restore(path: str, target: str, copier: type[Copier] | None = None) -> BackupReport:
    """Make a new log from a backup, with the lost log as its parent.

    Jobs of the backup keep their ids; later jobs have ids of the new log.

    Args:
        path: the backup's directory, or the directory of a log that no process has open.
        target: the new log's directory, which must be empty or missing.
        copier: class that copies it; the default needs an undamaged backup.

    Returns:
        BackupReport: with the id of the new log.

    Raises:
        LogError: there is no backup, or the target is not empty.
    """
    disk = LocalDisk()
    source, target = map(system.resolved, (path, target))
    if Path(target).exists() and any(Path(target).iterdir()):
        raise errors.LogError(f"{target} is not empty: restore to a new directory")
    _refuse_nested(source, target)
    try:
        _complete(disk, source)
        if read_identity(disk, source) is None:
            raise errors.LogError(f"{source} is not a task log")
        access.enter(target, None)
        report = (copier or Copier)(disk, source, target).run()
        identity = read_identity(disk, target)
        assert identity is not None
        bare = identity.read_only - {REPLICA, BACKUP}
        write_identity(disk, target, identity._replace(read_only=bare, lock=None))
        disk.sync_directory(target)
        with _written(disk, target) as journal:  # like every copy it becomes another log
            return replace(report, log_id=str(journal.identity.log_id))
    except OSError as error:
        raise errors.refusal(target, error) from error


@contextmanager
def _written(disk: ports.Disk, path: str) -> Iterator[Journal]:
    """Open a log for writing, and hold its lock."""
    writer = lock.WriterLock(disk, path, os.getpid())
    journal = Journal(disk, SystemClock(), path, LogConfig(), writer)
    try:
        journal.open()
        yield journal
    finally:
        journal.close()


def fork(path: str, at: int) -> Identity:
    """Turn a log into another log, whose records from an lsn on are its own.

    It is for a directory whose file system was set back to an earlier state. No file shows that,
    but the owner of a copy finds other records there. Records before ``at`` stay the former log's,
    the parent's. Records from ``at`` on are rewritten with their numbers as the new log's, so the
    ids of their jobs change.

    Processes that have the log open, including this one, get LogGone and write nothing more. A
    process that is killed meanwhile leaves the former log, or a fork that the next opener for
    writing finishes.

    Args:
        path: the log's directory.
        at: an lsn between two frames of the log, such as ``Border.next_lsn`` of the last common
            frame.

    Raises:
        LogError: the log does not have the records around ``at``, or the disk refused.
    """
    try:
        with _written(LocalDisk(), system.resolved(path)) as journal:
            return fork_journal(journal, at)
    except OSError as error:
        raise errors.refusal(path, error) from error


def fork_journal(journal: Journal, at: int) -> Identity:
    """Fork a log whose lock is held; see ``fork``."""
    files, disk = journal.files, journal.disk
    if not files.lsns or not files.lsns[0] <= at <= journal.next_lsn:
        oldest = files.lsns[0] if files.lsns else 1
        raise errors.LogError(
            f"{journal.path} cannot be forked at {at}: its records are {oldest} to "
            f"{journal.next_lsn - 1}"
        )
    child = journal.identity.child(at, journal.clock.wall_ns())
    first = max((lsn for lsn in files.lsns if lsn <= at), default=at)
    offset, link = _cut_at(journal, first, at)
    kept, is_cut = offset > codec.SEGMENT_HEADER.size, offset < files.size(first)
    segments: list[int] = []
    for source in [lsn for lsn in files.lsns if lsn >= first]:
        lsn = max(source, at)
        header = _segment_header(journal, source)._replace(
            first_lsn=lsn, log_id=child.log_id.bytes, link=link
        )
        place = f"{files.file_path(lsn)}{recovery.FORKED}"
        _, end = write_segment(disk, place, header, _readable(journal, source, header, at))
        if end == codec.NO_LINK:
            disk.remove(place)
        else:
            segments.append(lsn)
            link = end
    disk.sync_directory(f"{journal.path}/log")
    cut = Cut(first if kept and is_cut else 0, offset, tuple(segments))
    journal.go_on_from(child._replace(cut=cut))
    return journal.identity


def _cut_at(journal: Journal, segment: int, at: int) -> tuple[int, codec.Link]:
    """Return the offset of a segment's records from an lsn on, and the link to the frame before."""
    last, offset = 0, codec.SEGMENT_HEADER.size
    for _, item in _items(journal, segment):
        if item.first_lsn >= at:
            break
        if item.next_lsn > at:
            raise errors.LogError(
                f"{journal.path} cannot be forked at {at}: that is within a frame"
            )
        offset = item.end
        last = item.offset if isinstance(item, frames.Frame) else last
    return offset, recovery.link_to(journal.files, segment, last)


def _check_target(disk: ports.Disk, target: str, log_id: bytes) -> None:
    if not Path(target).exists():
        return
    identity = read_identity(disk, target)
    if identity is None:
        strange = set(disk.names(target)) - set(_OURS)
        if strange:
            raise errors.LogError(
                f"{target} holds what is no backup ({min(strange)}): name another place"
            )
    elif BACKUP not in identity.read_only:
        raise errors.LogError(f"{target} is a task log and no backup: name another place")
    elif identity.log_id.bytes != log_id:
        raise errors.LogError(f"{target} is the backup of another log: name another place")


def _put_in_place(disk: ports.Disk, target: str) -> None:
    with ports.opened(disk, f"{target}/{_LIST}", write=False) as descriptor:
        listed = json.loads(disk.read(descriptor, disk.size(descriptor), 0))
    for name in listed["new"]:
        if disk.status(f"{target}/{name}{NEW}"):
            disk.rename(f"{target}/{name}{NEW}", f"{target}/{name}")
    folders = {"log": _SEGMENT_FILE, **_FOLDERS}
    for folder in (*folders, "."):
        disk.sync_directory(f"{target}/{folder}")
    kept = frozenset(listed["files"])
    for folder, pattern in folders.items():
        for name in disk.names(f"{target}/{folder}"):
            bare = name.removesuffix(_TEMPORARY).removesuffix(NEW)
            if pattern.fullmatch(bare) and (bare != name or f"{folder}/{name}" not in kept):
                disk.remove(f"{target}/{folder}/{name}")
        disk.sync_directory(f"{target}/{folder}")
    disk.remove(f"{target}/{_LIST}")
    disk.sync_directory(target)


def _complete(disk: ports.Disk, path: str) -> None:
    """Finish a backup that was interrupted while its files got their names."""
    if not disk.status(f"{path}/{_LIST}"):
        return
    try:
        with _alone(disk, path):
            _put_in_place(disk, path)
    except OSError as error:
        raise errors.LogError(
            f"{path}: a backup to it was cut short, and the rest cannot be done "
            f"({error.strerror or error}): make it writable, or back up to it again"
        ) from error


@contextmanager
def _alone(disk: ports.Disk, target: str) -> Iterator[None]:
    with ports.opened(disk, f"{target}/{_LOCK}", create=True) as descriptor:
        if not disk.try_lock(descriptor):
            raise errors.LogError(f"{target}: another backup to it is going on")
        yield


class Copier:
    """A copy of one log."""

    def __init__(self, disk: ports.Disk, source: str, target: str) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._copied = self._bytes = 0
        #: files of the copy, and its new files
        self._files: list[str] = []
        self._new: list[str] = []

    def run(self) -> BackupReport:
        for folder in ("log", *_FOLDERS):
            self._disk.make_directory(f"{self._target}/{folder}")
        if self._disk.status(f"{self._target}/{_LIST}"):
            _put_in_place(self._disk, self._target)
        for _ in range(_TRIES):
            self._files, self._new = [], []
            try:
                end = self._once()
            except (_Vanished, SegmentGone):
                continue
            return self._published(end)
        raise errors.LogError(
            f"{self._source}: compaction takes segments faster than they are copied"
        )

    def _once(self) -> End:
        # Before the end is read: a reader that moved on later would be beyond it.
        self._folder("readers", self._names("readers"))
        # A reader lists the segments again, past its end, if compaction removes some meanwhile.
        first = self._first()
        with LogReader.open(self._source) as reader:
            end = self._end(reader)
        for lsn in end.segments[:-1]:
            self._sealed(lsn)
        if end.segments:
            self._copied += 1
            self._copy(f"log/{end.segments[-1]:020d}.log", end.offset)
        if self._first() != first:
            raise _Vanished
        return end

    def _end(self, reader: LogReader) -> End:
        journal = reader.journal
        if journal.lost:
            raise errors.LogError(
                f"{journal.lost[0].explain(self._source)}. An older backup is left as it is"
            )
        position = journal.end()
        segments = tuple(lsn for lsn in journal.files.lsns if lsn <= position.segment)
        strange = [lsn for lsn in self._segments() if segments and lsn > segments[-1]]
        if strange:
            raise errors.LogError(
                f"{self._target} holds segment {strange[0]}, which the log does not have any more: "
                f"back up to another place"
            )
        return End(segments, position.offset, journal.next_lsn)

    def _sealed(self, lsn: int) -> None:
        """Copy a finished segment with its index, unless the copy has them."""
        name = f"log/{lsn:020d}"
        self._copied += self._copy_unless_there(f"{name}.log")
        # A missing index is built again, so it need not be copied.
        if self._disk.status(f"{self._source}/{name}.idx"):
            self._copy_unless_there(f"{name}.idx")

    def _folder(self, folder: str, names: list[str]) -> None:
        for name in names:
            self._copy(f"{folder}/{name}")

    def _published(self, end: End) -> BackupReport:
        disk, target = self._disk, self._target
        identity = read_identity(disk, self._source)
        if identity is None:
            raise errors.LogError(f"{self._source} is not a task log any more")
        ports.write_file(disk, f"{target}/{FILE}{NEW}", identity.as_backup().encode())
        for folder in ("log", *_FOLDERS):
            disk.sync_directory(f"{target}/{folder}")
        disk.sync_directory(target)
        listed = {"files": self._files, "new": [*self._new, FILE]}
        ports.write_file(disk, f"{target}/{_LIST}{_TEMPORARY}", json.dumps(listed).encode())
        disk.rename(f"{target}/{_LIST}{_TEMPORARY}", f"{target}/{_LIST}")
        disk.sync_directory(target)
        _put_in_place(disk, target)
        return BackupReport(
            log_id=str(identity.log_id),
            next_lsn=end.next_lsn,
            segments=len(end.segments),
            copied=self._copied,
            copied_bytes=self._bytes,
        )

    # -- files ------------------------------------------------------------------------------------

    def _names(self, folder: str) -> list[str]:
        wanted: Callable[[str], object] = _FOLDERS[folder].fullmatch
        return [name for name in self._disk.names(f"{self._source}/{folder}") if wanted(name)]

    def _segments(self) -> list[int]:
        names = self._disk.names(f"{self._target}/log")
        return sorted(lsn for name in names if (lsn := frames.segment_lsn(name)) is not None)

    def _first(self) -> int:
        names = self._disk.names(f"{self._source}/log")
        return min(filter(None, map(frames.segment_lsn, names)), default=0)

    def _copy_unless_there(self, name: str) -> bool:
        if self._is_there(name, name):
            self._files.append(name)
            return False
        if self._is_there(name, name + NEW):  # left by an earlier, interrupted backup
            self._files.append(name)
            self._new.append(name)
            return False
        self._copy(name)
        return True

    def _is_there(self, name: str, copy: str) -> bool:
        """Return whether the file was copied whole, and not rewritten since."""
        ours, theirs = f"{self._target}/{copy}", f"{self._source}/{name}"
        there, wanted = self._disk.status(ours), self._disk.status(theirs)
        if there is None or wanted is None or there[2] != wanted[2]:
            return False
        return (self._disk.modified_ns(theirs) or 0) <= (self._disk.modified_ns(ours) or 0)

    def _copy(self, name: str, size: int | None = None) -> None:
        """Copy a file, or its first bytes, to a new file that is whole and on disk.

        Raises:
            _Vanished: it no longer exists.
        """
        disk, place = self._disk, f"{self._target}/{name}{NEW}"
        try:
            read = disk.open(f"{self._source}/{name}", write=False)
        except FileNotFoundError:
            raise _Vanished from None
        try:
            with ports.opened(disk, place + _TEMPORARY, create=True) as write:
                disk.truncate(write, 0)
                done = 0
                while size is None or done < size:
                    count = _PIECE_BYTES if size is None else min(_PIECE_BYTES, size - done)
                    piece = disk.read(read, count, done)
                    if not piece:
                        break
                    ports.write_all(disk, write, piece, done)
                    done += len(piece)
                disk.sync(write)
        finally:
            disk.close(read)
        disk.rename(place + _TEMPORARY, place)
        self._note(name)
        self._bytes += done

    def _note(self, name: str) -> None:
        self._files.append(name)
        self._new.append(name)


_OF_JOBS: Final = kinds.OF_JOBS - kinds.CARRYING
_WITH_REASON: Final = kinds.kinds_that(lambda row: row.body is Body.REASON)
_WITH_RESULT: Final = kinds.kinds_that(lambda row: row.body is Body.RESULT)
#: A record that every fold skips, in place of a record of an earlier job.
_LEFT_OUT: Final = codec.PREFIX.pack(codec.PREFIX.size, 255, 0, 0, 0)


class Excerpt(NamedTuple):
    """A segment of an excerpt."""

    #: of its file
    name: str
    data: bytes


def excerpt(
    journal: Journal, since_ns: int, *, bodies: bool, hides: bool = False
) -> Iterator[Excerpt]:
    """Yield the frames from a moment on, as segments that every reader can verify.

    Lsns, epochs, times and job ids are the log's. Records of jobs from before the moment are left
    out, since the excerpt lacks their beginnings.

    Args:
        journal: the log, open for reading.
        since_ns: frames before it are left out.
        bodies: whether payloads and results are included; reasons of failures always are.
        hides: remove values with secret names from headers and reasons.
    """
    known: set[int] = set()
    link = codec.NO_LINK
    kept = (
        (journal.files.segment_at(base), item)
        for base, item in everything(journal)
        if isinstance(item, frames.Frame) and item.header.time_ns >= since_ns
    )
    for segment, items in itertools.groupby(kept, key=operator.itemgetter(0)):
        _, first = next(items)
        lsn = first.header.first_lsn if link == codec.NO_LINK else segment
        head = codec.SegmentHeader(
            lsn, first.header.epoch, journal.files.owner(lsn), first.header.time_ns, link
        )
        bodies_of = (
            (frame.header, b"".join(_records(frame, known, bodies=bodies, hides=hides)))
            for frame in itertools.chain((first,), (frame for _, frame in items))
        )
        parts = list(encode_segment(head, bodies_of))
        link = parts[-1][1]
        yield Excerpt(frames.segment_name(lsn), b"".join(data for data, _ in parts))


def _records(frame: frames.Frame, known: set[int], *, bodies: bool, hides: bool) -> list[bytes]:
    records = []
    for lsn, at, length in places(frame):
        record = frame.data[at : at + length]
        kind = record[codec.KIND_AT]
        if kind == kinds.BIRTH:
            known.add(lsn)
        elif kind in kinds.CARRYING:
            known.add(decode_carried(record).job)
        elif kind in _OF_JOBS and codec.JOB.unpack_from(record)[6] not in known:
            records.append(_LEFT_OUT)
            continue
        record = record if bodies else _bare(record, kind, lsn)
        records.append(_discreet(record, kind, lsn) if hides else record)
    return records


def _discreet(record: bytes, kind: int, lsn: int) -> bytes:
    if kind == kinds.BIRTH:
        parts = codec.decode_born(record)
        options = without_secret_headers(parts.options)
        return codec.encode_born(parts._replace(options=options), lsn)
    if kind in kinds.CARRYING:
        carried = decode_carried(record)
        body = carried.body
        if body is not None and carried.state is model.State.DEAD:
            body = hidden(body.decode(errors="replace")).encode()
        born = _discreet(carried.born, kinds.BIRTH, carried.job)
        return encode_carried(kind, carried._replace(born=born, body=body), lsn)
    length, _, _, size, flags = codec.PREFIX.unpack_from(record)
    if kind in _WITH_REASON and flags & Flag.CHECKED:
        at = codec.FIXED_SIZES[kind] + size
        reason = record[at : length - codec.CRC_SIZE].decode(errors="replace")
        return codec.encode_checked(record[codec.LENGTH.size : at], hidden(reason).encode(), lsn)
    return record


def _bare(record: bytes, kind: int, lsn: int) -> bytes:
    if kind == kinds.BIRTH:
        return without_body(record, lsn)
    if kind in _WITH_RESULT:
        _, _, cause, size, _, attempt, job, token = codec.JOB.unpack_from(record)
        options = record[codec.JOB.size : codec.JOB.size + size]
        return codec.encode_job(kind, cause, attempt, job, token, None, lsn, options)
    if kind in kinds.CARRYING:
        carried = decode_carried(record)
        body = None if carried.state is model.State.SUCCEEDED else carried.body
        bare = carried._replace(
            born=_bare(carried.born, kinds.BIRTH, carried.job),
            body=body,
            flags=carried.flags & ~PACKED,
        )
        return encode_carried(kind, bare, lsn)
    return record


#: Most processes named in the error about an open log.
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Damage of a log, and the losses of a repair.

    Attributes:
        damage: as found by ``verify``; parts of size 0 are gaps between segments.
        lost_jobs: ids of lost jobs, as far as other records name them.
        lost_records: records that cannot be saved.
    """

    damage: tuple[views.Damage, ...]
    lost_jobs: tuple[str, ...] = ()
    lost_records: int = 0


def survey_damage(journal: Journal) -> RepairReport:
    damage: list[views.Damage] = []
    saved: set[int] = set()
    for base, item in everything(journal):
        if isinstance(item, frames.Gap):
            damage.append(describe_damage(journal, base, item))
            saved.update(lsn for _, lsn, _ in _salvaged(journal, base, item))
    damage += journal.lost
    lost = sum(part.lost for part in damage)
    jobs = [
        job
        for job in concerned_jobs(journal, damage)
        if job not in saved and any(part.first_lsn <= job < part.next_lsn for part in damage)
    ]
    return RepairReport(
        damage=tuple(damage),
        lost_jobs=tuple(journal.tag.id(job) for job in jobs),
        lost_records=lost,
    )


def repair_directory(path: str, target: str | None = None) -> RepairReport:
    """Copy the readable part of a damaged log into a new directory; without one only survey it.

    Nothing is written if there is no damage. The copy is a new log, so the ids of its jobs differ
    from the ids of lost ones.

    Raises:
        LogError: a process has the log open, or the target is not empty.
    """
    directory = system.resolved(path)
    if target is not None:
        _refuse_if_open(directory)
    with LogReader.open(directory) as reader:
        report = survey_damage(reader.journal)
    if target is not None and report.damage:
        restore(directory, target, copier=_Mender)
    return report


def _refuse_if_open(path: str) -> None:
    owners = Path(path) / "owners"
    alive = [owner_view(owners, owner) for owner in peers.known_owners(owners)]
    names = [f"{view.pid} ({view.name} on {view.host})" for view in alive if view.alive]
    if names:
        raise errors.LogError(
            f"{path} is open in process {', '.join(names[:_NAMED_MAX])}: stop "
            f"{'it' if len(names) == 1 else f'all {len(names)}'}, then repair"
        )


class _Mender(Copier):
    """A copy of the readable part of a log."""

    def _once(self) -> End:
        self._folder("readers", self._names("readers"))
        with LogReader.open(self._source) as reader:
            journal = reader.journal
            segments = write_repaired(journal, self._disk, f"{self._target}/log", NEW)
            for segment in segments:
                self._note(f"log/{frames.segment_name(segment)}")
            return End(tuple(segments), 0, journal.next_lsn)


def write_repaired(
    journal: Journal, disk: ports.Disk, directory: str, ending: str = ""
) -> list[int]:
    """Write the readable part of each segment to a file of its name; return the segments.

    Each file links to the end of the one before it in that directory.
    """
    written: list[int] = []
    link = codec.NO_LINK
    for segment in list(journal.files.lsns):
        path = f"{directory}/{frames.segment_name(segment)}{ending}"
        header = _segment_header(journal, segment)._replace(link=link)
        _, end = write_segment(disk, path, header, _readable(journal, segment, header))
        if end == codec.NO_LINK:  # no frame is readable
            disk.remove(path)
        else:
            written.append(segment)
            link = end
    disk.sync_directory(directory)
    return written


def _readable(
    journal: Journal, segment: int, header: codec.SegmentHeader, since: int = 0
) -> Iterator[tuple[codec.FrameHeader, bytes]]:
    """Yield headers and bodies of the frames from an lsn on; gaps of numbers stay."""
    time_ns = header.created_ns
    for base, item in _items(journal, segment):
        if isinstance(item, frames.Frame):
            head = item.header
            time_ns = head.time_ns
            if head.first_lsn >= since:
                yield head, item.body
            continue
        for frame, first_lsn, records in _runs(journal, base, item):
            if first_lsn < since:
                continue
            # If the frame's header is lost, its time is between its neighbours' times.
            is_known = frame.body_crc != 0
            yield (
                frame._replace(
                    records=len(records),
                    first_lsn=first_lsn,
                    epoch=header.epoch,
                    time_ns=frame.time_ns if is_known else time_ns,
                ),
                b"".join(records),
            )


def _segment_header(journal: Journal, segment: int) -> codec.SegmentHeader:
    header = journal.files.header(segment)
    if header is not None:
        return header
    for _, item in _items(journal, segment):
        if isinstance(item, frames.Frame):
            return codec.SegmentHeader(
                segment, item.header.epoch, journal.files.owner(segment), item.header.time_ns
            )
    return codec.SegmentHeader(
        segment, journal.epoch, journal.files.owner(segment), journal.time_ns
    )


def _items(journal: Journal, segment: int) -> Iterator[tuple[int, frames.Frame | frames.Gap]]:
    files, end = journal.files, journal.end()
    # Bytes after the log's end were never acknowledged.
    size = end.offset if segment == end.segment else files.size(segment)
    start = frames.Cursor(segment, codec.SEGMENT_HEADER.size, segment)
    return files.frames(start, frames.Cursor(segment, size, segment))


def _salvaged(
    journal: Journal, base: int, gap: frames.Gap
) -> Iterator[tuple[codec.FrameHeader, int, bytes]]:
    """Yield (damaged frame's header, lsn, record) of each record with a valid CRC of its own."""
    readable = journal.files.damaged_frame(base, gap)
    if readable is None:
        return
    header, body, _ = readable
    end = gap.next_lsn
    if end == gap.first_lsn:
        # No frame after it in its segment shows its end.
        segment = journal.files.segment_at(base)
        end = next((lsn for lsn in journal.files.lsns if lsn > segment), codec.LSN_MAX)
    for lsn, _, record in salvage(body, gap.first_lsn):
        if lsn < end:
            yield header, lsn, record


def _runs(
    journal: Journal, base: int, gap: frames.Gap
) -> Iterator[tuple[codec.FrameHeader, int, list[bytes]]]:
    """Yield the same, with runs of adjacent numbers together: a frame can have such a run."""
    records: list[bytes] = []
    first = 0
    last: codec.FrameHeader | None = None
    for header, lsn, record in _salvaged(journal, base, gap):
        if last is not None and lsn != first + len(records):
            yield last, first, records
            last = None
        if last is None:
            last, first, records = header, lsn, []
        records.append(record)
    if last is not None:
        yield last, first, records
