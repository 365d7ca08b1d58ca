"""One process's access to the log: its end, append, sync, and reading up to the end."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Iterator
from typing import Final

from taskq.core.errors import LogError, LogFailed, LogGone, OutcomeUnknown, PayloadTooLarge, command
from taskq.core.model import SECOND_NS, Durability
from taskq.core.parsing import Tag
from taskq.core.views import Damage
from taskq.log.config import LSN_SKIP, STRETCHED_BYTES_MAX, LogConfig
from taskq.log.format import codec
from taskq.log.format.frames import Cursor, Frame, Gap, Marks, segment_name
from taskq.log.journal.lock import LOCK_FILE, Home, TailHint, WriterLock, boot_of, find_hint
from taskq.log.journal.recovery import (
    confirms_hint,
    declared_lsn,
    failure_marker,
    find_losses,
    finish_fork,
    is_marked_failed,
    link_to,
    mark_failed,
    moving_frames,
    save_failed_frames,
    set_aside,
    sweep_forked,
    unmark_failed,
    walk_to_end,
    write_once_more,
)
from taskq.log.machine.meters import SLOW_SYNC_NS, Meters
from taskq.log.machine.ports import Clock, Disk, write_all
from taskq.log.machine.threads import Reporter
from taskq.log.segments.identity import FILE as IDENTITY_FILE
from taskq.log.segments.identity import (
    SYNC_POINTS,
    Identity,
    add_feature,
    keep_directory,
    read_identity,
    read_or_create_identity,
    refuse_orphans,
    write_identity,
)
from taskq.log.segments.indexes import SegmentIndexes
from taskq.log.segments.segments import SegmentFiles, SegmentGone

#: Difference between wall time and the steady clock that counts as a step of the clock.
STEP_NS: Final = 5 * SECOND_NS
#: Most that wall time may be below the log's time before a missing CLOCK record is assumed.
_UNRECORDED_NS: Final = 2 * STEP_NS


_log: Final = Reporter("taskq")
#: Delay before the next try to begin a segment, after its file could not be made.
_ROTATE_AGAIN_NS: Final = SECOND_NS
_PEEKS_MAX: Final = 3


class Tail:
    """The log's last segment: append, sync, and checks of its file.

    Attributes:
        descriptor: -1 if none is open.
        is_syncing: a sync has begun, and has not succeeded.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        files: SegmentFiles,
        meters: Meters,
        writer: WriterLock | None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._files = files
        self._meters = meters
        self._writer = writer
        self.descriptor: int = -1
        self.is_syncing: bool = False
        self._path = ""
        self._identity = (0, 0)
        self.rotate_at_ns: int = 0

    def enter(self, segment: int) -> None:
        files = self._files
        self.descriptor = files.descriptor(segment)
        files.pinned = segment
        self._path = files.file_path(segment)
        self._identity = self._disk.identity(self.descriptor)

    def size(self) -> int | None:
        try:
            status = self._disk.status(self._path)
        except OSError:  # an unreadable status proves nothing
            return self._disk.size(self.descriptor)
        if status is None or status[:2] != self._identity:
            return None
        return status[2]

    def fill_up(self, size: int, offset: int) -> None:
        """Add the trailing zeros of a frame whose writer died before writing them.

        The frame is whole without them, but waiting processes would see too short a file.
        """
        with contextlib.suppress(OSError):  # the next frame makes up for them
            write_all(self._disk, self.descriptor, bytes(offset - size), size)

    def cut_back(self, offset: int, whole_bytes: int, error: OSError) -> None:
        """Cut off a frame after a failed write; it is whole with ``whole_bytes``."""
        with contextlib.suppress(OSError):
            self._disk.truncate(self.descriptor, offset)
            return
        with contextlib.suppress(OSError):
            if self._disk.size(self.descriptor) < offset + whole_bytes:
                return
        raise OutcomeUnknown(self._files.path, error, "a write") from error

    def finds_file(self, next_lsn: int) -> bool:
        """Return whether the next segment has a file.

        On a disk without a free inode jobs must still be settled, so this segment grows on. It does
        so only if no file was made at all: after a power loss an abandoned whole file would end the
        log too early.
        """
        try:
            path = self._files.file_path(next_lsn)
            self._disk.close(self._disk.open(path, create=True))
        except OSError as error:
            if not self.rotate_at_ns:
                _log.warning("%s: the segment grows on, no next one: %s", self._files.path, error)
            self.rotate_at_ns = self._clock.steady_ns() + _ROTATE_AGAIN_NS
            return False
        self.rotate_at_ns = 0
        return True

    def sync(self) -> None:
        """Sync the segment and note the duration; log a slow sync.

        Raises:
            OSError: unsynced frames may be lost.
        """
        start_ns = self._clock.steady_ns()
        self.is_syncing = True
        try:
            self._disk.sync(self.descriptor)
            self.is_syncing = False
        finally:
            took_ns = self._clock.steady_ns() - start_ns
            self._meters.syncs.record(took_ns)
            if self._writer is not None and self._writer.held:
                self._writer.excuse(took_ns)
            if took_ns > SLOW_SYNC_NS:
                self._meters.slow_syncs += 1
                _log.warning("%s: an fsync took %.1f s", self._files.path, took_ns / SECOND_NS)

    def ends_in_sync_point(self, segment: int, offset: int) -> bool:
        at = offset - codec.FRAME_HEADER_SIZE
        if at < codec.SEGMENT_HEADER.size:
            return True
        data = self._disk.read(self.descriptor, codec.FRAME_HEADER_SIZE, at)
        header = codec.decode_frame_header(data, 0, self._files.seed(segment), at)
        return header is not None and header.is_sync_point

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Exclude the block's wait for the disk from the time of the lock."""
        start_ns = self._clock.steady_ns()
        try:
            yield
        finally:
            if self._writer is not None:
                self._writer.excuse(self._clock.steady_ns() - start_ns)


