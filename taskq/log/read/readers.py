"""Named readers: their positions, stored in the log's directory, and their locks."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Final
from uuid import UUID

from taskq.core import errors, parsing
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.machine import ports, threads
from taskq.log.segments.identity import Identity, read_identity

_log: Final = threads.Reporter("taskq")
#: Longest name, in characters and in bytes of its file name.
NAME_CHARACTERS_MAX: Final = 100
NAME_BYTES_MAX: Final = 200
#: Name of the reader that sends the log to a hub: records that the hub lacks stay here.
HUB_READER: Final = "hub"
_FOLDER: Final = "readers"
_POSITION: Final = ".place"
_LOCK: Final = ".lck"
_BYTES_MAX: Final = 4_096
_LOCK_BYTES_MAX: Final = 64
#: Tries to lock, since a check whether a reader lives holds its lock for a moment.
_TRIES: Final = 8
_TRY_AGAIN_SECONDS: Final = 0.002


class ReaderPosition(NamedTuple):
    """Position of a reader: it has read everything before ``lsn``.

    The other fields identify the frame of the last record read, so the next reader can check that
    it is still there. ``offset`` 0: no frame, only the segment.
    """

    segment: int
    lsn: int
    offset: int = 0
    epoch: int = 0
    time_ns: int = 0


def check_reader_name(name: str) -> str:
    if not isinstance(name, str):
        raise errors.UsageError(f"a reader's name is text, not {name!r:.60}")
    if len(name) > NAME_CHARACTERS_MAX or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise errors.UsageError(
            f"reader name {name[:40]!r}… has {len(name)} characters: it may have at most "
            f"{NAME_CHARACTERS_MAX}, and {NAME_BYTES_MAX} bytes in UTF-8"
        )
    parsing.check_name("reader name", name)
    if "/" in name or name.startswith("."):
        raise errors.UsageError(
            f"reader name {name!r} becomes a file's name: it must not hold a / or start with a dot"
        )
    return name


def reader_names(disk: ports.Disk, path: str) -> list[str]:
    names = (name for name in disk.names(f"{path}/{_FOLDER}") if name.endswith(_POSITION))
    return [stem for name in names if _is_name(stem := name.removesuffix(_POSITION))]


def reader_positions(disk: ports.Disk, path: str) -> dict[str, tuple[int, int]]:
    """Return (segment, lsn) of each named reader: it has read everything before that lsn.

    It only reads, and works from any process. An invalid file is logged and left out; its reader
    gets the error when it comes back.
    """
    identity = read_identity(disk, path)
    if identity is None:
        return {}
    positions: dict[str, tuple[int, int]] = {}
    for name in reader_names(disk, path):
        try:
            position = read_position(disk, path, identity, name)
        except (errors.LogError, OSError) as error:
            _log.warning("%s", error)
            continue
        if position is not None:
            positions[name] = position.segment, position.lsn
    return positions


def read_position(
    disk: ports.Disk, path: str, identity: Identity, name: str
) -> ReaderPosition | None:
    """Return a reader's position; None if there is no such reader.

    A position in a parent log counts up to the end of the parent's records.
    """
    file_path = _file_of(path, name, _POSITION)
    try:
        data = ports.read_file(disk, file_path, _BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        values = json.loads(data)
        position, log_id = ReaderPosition(*values["position"]), UUID(values["log_id"])
        ends = {parent.log_id: parent.next_lsn for parent in identity.parents}
        ends[identity.log_id] = codec.LSN_MAX
        if log_id in ends and data == _encoded(log_id, name, position):
            end = ends[log_id]
            return (
                position if position.lsn <= end else ReaderPosition(min(position.segment, end), end)
            )
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # the file of another reader
    raise errors.LogDamaged(
        f"{file_path}: the position of this reader does not read back: move it with seek(), or "
        f"start anew after forget_reader()"
    )


def is_read(disk: ports.Disk, path: str, name: str) -> bool:
    with (
        contextlib.suppress(OSError),
        ports.opened(disk, _file_of(path, name, _LOCK), write=False) as descriptor,
    ):
        if not disk.try_lock(descriptor):
            return True
        disk.unlock(descriptor)
    return False


class NamedReader:
    """Name and position of one reader. Take it with ``take``, end it with ``release``.

    Any thread may use it. In a forked child it does nothing: the name is its parent's.

    ``readers/<name>.place`` is the position, with the log's id, the reader's name and a CRC-32. It
    is written to another file, synced and renamed, so a kill or a power loss leaves the last
    position or the one before it.

    ``readers/<name>.lck`` is locked with flock while a process reads under the name, and names the
    process.

    Attributes:
        position: as it was last read or saved; None for a new reader.
    """

    #: name of the reader that sends the log elsewhere
    HUB = HUB_READER

    def __init__(
        self, disk: ports.Disk, path: str, identity: Identity, name: str, lock: int
    ) -> None:
        self.name = name
        self.position: ReaderPosition | None = None
        self._disk = disk
        self._path = path
        self._identity = identity
        self._file_path = _file_of(path, name, _POSITION)
        self._lock = lock
        self._pid = os.getpid()
        # A late save must not write to a closed descriptor.
        self._guard = threading.Lock()

    @classmethod
    def take(cls, disk: ports.Disk, path: str, identity: Identity, name: str) -> NamedReader:
        """Take a reader's name, so that no other process reads under it.

        Raises:
            ReaderBusy: another process reads under it.
            UsageError: the name is invalid.
        """
        check_reader_name(name)
        disk.make_directory(f"{path}/{_FOLDER}")
        return cls(disk, path, identity, name, _take_lock(disk, path, name))

    def load(self) -> ReaderPosition | None:
        """Read the position and sync it; None for a new reader.

        Raises:
            LogDamaged: it cannot be read.
            OSError: the disk refused.
        """
        with self._guard:
            if self._is_ours:
                self.position = read_position(self._disk, self._path, self._identity, self.name)
                if self.position is not None:
                    self._disk.sync_directory(f"{self._path}/{_FOLDER}")
            return self.position

    def save(self, position: ReaderPosition) -> None:
        """Save the reader's position durably.

        Raises:
            OSError: the disk refused.
        """
        with self._guard:
            if self._is_ours and position != self.position:
                data = _encoded(self._identity.log_id, self.name, position)
                ports.replace_file(self._disk, self._file_path, data)
                if self.position is None:
                    self._disk.sync_directory(self._path)
                self.position = position

    def keep_from(self, segment: int, lsn: int) -> None:
        """Release all records below an lsn, durably; the lsn is in the segment.

        Raises:
            OSError: the disk refused.
        """
        self.save(ReaderPosition(segment, lsn))

    def forget(self) -> None:
        """Remove the reader; its name is free afterwards."""
        with self._guard:
            if self._is_ours:
                self._disk.remove(self._file_path)
                self._disk.remove(_file_of(self._path, self.name, _LOCK))
        self.release()

    def release(self) -> None:
        """Release the name. May be called twice."""
        with self._guard:
            if not self._is_ours:
                return
            descriptor, self._lock = self._lock, -1
            self._disk.close(descriptor)

    @property
    def _is_ours(self) -> bool:
        return self._lock >= 0 and self._pid == os.getpid()


def _is_name(stem: str) -> bool:
    try:
        check_reader_name(stem)
    except errors.UsageError:
        return False
    return True


def _file_of(path: str, name: str, suffix: str) -> str:
    return f"{path}/{_FOLDER}/{name}{suffix}"


def _encoded(log_id: UUID, name: str, position: ReaderPosition) -> bytes:
    said = {"log_id": str(log_id), "reader": name, "position": position}
    return json.dumps(said | {"crc32": codec.crc32(json.dumps(said).encode())}).encode() + b"\n"


def _take_lock(disk: ports.Disk, path: str, name: str) -> int:
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
        ports.write_all(disk, descriptor, mark, 0)
        # Another process may have removed the reader, and with it the locked file.
        if _read_lock(disk, file_path) == mark:
            return descriptor
        disk.close(descriptor)
    pid = _read_lock(disk, file_path).partition(b" ")[0]
    raise errors.ReaderBusy(path, name, int(pid) if pid.isdigit() else 0)


def _read_lock(disk: ports.Disk, file_path: str) -> bytes:
    try:
        return ports.read_file(disk, file_path, _LOCK_BYTES_MAX)
    except FileNotFoundError:
        return b""
