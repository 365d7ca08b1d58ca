"""Named readers: how far each has come, kept beside the log, and the lock of whoever reads.

``readers/<name>.ofs`` has room for the position three times, in sectors of their own: the copy that
is known to be on disk is left alone, the other two are written over in turn. So whatever is cut
short, by a kill or a loss of power, an older copy stands. Each has a CRC that starts from the log's
id and the reader's name; one that does not fit is no position. Saving costs no fsync: what a crash
makes of it is at worst an older position, and what was read since then comes again.

``readers/<name>.lck`` is locked with flock for as long as somebody reads under the name, and names
the process.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import Final
from uuid import UUID

from taskq.core.errors import LogDamaged, LogError, ReaderBusy, UsageError
from taskq.core.parsing import check_name
from taskq.core.values import NamedTuple
from taskq.log.format.codec import crc32
from taskq.log.machine.ports import Disk, write_all, write_file
from taskq.log.machine.reports import Reporter
from taskq.log.segments.identity import read_identity

_log: Final = Reporter("taskq")
#: Longest name, in characters and in the bytes of a file's name.
NAME_CHARACTERS_MAX: Final = 100
NAME_BYTES_MAX: Final = 200
#: Whoever sends the log to a hub reads it under this name: what is not safe there stays here.
HUB_READER: Final = "hub"
_FOLDER: Final = "readers"
_POSITION: Final = ".ofs"
_LOCK: Final = ".lck"
#: magic, version, size, then sequence, segment, offset, lsn, epoch, time
_SLOT: Final = struct.Struct("<IHHQQQQQq")
_MAGIC: Final = 0x52514B54
_VERSION: Final = 1
_SLOT_SIZE: Final = _SLOT.size + 4
#: Copies stand so far apart that no sector holds a part of both.
_SLOT_BYTES: Final = 4_096
_SLOTS: Final = 3
_LOCK_BYTES_MAX: Final = 64
#: Whoever asks whether a reader lives holds its lock for a moment.
_TRIES: Final = 8
_TRY_AGAIN_SECONDS: Final = 0.002


class Position(NamedTuple):
    """Tell how far a reader has come: it has had everything before ``lsn``.

    The frame that held the last of that is named, so that the next to read can see that it is still
    there. ``offset`` 0: no frame is named, ``segment`` is where to look.
    """

    segment: int
    lsn: int
    offset: int = 0
    epoch: int = 0
    time_ns: int = 0


class _Slot(NamedTuple):
    sequence: int
    position: Position
    number: int


def check_reader_name(name: str) -> str:
    """Return the name, if files can be called so.

    Raises:
        UsageError: it is not one; the message says why.
    """
    if not isinstance(name, str):
        raise UsageError(f"a reader's name is text, not {name!r:.60}")
    if len(name) > NAME_CHARACTERS_MAX or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise UsageError(
            f"reader name {name[:40]!r}… has {len(name)} characters: it may have at most "
            f"{NAME_CHARACTERS_MAX}, and {NAME_BYTES_MAX} bytes in UTF-8"
        )
    check_name("reader name", name)
    if "/" in name or name.startswith("."):
        raise UsageError(
            f"reader name {name!r} becomes a file's name: it must not hold a / or start with a dot"
        )
    return name


def reader_names(disk: Disk, path: str) -> list[str]:
    names = (name for name in disk.names(f"{path}/{_FOLDER}") if name.endswith(_POSITION))
    return [stem for name in names if _is_name(stem := name.removesuffix(_POSITION))]


def reader_positions(disk: Disk, path: str) -> dict[str, tuple[int, int]]:
    """(segment, lsn) of each named reader: it has read all before that lsn and needs the rest.

    Reads only, and from any process. What is no position is logged and left out: its reader is told
    when it comes back.
    """
    identity = read_identity(disk, path)
    if identity is None:
        return {}
    positions: dict[str, tuple[int, int]] = {}
    for name in reader_names(disk, path):
        try:
            position = read_position(disk, path, identity.log_id, name)
        except (LogError, OSError) as error:
            _log.warning("%s", error)
            continue
        if position is not None:
            positions[name] = position.segment, position.lsn
    return positions


def read_position(disk: Disk, path: str, log_id: UUID, name: str) -> Position | None:
    """Return where a reader stands; None if there is no reader of that name.

    Raises:
        LogDamaged: neither copy of its position reads back.
    """
    slots = _read_slots(disk, _file_of(path, name, _POSITION), _seed(log_id, name))
    return max(slots).position if slots else None


def is_read(disk: Disk, path: str, name: str) -> bool:
    try:
        descriptor = disk.open(_file_of(path, name, _LOCK), write=False)
    except OSError:
        return False
    try:
        if not disk.try_lock(descriptor):
            return True
        disk.unlock(descriptor)
    finally:
        disk.close(descriptor)
    return False


class NamedReader:
    """The hold on one reader's name and position. Take it with ``take``, end it with ``release``.

    For any thread. In a forked child it does nothing: the name is its parent's.

    Attributes:
        position: as it was last read or saved; None for a new reader.
    """

    #: the name under which who sends the log elsewhere reads it
    HUB = HUB_READER

    def __init__(self, disk: Disk, path: str, log_id: UUID, name: str, lock: int) -> None:
        self.name = name
        self.position: Position | None = None
        self._disk = disk
        self._path = path
        self._file_path = _file_of(path, name, _POSITION)
        self._seed = _seed(log_id, name)
        self._lock = lock
        self._file = -1
        self._sequence = 0
        #: number of the copy written last, and of the one that is on disk; -1 for none
        self._latest = self._anchor = -1
        self._pid = os.getpid()
        # A save that nobody waits for any more must not write to a descriptor that was given back.
        self._guard = threading.Lock()

    @classmethod
    def take(cls, disk: Disk, path: str, log_id: UUID, name: str) -> NamedReader:
        """Keep everybody else from reading under the name.

        Raises:
            ReaderBusy: somebody does.
            UsageError: the name cannot be one.
        """
        check_reader_name(name)
        disk.make_directory(f"{path}/{_FOLDER}")
        return cls(disk, path, log_id, name, _take_lock(disk, path, name))

    def load(self) -> Position | None:
        """Read the position, and make sure that it is on disk; None for a new reader.

        Raises:
            LogDamaged: no copy of it reads back.
            OSError: the disk refused.
        """
        with self._guard:
            slots = _read_slots(self._disk, self._file_path, self._seed)
            if slots and self._is_ours:
                self._sequence, self.position, self._latest = max(slots)
                self._file = self._disk.open(self._file_path)
                self._disk.sync(self._file)
                self._anchor = self._latest
            return self.position

    def save(self, position: Position) -> None:
        """Note how far the reader has come.

        Raises:
            OSError: the disk refused.
        """
        with self._guard:
            if self._is_ours and position != self.position:
                self._write(position)
                self.position = position

    def keep_from(self, segment: int, lsn: int) -> None:
        """Let all below an lsn go, durably: that is in the segment.

        Raises:
            OSError: the disk refused.
        """
        self.save(Position(segment, lsn))
        self.sync()

    def sync(self) -> None:
        """Return once the position survives a power loss.

        Raises:
            OSError: it may not.
        """
        with self._guard:
            if self._is_ours and self._latest != self._anchor:
                self._disk.sync(self._file)
                self._anchor = self._latest

    def forget(self) -> None:
        """Remove the reader; its name is free afterwards."""
        with self._guard:
            if self._is_ours:
                self._disk.remove(self._file_path)
                self._disk.remove(_file_of(self._path, self.name, _LOCK))
        self.release()

    def release(self) -> None:
        """Let others read under the name. Legal twice."""
        with self._guard:
            if not self._is_ours:
                return
            descriptors, self._file, self._lock = (self._file, self._lock), -1, -1
            for descriptor in descriptors:
                if descriptor >= 0:
                    self._disk.close(descriptor)

    @property
    def _is_ours(self) -> bool:
        return self._lock >= 0 and self._pid == os.getpid()

    def _write(self, position: Position) -> None:
        self._sequence += 1
        packed = _SLOT.pack(
            _MAGIC, _VERSION, _SLOT.size, self._sequence, position.segment, position.offset,
            position.lsn, position.epoch, position.time_ns,
        )  # fmt: skip
        data = packed + crc32(packed, self._seed).to_bytes(4, "little")
        if self._file < 0:
            self._create(data)
            return
        in_use = (self._anchor, self._latest)
        slot = next(number for number in range(_SLOTS) if number not in in_use)
        write_all(self._disk, self._file, data, slot * _SLOT_BYTES)
        self._latest = slot

    def _create(self, data: bytes) -> None:
        temporary = f"{self._file_path}.tmp"
        write_file(self._disk, temporary, data)
        self._disk.rename(temporary, self._file_path)
        for directory in (f"{self._path}/{_FOLDER}", self._path):
            self._disk.sync_directory(directory)
        self._file = self._disk.open(self._file_path)
        self._anchor = self._latest = 0


def _is_name(stem: str) -> bool:
    try:
        check_reader_name(stem)
    except UsageError:
        return False
    return True


def _file_of(path: str, name: str, suffix: str) -> str:
    return f"{path}/{_FOLDER}/{name}{suffix}"


def _seed(log_id: UUID, name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass"), crc32(log_id.bytes))


def _read_slots(disk: Disk, file_path: str, seed: int) -> list[_Slot]:
    try:
        descriptor = disk.open(file_path, write=False)
    except FileNotFoundError:
        return []
    try:
        data = [disk.read(descriptor, _SLOT_SIZE, n * _SLOT_BYTES) for n in range(_SLOTS)]
    finally:
        disk.close(descriptor)
    slots = [
        slot for n, sector in enumerate(data) if (slot := _decode_slot(sector, seed, n)) is not None
    ]
    if not slots:
        raise LogDamaged(
            f"{file_path}: the position of this reader does not read back: say where it is to go "
            f"on with seek(), or start anew after forget_reader()"
        )
    return slots


def _decode_slot(data: bytes, seed: int, number: int) -> _Slot | None:
    if len(data) < _SLOT_SIZE:
        return None
    magic, version, size, sequence, segment, offset, lsn, epoch, time_ns = _SLOT.unpack_from(data)
    if (magic, version, size) != (_MAGIC, _VERSION, _SLOT.size):
        return None
    if int.from_bytes(data[_SLOT.size : _SLOT_SIZE], "little") != crc32(data[: _SLOT.size], seed):
        return None
    return _Slot(sequence, Position(segment, lsn, offset, epoch, time_ns), number)


def _take_lock(disk: Disk, path: str, name: str) -> int:
    """Return a descriptor of the lock file, locked.

    Raises:
        ReaderBusy: another holds it.
    """
    file_path = _file_of(path, name, _LOCK)
    mark = f"{os.getpid()} {os.urandom(8).hex()}\n".encode()
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_TRY_AGAIN_SECONDS)
        descriptor = disk.open(file_path, create=True)
        if not disk.try_lock(descriptor):
            disk.close(descriptor)
            continue
        disk.truncate(descriptor, 0)
        write_all(disk, descriptor, mark, 0)
        # Whoever forgot the reader meanwhile removed the file that is locked here.
        if _read_lock(disk, file_path) == mark:
            return descriptor
        disk.close(descriptor)
    pid = _read_lock(disk, file_path).partition(b" ")[0]
    raise ReaderBusy(path, name, int(pid) if pid.isdigit() else 0)


def _read_lock(disk: Disk, file_path: str) -> bytes:
    try:
        descriptor = disk.open(file_path, write=False)
    except FileNotFoundError:
        return b""
    try:
        return disk.read(descriptor, _LOCK_BYTES_MAX, 0)
    finally:
        disk.close(descriptor)