class Journal:
    """The log in one process: its files and its end.

    It has no thread, requests or jobs, only bytes and positions. The storage thread and simulations
    drive it.

    Attributes:
        next_lsn, epoch, time_ns: of the log's end, as of the last ``lock`` or ``refresh``.
        segment, offset: where the next frame goes.
        base: location of the segment's first byte.
        last_frame: offset of the segment's last frame, 0 if it has none.
        is_past: the end is an end that the log had in the past.
        indexes, meters: indexes of single records; counters of this process.
        durable_lsn: all records below it are on disk.
        clean_offset: every byte of the segment before it is known to be on disk.
        generation: changes when frames were moved; then folds must be built anew.
        tag: prefix of every job id of this log.
        recovered: repairs of the open, in words; empty for a clean log.
        torn_bytes: bytes after the last whole frame, at the last check.
        gone: what happened to its files if the path leads there no more; else empty.
        in_order: no power was lost since the last frame, according to the lock's file.
        clock_base_ns: wall time less the steady clock, which all processes of a boot share, as of
            the last step in the log. It is handed on with the lock. So each step is recorded once,
            even if other processes write between the step and its record.
    """

    def __init__(
        self, disk: Disk, clock: Clock, path: str, config: LogConfig, writer: WriterLock | None
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.path = path
        self.config = config
        self.files: SegmentFiles = SegmentFiles(disk, path, writable=writer is not None)
        self.meters: Meters = Meters()
        self.next_lsn: int = 0
        self.offset: int = 0
        self.segment: int = 0
        self.epoch: int = 0
        self.time_ns: int = 0
        self.last_frame: int = 0
        self.base: int = 0
        self._seed = 0
        self.indexes: SegmentIndexes = SegmentIndexes(self)
        self.boot: int = disk.boot_id()
        #: a hint of another boot, or from another file, is not valid
        self.home: Home = (self.boot, 0, 0) if writer is None else writer.home
        self.identity: Identity
        self.tag: Tag = Tag("")
        self.gone: str = ""
        self.recovered: list[str] = []
        self.durable_lsn: int = 0
        self.clean_offset: int = 0
        self.generation: int = 0
        self.torn_bytes: int = 0
        self.in_order: bool = True
        self.is_past = self._is_lost = self._is_failed = False
        #: the hint with the end that this process knows; another hint means news
        self._known: TailHint | None = None
        self._writer = writer
        self.clock_base_ns: int = clock.wall_ns() - clock.steady_ns()
        #: the same once the frame with the last ``log_time`` is in the log
        self._seen_base_ns = self.clock_base_ns
        self._tail = Tail(disk, clock, self.files, self.meters, writer)
        self._marks = Marks()

    @functools.cached_property
    def writer(self) -> WriterLock:
        if self._writer is None:
            raise LogError(f"{self.path} is open for reading only")
        return self._writer

    @functools.cached_property
    def segment_bytes(self) -> int:
        return self.config.segment_bytes_on(self.disk, self.path)

    # -- reading ----------------------------------------------------------------------------------

    @functools.cached_property
    def lost(self) -> tuple[Damage, ...]:
        """Return unexplained gaps of the log; reads each segment's header once."""
        return find_losses(self, 0)

    def start(self) -> Cursor:
        return self.files.cursor_at(0) or self.end()

    def end(self) -> Cursor:
        """Return the end of the log as of the last ``lock`` or ``refresh``."""
        return Cursor(self.segment, self.offset, self.next_lsn)

    def is_at_end(self, cursor: Cursor) -> bool:
        return cursor.offset == self.offset and cursor.segment == self.segment

    def cursor_at(self, lsn: int) -> Cursor:
        return self._marks.before(lsn) or self.files.cursor_at(lsn) or self.end()

    def mark_before(self, lsn: int) -> Cursor | None:
        """Return a nearby frame of this process at or before a record, if there is one."""
        return self._marks.before(lsn)

    def frames(self, cursor: Cursor) -> Iterator[tuple[int, Frame | Gap]]:
        """Yield (location of the segment's first byte, frame or damage) from the cursor to the end.

        The cursor moves past each item before it is yielded.

        Raises:
            SegmentGone: compaction removed the cursor's segment, or a later one.
        """
        return self.files.frames(cursor, self.end())

    # -- opening ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or make the log, repair it after a crash, and keep the writer lock."""
        self.disk.make_directory(f"{self.path}/log")
        hint = self.writer.acquire()
        self._check_lock_file()
        if hint is not None:
            self.boot = boot_of(self.disk, self.path, hint, self.boot)
            self.home = self.writer.home = (self.boot, *self.writer.home[1:])
        start_ns = self.clock.steady_ns()
        self.in_order = self.writer.never_had_hint() if hint is None else hint.boot == self.boot
        if hint is not None and hint.home == self.home:
            self.clock_base_ns = self._seen_base_ns = hint.clock_base_ns
            self.generation = hint.generation
        if IDENTITY_FILE not in self.disk.names(self.path):
            self.writer.void_hint()  # left by a former log
            hint = None
        writer, now_ns = self.writer, self.clock.wall_ns()
        self._identify(read_or_create_identity(self.disk, self.path, writer.mark, now_ns))
        names = self.files.refresh()
        if self.identity.cut is not None:
            hint = self._finish_fork()
        else:
            sweep_forked(self.disk, self.path, names)
        if self.identity.is_copied(writer.mark, was_restored=writer.was_restored):
            self._go_on_as_child()
            hint = None
        if hint is not None and not (hint.failed or confirms_hint(self.files, hint)):
            hint = hint._replace(inode=0)
        self._is_failed = bool(hint and hint.failed) or is_marked_failed(self.disk, self.path)
        if self._is_failed:
            with moving_frames(self.files):
                self.recovered += save_failed_frames(self.disk, self.files, in_order=self.in_order)
                self.files.forget()
            # A next epoch is not enough: the last one may be unknown, and a live process may have
            # it.
            self.generation = int.from_bytes(os.urandom(4), "little")
            self._find_end(None, lost=True)
            unmark_failed(self.disk, self.path)
            # Only now may other processes write.
            self._is_failed = False
            self._write_hint()
        else:
            self._locate(hint)
            if self.clean_offset < self.offset and self.config.durability is not Durability.OS:
                self._secure()
                self._write_hint()
        self.in_order = True  # the end is known and repaired
        self.lost = find_losses(self, 0)
        self.files.close_others()
        self.meters.open_ns = self.clock.steady_ns() - start_ns

    def open_for_reading(self) -> None:
        """Find the last whole frame, without writing."""
        identity = read_identity(self.disk, self.path)
        if identity is None:
            refuse_orphans(self.disk, self.path)
            raise LogError(f"{self.path} is not a task log: give its directory with -d")
        self._identify(identity)
        hint, never_had_one, self.home = find_hint(self.disk, self.path, self.boot)
        self.boot = self.home[0]
        declared = declared_lsn(self, self.boot, hint)
        self.files.refresh()
        usable = (lsn for lsn in reversed(self.files.lsns) if self.files.header(lsn) is not None)
        if last := next(usable, 0):
            self.in_order = never_had_one if hint is None else hint.boot == self.boot
            self._enter(last)
            self._walk(None if hint is None or hint.failed else hint)
        if declared > self.next_lsn:
            self.lost = find_losses(self, declared)

    def _identify(self, identity: Identity) -> None:
        self.identity = identity
        self.tag = identity.tag
        self.files.identity = identity

    # -- copies and forks of a log ----------------------------------------------------------------

    def _go_on_as_child(self) -> None:
        """Turn a copied directory into a new log, which begins at the end of this copy.

        Its own segment begins as after a crash, since a process may be killed at each step. Only
        then does it have records of its own. So before the new identity is written, nothing is.
        """
        disk, files = self.disk, self.files
        self._drop_hint()
        files.remove_empty(0)
        usable, strange = files.sorted_out()
        if usable:
            self._enter(usable[-1])
            self._walk(None)
        for lsn in files.lsns:  # a copying tool syncs nothing
            disk.sync(files.descriptor(lsn))
        disk.sync_directory(f"{self.path}/log")
        parent, at = self.identity, max((self.next_lsn, *strange, 1))
        self._note(parent.child(at, self.clock.wall_ns()))
        unmark_failed(disk, self.path)
        self.recovered.append(f"goes on as log {self.identity.log_id}, a copy of {parent.log_id}")

    def go_on_from(self, identity: Identity) -> None:
        """Become a child log whose segments are to be moved into place; see ``fork``.

        The caller holds the lock. Other processes get LogGone at their next check.
        """
        self._forget_files()
        self._drop_hint()
        self._note(identity)
        self._finish_fork()

    def _drop_hint(self) -> None:
        """Void the hint durably: it names the end of the former log."""
        self.writer.void_hint()
        self.writer.keep()

    def _finish_fork(self) -> TailHint | None:
        self._identify(finish_fork(self.disk, self.path, self.identity))
        self._forget_files()
        self.files.refresh()
        self.generation = int.from_bytes(os.urandom(4), "little")
        if not self.files.lsns or self.files.lsns[-1] < self.identity.begins:
            self._find_end(None, lost=True)
        else:
            self._enter(self.files.lsns[-1])
            self._walk(None)
            self.durable_lsn, self.clean_offset = self.next_lsn, self.offset
            self._write_hint()
        return self._known

    def _note(self, identity: Identity) -> None:
        """Write another identity for this log, durably."""
        identity = identity._replace(lock=self.writer.mark)
        write_identity(self.disk, self.path, identity)
        self.disk.sync_directory(self.path)
        # A sync published for the former log does not count for this one.
        self.generation = int.from_bytes(os.urandom(4), "little")
        self._identify(identity)

    def _check_identity(self) -> None:
        """Raise LogGone if the directory has another identity by now."""
        identity = None
        with contextlib.suppress(LogError):
            identity = read_identity(self.disk, self.path)
        if identity is None or identity.log_id != self.identity.log_id:
            raise self.is_gone("it was forked, and goes on as another log")

    # -- the lock and the end of the log ----------------------------------------------------------

    def lock(self) -> None:
        """Take the writer lock and find the end of the log.

        Raises:
            LogFailed: an fsync failed since, or the files are gone; the log must be opened again.
        """
        hint = self.writer.acquire()
        try:
            self._check_lock_file()
            # The lock's file names the last writer; the size reveals an interrupted writer.
            if hint is None or hint is not self._known or self._tail.size() != self.offset:
                self._locate(hint)
            if self._tail.is_syncing:
                self._secure()
        except BaseException:
            self.writer.release()
            raise

    def distrust(self) -> None:
        """Forget the known end of the log after an interrupted write."""
        self.writer.let_go()
        self._forget_files()
        self._known = None

    def refresh(self) -> None:
        """Find the end of the log without the lock; a frame being written is left out."""
        hint = self.writer.peek()
        if hint and hint is not self._known and not hint.failed and hint.home == self.home:
            with contextlib.suppress(SegmentGone):  # written and compacted since the hint
                self._adopt(hint)

    def has_grown(self) -> bool:
        """Return whether another process has written since the last ``lock`` or ``refresh``."""
        hint = self.writer.peek()
        return hint is not None and (hint.offset != self.offset or hint.segment != self.segment)

    def check_files(self) -> None:
        """Check without the lock that the path still leads to the open files."""
        self._check_lock_file()
        hint = self.writer.peek()
        if hint is None or hint.segment != self.segment or self._tail.size() is not None:
            return
        # Another process may begin a new segment and remove this one during the check.
        again = self.writer.peek()
        if again is not None and again.segment == hint.segment:
            raise self.is_gone("the last segment was removed, moved or replaced")

    def is_gone(self, what: str) -> LogGone:
        """Note that this process has lost the files; return the error."""
        self.gone = what
        return LogGone(self.path, what)

    def _check_lock_file(self) -> None:
        """Check that the lock's file is the open one; with two files two processes could write.

        Raises:
            LogGone: the next process would lock another file than this one.
        """
        if self.gone:
            raise LogGone(self.path, self.gone)
        try:
            status = self.disk.status(self.writer.file_path)
        except OSError:  # an unreadable status proves nothing
            return
        if status is None or status[:2] != self.writer.home[1:]:
            raise self.is_gone(f"{LOCK_FILE}, or the directory, was removed, moved or replaced")

    def _locate(self, hint: TailHint | None) -> None:
        if self._is_lost:
            raise LogFailed(
                self.path, "an fsync failed here, and other processes could not be notified"
            )
        if hint.failed if hint is not None else is_marked_failed(self.disk, self.path):
            raise LogFailed(self.path, "an fsync failed in one of its processes")
        lost = hint is None or hint.home != self.home
        if lost and self.segment:
            self._check_identity()
        if hint is not None and not lost:
            known, size = self._tail.descriptor >= 0, -1
            with contextlib.suppress(SegmentGone):
                size = self._adopt(hint)
            if size == self.offset:
                return
            there = hint.segment == self.segment and self._tail.size() is not None
            if known and size < 0 and not there:
                raise self.is_gone("the last segment was removed, moved or replaced")
        self.files.refresh()
        self._find_end(hint, lost=lost)

    def _adopt(self, hint: TailHint) -> int:
        """Take over the end of the log from a hint, if possible; return its last segment's size.

        -1 if the hint's segment is missing, since it belongs to another directory.
        """
        if hint.segment != self.segment or self._tail.descriptor < 0:
            if hint.segment not in self.files:
                self.files.refresh()
            if hint.segment not in self.files:
                return -1
        self.durable_lsn = max(self.durable_lsn, hint.durable_lsn)
        known = self.clean_offset if hint.segment == self.segment else 0
        self.clock_base_ns = self._seen_base_ns = hint.clock_base_ns
        if hint.generation != self.generation:
            self._check_identity()
            self.generation = hint.generation
            self._forget_files()
        if hint.segment != self.segment or self._tail.descriptor < 0:
            self._enter(hint.segment)
        size = self._tail.size()
        if size is None or size < hint.offset:
            return -1
        self.clean_offset = max(known, hint.clean_offset)
        self.offset, self.next_lsn = hint.offset, hint.next_lsn
        self.epoch, self.time_ns = hint.epoch, hint.time_ns
        self.last_frame = hint.last_frame
        self._known = hint
        return size

    def _find_end(self, hint: TailHint | None, *, lost: bool) -> None:
        """Walk to the last whole frame, cut a torn tail, begin a new epoch if needed."""
        files = self.files
        declared = declared_lsn(self, self.boot, hint)
        usable, strange = files.sorted_out()
        floor = max((hint.next_lsn if hint is not None else 0, declared, *strange))
        cut = False
        if usable:
            self._enter(usable[-1])
            cut = self._walk(hint)
            if lost:  # a process may have been killed right after writing another identity
                self.disk.sync_directory(self.path)
        else:
            keep_directory(self.disk, self.path)
        if lost or cut or not usable or self.next_lsn < floor:
            if usable and (hint is None or hint.home == self.home):
                self._secure()
            begins = self.identity.begins
            lsn = max(self.next_lsn, floor)
            # The first segment of a child; hints are about its parent.
            is_first = begins > 1 and usable[-1:] < [begins] and max((*strange, 0)) <= begins
            first = lsn + LSN_SKIP if lsn else 1
            if is_first:
                first = max((begins, self.next_lsn, *strange))
            link = codec.NO_LINK if strange else None
            if max((self.next_lsn, *strange)) < declared:
                link = codec.LOST
            self._begin_segment(first, new_epoch=True, link=link)
            self.files.remove_empty(self.segment)
        self._write_hint()
        if lost:
            self.writer.keep()

    def _enter(self, segment: int) -> None:
        self._tail.enter(segment)
        self.segment = segment
        self.base, self._seed = self.files.base(segment), self.files.seed(segment)
        self._marks.due_offset = 0

    def _walk(self, hint: TailHint | None) -> bool:
        """Move the end to the last whole frame; True if the segment must end there."""
        known, walk = walk_to_end(self.files, self.segment, hint, self.home, in_order=self.in_order)
        _, _, self.epoch, self.time_ns, self.last_frame, self.clean_offset = known
        self.offset, self.next_lsn, last, synced_through, gaps, is_torn, last_frame = walk
        size = self.files.size(self.segment)
        if last is not None:
            self.last_frame, self.epoch, self.time_ns = last_frame, last.epoch, last.time_ns
        self.durable_lsn = max(self.durable_lsn, synced_through)
        self.torn_bytes = size - self.offset if is_torn else 0
        if is_torn and self._writer is not None:
            where = self._tail.descriptor, self.segment, self.offset, size
            self.recovered.append(set_aside(self.disk, self.path, *where))
        elif self._writer is not None and size < self.offset:
            self._tail.fill_up(size, self.offset)
        if gaps:
            self.recovered.append(
                f"{segment_name(self.segment)} is damaged: whole records after it stay, and "
                f"new records go to another segment; see: {command(self.path, 'verify')}"
            )
        return is_torn or gaps > 0

    def _begin_segment(
        self, first_lsn: int, *, new_epoch: bool, link: codec.Link | None = None
    ) -> None:
        """Seal the present segment and begin the next one; all earlier bytes are synced first.

        ``link`` names the end of the present segment; None: its known end.
        """
        if self._tail.descriptor >= 0:
            self._seal()
            self.writer.void_hint()
            if link is None:
                link = link_to(self.files, self.segment, self.last_frame)
        epoch = (int.from_bytes(os.urandom(8), "little") or 1) if new_epoch else self.epoch
        try:
            with self._tail.excused():
                time_ns = self.time_ns or self.clock.wall_ns()
                self.files.create(first_lsn, epoch, time_ns, link or codec.NO_LINK)
        except OSError:
            with contextlib.suppress(OSError):
                self.disk.remove(self.files.file_path(first_lsn))
                if not new_epoch:
                    self._write_hint()  # nothing has changed
            raise
        self._enter(first_lsn)
        self.epoch = epoch
        self.offset = self.clean_offset = codec.SEGMENT_HEADER.size
        self.next_lsn, self.last_frame = first_lsn, 0
        self._write_hint()

    def _secure(self) -> None:
        """Write unsynced bytes again and sync: a writer's sync may have failed without a marker."""
        write_once_more(self.disk, self._tail.descriptor, self.clean_offset, self.offset)
        self._seal()

    def _seal(self) -> None:
        """Sync the present segment, even if other processes did.

        Raises:
            LogFailed: it may be lost, so no process may append to it.
        """
        try:
            self._tail.sync()
        except OSError as error:
            self.fail(error)
            raise LogFailed(self.path, f"an fsync failed ({error.strerror or error})") from error
        self.durable_lsn, self.clean_offset = max(self.durable_lsn, self.next_lsn), self.offset

    # -- writing ----------------------------------------------------------------------------------

    def log_time(self) -> tuple[int, int]:
        """Return (time of the next frame, step of the clock to record before it, or 0)."""
        wall, steady, last_ns = self.clock.wall_ns(), self.clock.steady_ns(), self.time_ns
        expected = steady + self.clock_base_ns
        step = wall - expected
        # The clock may have fallen before this process, without a record yet. A step after that is
        # not recorded: it may just set the clock right again.
        if abs(step) > STEP_NS and expected >= last_ns - _UNRECORDED_NS:
            self._seen_base_ns = wall - steady
            return wall, step
        self._seen_base_ns = self.clock_base_ns if abs(step) <= STEP_NS else wall - steady
        step = wall - last_ns
        if step >= -STEP_NS:
            return max(wall, last_ns), 0
        self._seen_base_ns = wall - steady
        return wall, step

    def rotate(self) -> None:
        """Begin a segment, if possible; the writer lock is held."""
        if self._may_rotate():
            self._begin_segment(self.next_lsn, new_epoch=False)

    def seal(self, segment: int) -> None:
        with self._at_end():
            if self.segment == segment:
                self.rotate()

    @contextlib.contextmanager
    def _at_end(self) -> Iterator[None]:
        """Hold the lock; if the disk refuses, nothing has changed."""
        self.lock()
        try:
            yield
        except OSError:
            self._write_hint()
            raise
        finally:
            self.writer.release()

    def _may_rotate(self) -> bool:
        """Return whether the next segment can be made; otherwise this one grows, up to a limit."""
        if self.offset >= STRETCHED_BYTES_MAX:
            return True
        if self.clock.steady_ns() < self._tail.rotate_at_ns:
            return False
        self._seal()  # if this sync fails, no segment begins
        return self._tail.finds_file(self.next_lsn)

    def allow(self, features: tuple[str, ...]) -> None:
        """Require these features in ``taskq.json``: a taskq without them does not open the log."""
        for feature in set(features) - self.identity.incompat:
            self.identity = add_feature(self.disk, self.path, self.identity, feature)

    def append(self, body: bytes, count: int, time_ns: int) -> None:
        """Append one frame and move the end after it.

        Raises:
            OSError: the disk refused; the partial frame is cut off, here or by the next writer.
            OutcomeUnknown: the same, but the frame may be whole and could not be cut off.
            PayloadTooLarge: no reader would accept the frame.
        """
        if len(body) > codec.FRAME_BODY_MAX:
            raise PayloadTooLarge("a batch", len(body), codec.FRAME_BODY_MAX, "send less at a time")
        frame = codec.encode_frame(
            body, count, self.next_lsn, self.epoch, time_ns, self.durable_lsn, self._seed,
            self.offset,
        )  # fmt: skip
        tail, offset = self._tail.descriptor, self.offset
        try:
            if self.disk.write(tail, frame, offset) < len(frame):
                write_all(self.disk, tail, frame, offset)  # the rest, or its error
        except OSError as error:
            # It is whole without its trailing zeros.
            self._tail.cut_back(offset, codec.FRAME_HEADER_SIZE + len(body), error)
            raise
        if self.offset >= self._marks.due_offset:
            self._marks.note(self.next_lsn, self.segment, self.offset)
        self.last_frame = self.offset
        self.offset += len(frame)
        self.meters.appended_bytes += len(frame)
        self.next_lsn += count
        self.time_ns = time_ns
        if count:  # otherwise it is a sync point, which records no step
            self.clock_base_ns = self._seen_base_ns
        try:  # noqa: SIM105 - runs for every batch
            self._write_hint()
        except OSError:  # the frame is in the log: a wrong hint is noticed
            pass

    def leave_sync_point(self) -> None:
        """Append a sync point, if the whole log is on disk and does not end in one.

        If the lock is held, its holder is at work and appends one later.
        """
        if not self.writer.try_acquire():
            return
        with self._at_end():
            if self.durable_lsn >= self.next_lsn and not self.ends_in_sync_point():
                self.allow((SYNC_POINTS,))
                self.append(b"", 0, self.time_ns)

    def ends_in_sync_point(self) -> bool:
        """Return whether the log's known end needs no sync point; sealed segments are synced."""
        return self._tail.ends_in_sync_point(self.segment, self.offset)

    def sync(self) -> None:
        """Make all known records durable, or find that another process has.

        Raises:
            OSError: records may be lost; ``fail`` must follow.
        """
        writer, turn = self.writer, self.writer.turn
        through, clean, synced = self.next_lsn, self.offset, 0
        is_shared = turn.crowded
        if is_shared and not turn.take(self.boot, self.generation, through):
            self.durable_lsn = max(self.durable_lsn, through)
            return
        try:
            if not writer.is_alone:
                with contextlib.suppress(OSError):  # then the sync counts only for known frames
                    hint = writer.peek()
                    if hint and (hint.segment, hint.generation) == (self.segment, self.generation):
                        through, clean = max(through, hint.next_lsn), max(clean, hint.offset)
            self._tail.sync()
            # A failed fsync marks the lost pages clean, and then the next fsync succeeds. A failure
            # that this process misses is as bad, so a failed read of the hint is repeated.
            hint = writer.peek(tries=_PEEKS_MAX)
            if hint is None or not (hint.failed or hint.generation != self.generation):
                synced = through
        finally:
            if is_shared:
                turn.leave(self.boot, self.generation, synced)
        if not synced:
            raise OSError(errno.EIO, "another process's fsync of this file failed")
        self.durable_lsn = max(self.durable_lsn, through)
        self.clean_offset = max(self.clean_offset, clean)

    def fail(self, error: OSError) -> None:
        """Stop all processes from writing after a failed fsync, until the log is opened again."""
        marker = failure_marker(self.segment, self.durable_lsn, error)
        if not mark_failed(self.disk, self.path, self.writer, self.generation, marker):
            self._is_lost, self._known = True, None
        self._tail.is_syncing = False

    def _write_hint(self) -> None:
        hint = TailHint(
            int(self._is_failed), self.generation, *self.home, self.segment, self.offset,
            self.last_frame, self.next_lsn, self.epoch, self.time_ns, self.durable_lsn,
            self.clean_offset, self.clock_base_ns,
        )  # fmt: skip
        self.writer.write_hint(hint)
        self._known = hint

    def close(self) -> None:
        self._forget_files()
        if self._writer is not None:
            self._writer.close()

    def _forget_files(self) -> None:
        self.files.forget()
        self.indexes.forget()
        self._tail.descriptor = -1
        self._marks.clear()
