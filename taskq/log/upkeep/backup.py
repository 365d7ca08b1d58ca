"""A log is copied while others write to it, and a copy becomes a log again: whole files, no lock.

A backup is a directory like a log's, which read commands open and nobody writes to. It holds the
log as it stood at one frame. Segments but the last never change: those that a backup has already
are not copied again. What compaction takes meanwhile was written again behind the frame that was
the end when the backup began: then it begins anew.

Nothing of an older backup is touched before all of the new one is there, whole and on disk, under
names that end in ``.new``. Then ``backup.json`` lists what it holds, and the files get their names.
Whoever finds that list, the next backup or a restore, first does the rest. So a backup that is cut
short at any step is the older one, or the new one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from taskq.core.errors import LogError, refusal
from taskq.core.values import NamedTuple, dataclass
from taskq.log.config import LogConfig
from taskq.log.format.frames import segment_lsn
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.machine.access import enter
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.ports import Disk, write_all, write_file
from taskq.log.read.reader import LogReader
from taskq.log.segments.identity import (
    BACKUP,
    FILE,
    REPLICA,
    read_identity,
    write_identity,
)
from taskq.log.segments.segments import SegmentGone

#: Begun anew so often at most when compaction took what was to be copied.
_TRIES: Final = 8
_PIECE_BYTES: Final = 1024 * 1024
_TEMPORARY: Final = ".tmp"
#: Of a whole file that waits for the others.
NEW: Final = ".new"
#: What a backup holds whose files get their names.
_LIST: Final = "backup.json"
_LOCK: Final = "backup.lock"
#: What else belongs to a log, by folder: bulk that waits, positions of readers.
_FOLDERS: Final = {
    "inbox": re.compile(r".+\.(part|json)|lock"),
    "inbox/done": re.compile(r".+\.json"),
    "readers": re.compile(r".+\.place"),
}
_SEGMENT_FILE: Final = re.compile(r"[0-9]{20}\.(log|idx)")
#: What may lie in a directory that is to become a backup.
_OURS: Final = frozenset(
    {_LOCK, "log", *_FOLDERS}
    | {name + rest for name in (FILE, _LIST) for rest in ("", _TEMPORARY, NEW, NEW + _TEMPORARY)}
    - {FILE}
)
#: Files of these folders never change once they have their names.
_FIXED: Final = frozenset({"inbox"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """Content of a backup or a restored log, and what of it was copied just now."""

    log_id: str
    #: all records below this one
    next_lsn: int
    segments: int
    #: those among them that were copied, the rest was there
    copied: int
    copied_bytes: int


class End(NamedTuple):
    """Part of a log that a backup holds."""

    segments: tuple[int, ...]
    #: bytes of the last one
    offset: int
    next_lsn: int


class _Vanished(Exception):
    """A file that was to be copied is gone: the log has moved on."""


def back_up(path: str, target: str) -> BackupReport:
    """Copy the log of a directory as it stands, beside whoever works with it.

    Whatever was acknowledged before the call is in it.

    Args:
        path: the log's directory.
        target: the backup's, which is made, or brought up to date if it is one of this log.

    Raises:
        LogError: the log lacks segments or failed, or the target is something else.
    """
    disk = LocalDisk()
    source, target = os.path.realpath(path), os.path.realpath(target)
    if os.path.commonpath([source, target]) in {source, target}:
        raise LogError(f"{target} and {path} lie within each other: back up to another place")
    try:
        with LogReader.open(source) as reader:
            _check_target(disk, target, reader.log_id.bytes)
        if not Path(target).exists():
            enter(target, None)
        with _alone(disk, target):
            return Copier(disk, source, target).run()
    except OSError as error:
        raise refusal(target, error) from error


def restore(
    path: str, target: str, above: int = 0, copier: type[Copier] | None = None
) -> BackupReport:
    """Make a log of a backup, which goes on in an epoch of its own, above all lsns of the backup.

    Args:
        path: the backup's directory, or that of any log that nobody has open.
        target: the log's, which must be empty or not there.
        above: an lsn that the lost log is known to have reached; job ids go on above it, too.
        copier: what copies it, unless all of it reads.

    Raises:
        LogError: there is no backup, or something is in the target.
    """
    disk = LocalDisk()
    source, target = os.path.realpath(path), os.path.realpath(target)
    if Path(target).exists() and any(Path(target).iterdir()):
        raise LogError(f"{target} is not empty: restore to a new directory")
    try:
        _complete(disk, source)
        if read_identity(disk, source) is None:
            raise LogError(f"{source} is not a task log")
        enter(target, None)
        report = (copier or Copier)(disk, source, target).run()
        identity = read_identity(disk, target)
        assert identity is not None
        bare = identity.read_only - {REPLICA, BACKUP}
        write_identity(disk, target, identity._replace(read_only=bare))
        disk.sync_directory(target)
        _begin_epoch(disk, target, max(above, report.next_lsn - 1))
    except OSError as error:
        raise refusal(target, error) from error
    return report


def _begin_epoch(disk: Disk, path: str, lsn: int) -> None:
    config = LogConfig()
    writer = WriterLock(disk, path, os.getpid())
    journal = Journal(disk, SystemClock(), path, config, writer)
    try:
        journal.open()
        journal.unlock()
        journal.skip(lsn)
    finally:
        journal.close()


def _check_target(disk: Disk, target: str, log_id: bytes) -> None:
    if not Path(target).exists():
        return
    identity = read_identity(disk, target)
    if identity is None:
        strange = set(disk.names(target)) - set(_OURS)
        if strange:
            raise LogError(f"{target} holds what is no backup ({min(strange)}): name another place")
    elif BACKUP not in identity.read_only:
        raise LogError(f"{target} is a task log and no backup: name another place")
    elif identity.log_id.bytes != log_id:
        raise LogError(f"{target} is the backup of another log: name another place")


def _put_in_place(disk: Disk, target: str) -> None:
    descriptor = disk.open(f"{target}/{_LIST}", write=False)
    try:
        listed = json.loads(disk.read(descriptor, disk.size(descriptor), 0))
    finally:
        disk.close(descriptor)
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


def _complete(disk: Disk, path: str) -> None:
    """Do the rest of a backup that was cut short while its files got their names."""
    if not disk.status(f"{path}/{_LIST}"):
        return
    try:
        with _alone(disk, path):
            _put_in_place(disk, path)
    except OSError as error:
        raise LogError(
            f"{path}: a backup to it was cut short, and the rest cannot be done "
            f"({error.strerror or error}): make it writable, or back up to it again"
        ) from error


@contextmanager
def _alone(disk: Disk, target: str) -> Iterator[None]:
    descriptor = disk.open(f"{target}/{_LOCK}", create=True)
    try:
        if not disk.try_lock(descriptor):
            raise LogError(f"{target}: another backup to it is going on")
        yield
    finally:
        disk.close(descriptor)


class Copier:
    """A copy of one log."""

    def __init__(self, disk: Disk, source: str, target: str) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._copied = self._bytes = 0
        #: what the copy holds, and what of it is new
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
        raise LogError(f"{self._source}: compaction takes segments faster than they are copied")

    def _once(self) -> End:
        # Before the end is looked for: a reader that came further would be beyond it, and what an
        # upload brought stands behind it, once it is gone.
        self._folder("readers", self._names("readers"))
        waiting = self._names("inbox")
        # A reader lists the segments again, behind its end, when compaction takes some meanwhile.
        first = self._first()
        with LogReader.open(self._source) as reader:
            end = self._end(reader)
        self._folder("inbox", waiting)
        self._folder("inbox/done", self._names("inbox/done"))
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
            raise LogError(
                f"{journal.lost[0].explain(self._source)}. An older backup is left as it is"
            )
        stands = journal.end()
        segments = tuple(lsn for lsn in journal.files.lsns if lsn <= stands.segment)
        strange = [lsn for lsn in self._segments() if segments and lsn > segments[-1]]
        if strange:
            raise LogError(
                f"{self._target} holds segment {strange[0]}, which the log does not have any more: "
                f"back up to another place"
            )
        return End(segments, stands.offset, journal.next_lsn)

    def _sealed(self, lsn: int) -> None:
        """Copy a segment that nobody changes any more, with its index, unless it is there."""
        name = f"log/{lsn:020d}"
        self._copied += self._copy_unless_there(f"{name}.log")
        # It is made again where it is missing, so it may be.
        if self._disk.status(f"{self._source}/{name}.idx"):
            self._copy_unless_there(f"{name}.idx")

    def _folder(self, folder: str, names: list[str]) -> None:
        for name in names:
            if folder in _FIXED:
                self._copy_unless_there(f"{folder}/{name}")
            else:
                self._copy(f"{folder}/{name}")

    def _published(self, end: End) -> BackupReport:
        disk, target = self._disk, self._target
        identity = read_identity(disk, self._source)
        if identity is None:
            raise LogError(f"{self._source} is not a task log any more")
        write_file(disk, f"{target}/{FILE}{NEW}", identity.as_backup().encode())
        for folder in ("log", *_FOLDERS):
            disk.sync_directory(f"{target}/{folder}")
        disk.sync_directory(target)
        listed = {"files": self._files, "new": [*self._new, FILE]}
        write_file(disk, f"{target}/{_LIST}{_TEMPORARY}", json.dumps(listed).encode())
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
        return sorted(lsn for name in names if (lsn := segment_lsn(name)) is not None)

    def _first(self) -> int:
        names = self._disk.names(f"{self._source}/log")
        return min(filter(None, map(segment_lsn, names)), default=0)

    def _copy_unless_there(self, name: str) -> bool:
        if self._is_there(name, name):
            self._files.append(name)
            return False
        if self._is_there(name, name + NEW):  # an earlier backup was cut short behind it
            self._files.append(name)
            self._new.append(name)
            return False
        self._copy(name)
        return True

    def _is_there(self, name: str, copy: str) -> bool:
        """Return whether the file was copied whole, and was not written again since."""
        ours, theirs = f"{self._target}/{copy}", f"{self._source}/{name}"
        there, wanted = self._disk.status(ours), self._disk.status(theirs)
        if there is None or wanted is None or there[2] != wanted[2]:
            return False
        return (self._disk.modified_ns(theirs) or 0) <= (self._disk.modified_ns(ours) or 0)

    def _copy(self, name: str, size: int | None = None) -> None:
        """Copy a file, or so many bytes of it, which then is whole and on disk as a new one.

        Raises:
            _Vanished: it is not there any more.
        """
        disk, place = self._disk, f"{self._target}/{name}{NEW}"
        try:
            read = disk.open(f"{self._source}/{name}", write=False)
        except FileNotFoundError:
            raise _Vanished from None
        try:
            write = disk.open(place + _TEMPORARY, create=True)
            try:
                disk.truncate(write, 0)
                done = 0
                while size is None or done < size:
                    count = _PIECE_BYTES if size is None else min(_PIECE_BYTES, size - done)
                    piece = disk.read(read, count, done)
                    if not piece:
                        break
                    write_all(disk, write, piece, done)
                    done += len(piece)
                disk.sync(write)
            finally:
                disk.close(write)
        finally:
            disk.close(read)
        disk.rename(place + _TEMPORARY, place)
        self._note(name)
        self._bytes += done

    def _note(self, name: str) -> None:
        self._files.append(name)
        self._new.append(name)
