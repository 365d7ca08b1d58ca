"""The writer lock, and the end of the log in its file."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Final, TypeAlias

from taskq.core import errors, model
from taskq.core.values import NamedTuple
from taskq.log.format.codec import LSN_MAX, PREFIX, SEGMENT_HEADER, crc32
from taskq.log.machine import access, meters, ports, threads
from taskq.log.machine.system import system
from taskq.log.segments.identity import LockMark, check_writable

#: boot, generation, durable lsn
_MARK: Final = struct.Struct("<QIQ")
_MARK_SIZE: Final = _MARK.size + 4
#: Looks for another process's fsync before this process does its own, and time between two.
_LOOKS: Final = 12
_LOOK_SECONDS: Final = 0.000_25


class SyncTurn:
    """The file ``sync.lock``: locked during a sync, with the end of the last sync."""

    def __init__(self, disk: ports.Disk, path: str) -> None:
        self._disk = disk
        self._file = disk.open(f"{path}/sync.lock", create=True)
        #: whether enough processes have the log open for turns to pay off
        self.crowded = True

    def take(self, boot: int, generation: int, wanted_lsn: int) -> bool:
        """Return whether this process is to sync; False once ``wanted_lsn`` is reached."""
        with contextlib.suppress(OSError):  # then syncs are not shared
            for _ in range(_LOOKS):
                taken = self._disk.try_lock(self._file)
                if self._published(boot, generation) >= wanted_lsn:
                    if taken:
                        self.give_up()
                    return False
                if taken:
                    return True
                time.sleep(_LOOK_SECONDS)
        return True

    def leave(self, boot: int, generation: int, durable_lsn: int) -> None:
        # A sync counts even if it is not published: other processes only sync again.
        with contextlib.suppress(OSError):
            if durable_lsn > self._published(boot, generation):
                packed = _MARK.pack(boot, generation, durable_lsn)
                ports.write_all(
                    self._disk, self._file, packed + crc32(packed).to_bytes(4, "little"), 0
                )
        self.give_up()

    def give_up(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.unlock(self._file)

    def close(self) -> None:
        self._disk.close(self._file)

    def _published(self, boot: int, generation: int) -> int:
        data = self._disk.read(self._file, _MARK_SIZE, 0)
        if len(data) < _MARK_SIZE or crc32(data[: _MARK.size]) != int.from_bytes(
            data[_MARK.size :], "little"
        ):
            return 0
        marked_boot, marked_generation, lsn = _MARK.unpack_from(data)
        return lsn if (marked_boot, marked_generation) == (boot, generation) else 0


_log: Final = threads.Reporter("taskq")
LOCK_FILE: Final = "write.lock"
_HOLDER: Final = struct.Struct("<II")
_TAIL: Final = struct.Struct("<IIQQQQQQQQqQQq")
_TAIL_SIZE: Final = _TAIL.size + 4
_SIZE: Final = _HOLDER.size + _TAIL_SIZE
#: Lowest bit of the second number; the other bits distinguish processes with the same pid.
_EXCLUSIVE: Final = 1
#: Most times in a row that a lone process takes the lock without passing the turnstile.
_CUT_IN_MAX: Final = 16
#: Limits of a hint's offset: a segment stays under 2 GiB, and its frames are aligned to 8.
_OFFSET_MAX: Final = 2**31
_ALIGNMENT: Final = 8
#: Tries to unlock a file, since other processes wait for it.
_GIVE_BACK_MAX: Final = 3
_STATES: Final = {"R": "running", "S": "sleeping", "D": "waiting for the disk", "T": "stopped"}


#: (boot, device, inode): boot and lock file for which a hint is valid.
Home: TypeAlias = tuple[int, int, int]


class TailHint(NamedTuple):
    """End of the log when the lock was last released."""

    #: an fsync failed: no process may write
    failed: int
    #: rises when whole frames were moved: folds of them must be built anew
    generation: int
    boot: int
    #: of the file with the hint
    device: int
    inode: int
    segment: int
    offset: int
    #: offset of the segment's last frame, 0 if it has none
    last_frame: int
    next_lsn: int
    epoch: int
    time_ns: int
    durable_lsn: int
    #: every byte of the segment before it is on disk
    clean_offset: int
    #: wall time less the steady clock, without steps not recorded yet
    clock_base_ns: int

    @property
    def home(self) -> Home:
        return self.boot, self.device, self.inode

    @property
    def is_sound(self) -> bool:
        return (
            0 < self.segment <= self.next_lsn < LSN_MAX
            and SEGMENT_HEADER.size <= self.clean_offset <= self.offset <= _OFFSET_MAX
            and self.last_frame < self.offset
            and not (self.offset | self.last_frame) % _ALIGNMENT
            and (self.next_lsn - self.segment) * PREFIX.size <= self.offset
            and self.durable_lsn <= self.next_lsn
            and 0 <= self.time_ns <= model.TIME_NS_MAX >= abs(self.clock_base_ns)
        )

    def fits(self, home: Home, segment: int, size: int) -> bool:
        """Return whether the hint is of this segment, file and boot, and the segment as long."""
        return home == self.home and segment == self.segment and self.offset <= size


class WriterLock:
    """The lock of one process; used by one thread.

    ``write.lock`` is locked with flock. Writers first pass a turnstile (``turnstile.lock``). With
    flock alone one writer in a tight loop kept other writers out for 200 ms; with the turnstile the
    longest wait was 4 ms. A process that has the log to itself passes it only now and then.

    The file's first 8 bytes name the last holder. A process that finds its own name there knows
    that no other process has opened the log or written, since opening takes the lock. Then follows
    a hint: the end of the log. With it a process that only enqueues never reads other processes'
    records. The hint has a CRC, names its boot and its file, and is valid only if the segment's
    size agrees. A copy of the directory becomes another log, see ``Journal.open``.

    Attributes:
        home: boot and file in a valid hint.
        mark: identity of this file, which a log notes to recognise its own directory.
        was_restored: a copying tool set the file's times.
        waiting_since: monotonic seconds since when this process waits in line, 0 when it does not;
            a watcher in another thread reads it.
        is_alone: no other process has the log open, according to the board of owners and the lock's
            file: opening takes the lock and writes the opener's name. Set by the thread that reads
            the board after a release.
        waits: nanoseconds of each wait for the lock.
        longest_hold_ns: the longest time it was held, without excused time.

    Raises:
        LogError: as ``check_writable``; nothing was written.
    """

    def __init__(self, disk: ports.Disk, path: str, pid: int) -> None:
        check_writable(disk, path)
        self._disk = disk
        self._path = path
        self.file_path: str = f"{path}/{LOCK_FILE}"
        with contextlib.ExitStack() as undo:
            self._gate = disk.open(f"{path}/turnstile.lock", create=True)
            undo.callback(disk.close, self._gate)
            self._file = disk.open(self.file_path, create=True)
            undo.callback(disk.close, self._file)
            self.home: Home = (disk.boot_id(), *disk.identity(self._file))
            self.mark: LockMark = LockMark(self.home[2], disk.born_ns(self._file))
            self.was_restored: bool = disk.was_restored(self._file)
            self._is_strange = self.was_restored
            self.turn: SyncTurn = SyncTurn(disk, path)
            undo.pop_all()
        # Processes in two containers may have the same pid.
        nonce = int.from_bytes(os.urandom(4), "little") & ~_EXCLUSIVE
        self._me = _HOLDER.pack(pid, nonce)
        self._mine = _HOLDER.pack(pid, nonce | _EXCLUSIVE)
        self._hint_data = b""
        #: content of the file when this process last signed or wrote it
        self._left: bytes | None = None
        self._hint: TailHint | None = None
        self.held: bool = False
        #: the file names this holder, and its hint was read: no other process writes it meanwhile
        self._is_signed = False
        self.exclusive: bool = False
        self.is_alone: bool = False
        self._cut_in = 0
        self.waiting_since: float = 0.0
        self.waits: meters.Histogram = meters.Histogram()
        self.longest_hold_ns: int = 0
        self._taken_ns = 0
        self._excused_ns = 0
        #: called before this thread waits in line, to start a watcher
        self.on_wait: Callable[[], None] = lambda: None

    def acquire(self) -> TailHint | None:
        """Take the lock; return the hint, None if it is not valid.

        Raises:
            LogLocked: at once if the holder keeps the lock for good.
        """
        if self.held:
            return self._hint if self._is_signed else self._sign()
        asked_ns = perf_counter_ns()
        if not self._cuts_in():
            self._enter()
        self.held = True
        self._taken_ns = perf_counter_ns()
        self._excused_ns = 0
        self.waits.record(self._taken_ns - asked_ns)
        try:
            return self._sign()
        except BaseException:
            self.release()
            raise

    def try_acquire(self) -> bool:
        disk = self._disk
        if self.held:
            return True
        self.held = self._cuts_in()
        if not self.held and disk.try_lock(self._gate):
            try:
                self.held = disk.try_lock(self._file)
            finally:
                disk.unlock(self._gate)
        self._taken_ns, self._excused_ns = perf_counter_ns(), 0
        return self.held

    def _cuts_in(self) -> bool:
        """Take the lock without the turnstile if it is free; return whether it was taken.

        A lone process need not be fair, except now and then to a process that opens the log.
        """
        self._cut_in = self._cut_in + 1 if self.is_alone and self._cut_in < _CUT_IN_MAX else 0
        return self._cut_in > 0 and self._disk.try_lock(self._file)

    def _sign(self) -> TailHint | None:
        data = self._disk.read(self._file, _SIZE, 0)
        if data == self._left:
            self._is_signed = True
            return self._hint
        me = self._mine if self.exclusive else self._me
        if data[:8] != me:
            self.is_alone = False
            ports.write_all(self._disk, self._file, me, 0)
        self._left = me + data[_HOLDER.size :]
        hint = self._decoded(data[_HOLDER.size :])
        if self._is_strange:
            # A backup written over the file names the former file.
            self._is_strange = False
            hint = None if hint is None else hint._replace(inode=0)
        return hint

    def release(self) -> None:
        if self.held and not self.exclusive:
            self.held = self._is_signed = False
            give_back(self._disk, self._file)
            held_ns = perf_counter_ns() - self._taken_ns - self._excused_ns
            self.longest_hold_ns = max(self.longest_hold_ns, held_ns)

    def let_go(self) -> None:
        """Release every lock that an interrupted caller may hold, and drop the read hint."""
        self.turn.give_up()
        give_back(self._disk, self._gate)
        self._left, self._hint_data, self._is_signed = None, b"", False
        self.held, self.waiting_since = self.exclusive, 0.0
        if not self.exclusive:
            give_back(self._disk, self._file)

    def excuse(self, waited_ns: int) -> None:
        """Exclude time of an fsync under the lock."""
        self._excused_ns += waited_ns

    def write_hint(self, hint: TailHint) -> None:
        """Write the end of the log into the lock's file, before the release."""
        packed = _TAIL.pack(*hint)
        data = packed + crc32(packed).to_bytes(4, "little")
        if self._disk.write(self._file, data, _HOLDER.size) < len(data):
            ports.write_all(self._disk, self._file, data, _HOLDER.size)
        self._hint_data, self._hint = data, hint
        self._left = (self._mine if self.exclusive else self._me) + data

    def void_hint(self) -> None:
        """Overwrite the hint, before a step that may be interrupted."""
        self._is_signed = False
        ports.write_all(self._disk, self._file, bytes(_TAIL_SIZE), _HOLDER.size)

    def peek(self, tries: int = 1) -> TailHint | None:
        """Return the hint without the lock, None if it is not valid.

        Raises:
            OSError: none of the tries could read it.
        """
        while True:
            try:
                data = self._disk.read(self._file, _TAIL_SIZE, _HOLDER.size)
            except OSError:
                tries -= 1
                if not tries:
                    raise
            else:
                return self._hint if data == self._hint_data else self._decoded(data)

    def _decoded(self, data: bytes) -> TailHint | None:
        """Decode a hint and cache it: the next one is usually the same."""
        self._hint_data, self._hint = data, _decode(data)
        return self._hint

    def never_had_hint(self) -> bool:
        """Return whether no hint was ever written; otherwise an invalid one is incomplete."""
        return self._disk.size(self._file) < _SIZE

    def keep(self) -> None:
        """Sync the file: after a power loss its hint then names an earlier boot."""
        self._disk.sync(self._file)

    def locked_error(self, waited_seconds: float) -> errors.LogLocked:
        """Return the error for callers that waited too long; any thread may call it.

        It names the holder of the lock, or the process that is in the turnstile. If the system does
        not report either, it names the last writer.
        """
        path = Path(self._path)
        try:
            # Read without the disk port, which only the storage thread may use.
            last = access.read_file(path / "write.lock", _HOLDER.size)
        except OSError:
            last = b""
        holders = flock_holders(path / "write.lock", path / "turnstile.lock")
        pid = next(filter(None, holders), 0) or _HOLDER.unpack(last.ljust(_HOLDER.size, b"\0"))[0]
        return errors.LogLocked(self._path, pid, process_state(pid), waited_seconds)

    def close(self) -> None:
        if self.exclusive and self.held:
            ports.write_all(self._disk, self._file, self._me, 0)
        self.exclusive = False
        self.release()
        self._disk.close(self._file)
        self._disk.close(self._gate)
        self.turn.close()

    def _enter(self) -> None:
        try:
            self._pass_turnstile()
        finally:
            self.waiting_since = 0.0

    def _pass_turnstile(self) -> None:
        disk = self._disk
        if disk.try_lock(self._gate):
            try:
                if disk.try_lock(self._file):
                    return
                self._refuse_if_exclusive()
                self._wait(self._file)
            finally:
                give_back(disk, self._gate)
        else:
            self._refuse_if_exclusive()
            self._wait(self._gate)
            try:
                if not disk.try_lock(self._file):
                    self._refuse_if_exclusive()
                    self._wait(self._file)
            finally:
                give_back(disk, self._gate)

    def _wait(self, descriptor: int) -> None:
        """Wait in the kernel's queue, which is fair and wakes at once; a watcher times the wait."""
        # The waits for the turnstile and for the lock count as one.
        self.waiting_since = self.waiting_since or time.monotonic()
        self.on_wait()
        self._disk.lock(descriptor)

    def _refuse_if_exclusive(self) -> None:
        holder = self._disk.read(self._file, 8, 0)
        if len(holder) < _HOLDER.size:
            return
        pid, flags = _HOLDER.unpack(holder)
        # A killed process leaves its flag, but not its lock.
        if flags & _EXCLUSIVE and system.lives(pid):
            raise self.locked_error(0.0)


