"""A log is copied while others write to it, and a copy becomes a log again: whole files, no lock.

A backup is a directory like a log's, which read commands open and nobody writes to. It holds the
log as it stood at one frame. Segments but the last never change: those that a backup has already
are not copied again. What compaction takes meanwhile was written again behind the frame that was
the end when the backup began: then it begins anew.

Each file gets its name when it is whole and on disk, the older segments first. So a backup that is
cut short is one of an earlier moment, or of none at all while ``taskq.json`` is not there.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogError, refusal
from taskq.core.values import NamedTuple, dataclass
from taskq.log.config import LogConfig
from taskq.log.format.frames import segment_lsn
from taskq.log.journal.chain import describe_loss
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.machine.access import enter
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.ports import write_all
from taskq.log.read.reader import LogReader
from taskq.log.segments.identity import BACKUP, FILE, REPLICA, read_identity, write_identity
from taskq.log.segments.segments import SegmentGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.log.machine.ports import Disk

#: Begun anew so often at most when compaction took what was to be copied.
_TRIES: Final = 8
_PIECE_BYTES: Final = 1024 * 1024
_TEMPORARY: Final = ".tmp"
_LOCK: Final = "backup.lock"
#: What else belongs to a log, by folder: bodies beside it, bulk that waits, positions of readers.
_FOLDERS: Final = {
    "spill": re.compile(r"[0-9a-f]{64}"),
    "inbox": re.compile(r".+\.(part|json)|lock"),
    "inbox/done": re.compile(r".+\.json"),
    "readers": re.compile(r".+\.ofs"),
}
#: Files of these folders never change once they have their names.
_FIXED: Final = frozenset({"spill", "inbox"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """What a backup or a restored log holds, and what of it was copied just now."""

    log_id: str
    #: all records below this one
    next_lsn: int
    segments: int
    #: those among them that were copied, the rest was there
    copied: int
    copied_bytes: int


class _End(NamedTuple):
    """What a backup holds of a log."""

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
            return _Copier(disk, source, target).run()
    except OSError as error:
        raise refusal(target, error) from error


def restore(path: str, target: str, above: int = 0) -> BackupReport:
    """Make a log of a backup, which goes on in an epoch of its own, above all lsns of the backup.

    Args:
        path: the backup's directory, or that of any log that nobody has open.
        target: the log's, which must be empty or not there.
        above: an lsn that the lost log is known to have reached; job ids go on above it, too.

    Raises:
        LogError: there is no backup, or something is in the target.
    """
    disk = LocalDisk()
    source, target = os.path.realpath(path), os.path.realpath(target)
    if Path(target).exists() and any(Path(target).iterdir()):
        raise LogError(f"{target} is not empty: restore to a new directory")
    try:
        enter(target, None)
        report = _Copier(disk, source, target).run()
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
    """Go on above the lsn. Opening a copy does that for what it holds, and none but for that."""
    config = LogConfig()
    writer = WriterLock(disk, path, os.getpid(), config.lock_wait_seconds)
    journal = Journal(disk, SystemClock(), path, config, writer)
    try:
        journal.open()
        journal.unlock()
        journal.skip(lsn)
    finally:
        journal.close()


def _check_target(disk: Disk, target: str, log_id: bytes) -> None:
    """Write only to a backup of this log, or where nothing is, but for a backup cut short."""
    if not Path(target).exists():
        return
    identity = read_identity(disk, target)
    if identity is None:
        strange = set(disk.names(target)) - {_LOCK, "log", *_FOLDERS, FILE + _TEMPORARY}
        if strange:
            raise LogError(f"{target} holds what is no backup ({min(strange)}): name another place")
    elif BACKUP not in identity.read_only:
        raise LogError(f"{target} is a task log and no backup: name another place")
    elif identity.log_id.bytes != log_id:
        raise LogError(f"{target} is the backup of another log: name another place")


@contextmanager
def _alone(disk: Disk, target: str) -> Iterator[None]:
    descriptor = disk.open(f"{target}/{_LOCK}", create=True)
    try:
        if not disk.try_lock(descriptor):
            raise LogError(f"{target}: another backup to it is going on")
        yield
    finally:
        disk.close(descriptor)


class _Copier:
    """One copy of one log."""

    def __init__(self, disk: Disk, source: str, target: str) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._copied = self._bytes = 0

    def run(self) -> BackupReport:
        """Copy until all of it is of one moment, then say that it is a backup."""
        for folder in ("log", *_FOLDERS):
            self._disk.make_directory(f"{self._target}/{folder}")
        for _ in range(_TRIES):
            try:
                end = self._once()
            except (_Vanished, SegmentGone):
                continue
            return self._published(end)
        raise LogError(f"{self._source}: compaction takes segments faster than they are copied")

    def _once(self) -> _End:
        # Before the end is looked for: a reader that came further would be beyond it, and what an
        # upload brought stands behind it, once it is gone.
        self._folder("readers")
        waiting = self._names("inbox")
        with LogReader.open(self._source) as reader:
            end = self._end(reader)
        self._folder("inbox", waiting)
        self._folder("inbox/done")
        self._folder("spill")
        for lsn in end.segments[:-1]:
            self._sealed(lsn)
        if end.segments:
            self._last(end)
        if self._first() != (end.segments[0] if end.segments else 0):
            raise _Vanished
        self._prune(end)
        return end

    def _end(self, reader: LogReader) -> _End:
        journal = reader.journal
        if journal.lost:
            raise LogError(
                f"{describe_loss(journal.lost[0], self._source)}. An older backup is left as it is"
            )
        stands = journal.end()
        segments = tuple(lsn for lsn in journal.files.lsns if lsn <= stands.segment)
        strange = [lsn for lsn in self._segments() if segments and lsn > segments[-1]]
        if strange:
            raise LogError(
                f"{self._target} holds segment {strange[0]}, which the log does not have any more: "
                f"back up to another place"
            )
        return _End(segments, stands.offset, journal.next_lsn)

    def _sealed(self, lsn: int) -> None:
        """Copy a segment that nobody changes any more, with its index, unless it is there."""
        name = f"log/{lsn:020d}"
        if not self._is_there(f"{name}.log"):
            self._copied += 1
            self._copy(f"{name}.log")
        # It is made again where it is missing, so it may be.
        if self._disk.status(f"{self._source}/{name}.idx") and not self._is_there(f"{name}.idx"):
            self._copy(f"{name}.idx")

    def _last(self, end: _End) -> None:
        self._copied += 1
        self._copy(f"log/{end.segments[-1]:020d}.log", end.offset)

    def _folder(self, folder: str, names: list[str] | None = None) -> None:
        """Copy the files of a folder, and remove what the log has not any more."""
        names = self._names(folder) if names is None else names
        for name in names:
            if folder not in _FIXED or not self._is_there(f"{folder}/{name}"):
                self._copy(f"{folder}/{name}")
        if folder != "spill":  # those are needed until the segments are gone that name them
            self._remove_all_but(folder, names)

    def _prune(self, end: _End) -> None:
        """Remove what compaction took, now that all is there that was written in its place."""
        for name in self._disk.names(f"{self._target}/log"):
            lsn = segment_lsn(name.replace(".idx", ".log"))
            if lsn is not None and lsn not in end.segments:
                self._disk.remove(f"{self._target}/log/{name}")
        self._disk.sync_directory(f"{self._target}/log")
        self._remove_all_but("spill", self._names("spill"))

    def _published(self, end: _End) -> BackupReport:
        identity = read_identity(self._disk, self._source)
        if identity is None:
            raise LogError(f"{self._source} is not a task log any more")
        read_only = identity.read_only | {BACKUP}
        write_identity(self._disk, self._target, identity._replace(read_only=read_only))
        self._disk.sync_directory(self._target)
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

    def _remove_all_but(self, folder: str, names: list[str]) -> None:
        kept = frozenset(names)
        for name in self._disk.names(f"{self._target}/{folder}"):
            if _FOLDERS[folder].fullmatch(name) and name not in kept:
                self._disk.remove(f"{self._target}/{folder}/{name}")

    def _segments(self) -> list[int]:
        names = self._disk.names(f"{self._target}/log")
        return sorted(lsn for name in names if (lsn := segment_lsn(name)) is not None)

    def _first(self) -> int:
        names = self._disk.names(f"{self._source}/log")
        return min(filter(None, map(segment_lsn, names)), default=0)

    def _is_there(self, name: str) -> bool:
        """Whether the file was copied whole, and was not written again since, as a repair does."""
        ours, theirs = f"{self._target}/{name}", f"{self._source}/{name}"
        there, wanted = self._disk.status(ours), self._disk.status(theirs)
        if there is None or wanted is None or there[2] != wanted[2]:
            return False
        return (self._disk.modified_ns(theirs) or 0) <= (self._disk.modified_ns(ours) or 0)

    def _copy(self, name: str, size: int | None = None) -> None:
        """Copy a file, or so many bytes of it; it has its name once it is on disk.

        Raises:
            _Vanished: it is not there any more.
        """
        disk, place = self._disk, f"{self._target}/{name}"
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
        disk.sync_directory(place.rpartition("/")[0])
        self._bytes += done