def give_back(disk: ports.Disk, descriptor: int) -> None:
    """Unlock a file. Work under the lock is done, so an error is only retried.

    If the system refuses repeatedly, this process keeps the lock until its next release.
    """
    for attempt in range(_GIVE_BACK_MAX):
        try:
            disk.unlock(descriptor)
        except OSError as error:
            if attempt == _GIVE_BACK_MAX - 1:
                _log.warning("a lock could not be given back: %s", error)
        else:
            return


def read_hint(disk: ports.Disk, descriptor: int) -> TailHint | None:
    """Return the hint in the lock's file without the lock, None if it is not valid."""
    return _decode(disk.read(descriptor, _TAIL_SIZE, _HOLDER.size))


def boot_of(disk: ports.Disk, path: str, hint: TailHint, boot: int) -> int:
    """Return the number of this boot, from the hint while a process of that boot lives.

    On systems without such a number each process guesses it, and a set clock changes the guess.
    """
    return hint.boot if hint.boot != boot and disk.has_living_owners(path) else boot


def find_hint(disk: ports.Disk, path: str, boot: int) -> tuple[TailHint | None, bool, Home]:
    try:
        descriptor = disk.open(f"{path}/{LOCK_FILE}", write=False)
    except OSError:
        return None, True, (boot, 0, 0)
    try:
        hint = read_hint(disk, descriptor)
        if hint is not None:
            boot = boot_of(disk, path, hint, boot)
        home: Home = (boot, 0, 0)
        if not disk.was_restored(descriptor):
            home = (boot, *disk.identity(descriptor))
        return hint, disk.size(descriptor) < _SIZE, home
    finally:
        disk.close(descriptor)


def flock_holders(*paths: Path) -> list[int]:
    """Return the pids that hold an flock on these files; 0 for none, or if unknown."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        inodes = [path.stat().st_ino for path in paths]
    except OSError:
        return [0] * len(paths)
    # Line: "1: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF"; a waiter has "->" after "1:".
    held = [fields for fields in map(str.split, lines) if fields[1] == "FLOCK"]
    pids = {int(fields[5].rpartition(":")[2]): int(fields[4]) for fields in held}
    return [max(pids.get(inode, 0), 0) for inode in inodes]


def process_state(pid: int) -> str:
    """Return the state and the name of a process, as the system reports them.

    The command line is left out, since it may contain passwords. The name may be any text.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "state unknown"
    named, _, rest = status.rpartition(") ")
    name = "".join(letter if letter.isprintable() else "?" for letter in named.partition(" (")[2])
    return f"{_STATES.get(rest[:1], 'state unknown')}: {name}"


def _decode(data: bytes) -> TailHint | None:
    if len(data) < _TAIL_SIZE:
        return None
    if int.from_bytes(data[_TAIL.size : _TAIL_SIZE], "little") != crc32(data[: _TAIL.size]):
        return None
    hint = TailHint(*_TAIL.unpack_from(data))
    return hint if hint.is_sound else None


# Time limit of a wait for the writer lock.
#
# The thread waits in the kernel's queue, which is fair and wakes at once, but has no time limit. So
# a second thread, which lives only during waits, checks the time and reports late waits.

#: Checks during the longest allowed wait.
_SHARE: Final = 8
#: Checks without a waiter after which the watcher ends.
_QUIET_LOOKS: Final = 80


class LockWatch:
    """Calls ``on_late(seconds waited)`` while a wait is over its limit.

    Args:
        writer: the lock; its waits start the watch.
        limit_seconds: the longest wait.
        on_late: called on the watcher's thread, at every check.
    """

    def __init__(
        self, writer: WriterLock, limit_seconds: float, on_late: Callable[[float], None]
    ) -> None:
        self._writer = writer
        self._limit_seconds = limit_seconds
        self._on_late = on_late
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        writer.on_wait = self._start

    def stop(self) -> None:
        self._stopped.set()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            with contextlib.suppress(errors.LogError):  # then this wait has no time limit
                self._thread = threads.start_thread(self._run, "taskq-lock-watch")

    def _run(self) -> None:
        quiet = looks = 0
        before, pause = 0.0, self._limit_seconds / _SHARE
        while quiet < _QUIET_LOOKS and not self._stopped.wait(pause):
            since = self._writer.waiting_since
            quiet = 0 if since else quiet + 1
            looks, before = looks + 1 if since == before else 1, since
            # A check counts once, even if the process was stopped before it.
            waited = min(time.monotonic() - since, looks * pause) if since else 0.0
            if waited > self._limit_seconds:
                self._on_late(waited)
