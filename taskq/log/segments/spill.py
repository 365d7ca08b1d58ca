"""Large bodies in files beside the log, named by what is in them: ``spill/<SHA-256 in hex>``.

Bodies that are equal share a file. It is on disk before anybody may name it, and stays for as long
as a record does. Nobody counts the records: compaction knows them all, and removes what none names.

What keeps a file from being removed under a record that is on its way: whoever writes the record
touches the file first, under the writer lock (``renew``), and whoever removes a file looks, under
the same lock, whether it was touched since he chose it (``collect``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from typing import TYPE_CHECKING, Final

from taskq.core.errors import AppendFailed, DiskFull, LogDamaged, SpillMissing, refusal
from taskq.core.model import SECOND_NS
from taskq.core.records import Flag
from taskq.core.values import NamedTuple
from taskq.log.machine.disk import PatientDisk
from taskq.log.machine.ports import write_file
from taskq.log.requests import OldFile

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterator

    from taskq.log.format.record import LogRecord
    from taskq.log.machine.ports import Disk

DIRECTORY: Final = "spill"
_SPILLED: Final = int(Flag.SPILLED)
#: Files younger than this are left alone: their records may be on their way.
GRACE_SECONDS: Final = 3_600.0
_REFERENCE: Final = struct.Struct("<32sQ")
REFERENCE_BYTES: Final = _REFERENCE.size
_TEMPORARY: Final = ".tmp"
#: What ``put`` and ``collect`` name files; others are none of ours.
_NAME: Final = r"[0-9a-f]{64}(?P<rest>(\.[0-9a-f]{16})?\.tmp)?"
_PIECE_BYTES: Final = 1024 * 1024
#: Files that are looked at in one step of ``old_files``.
_STEP_FILES: Final = 256


class Reference(NamedTuple):
    """Record's reference to a file."""

    #: SHA-256 of its content
    digest: bytes
    #: bytes in it
    size: int

    @property
    def name(self) -> str:
        """The file's name."""
        return self.digest.hex()


def decode_reference(body: bytes, what: str) -> Reference:
    """Return the file that a record with flag SPILLED names; ``what`` the body is called in errors.

    Raises:
        LogDamaged: the record does not name one.
    """
    if len(body) != _REFERENCE.size:
        raise LogDamaged(f"{what}: its record holds {len(body)} bytes, where a file's name has 40")
    return Reference(*_REFERENCE.unpack(body))


def files_named(record: LogRecord) -> list[bytes]:
    """Return what a record says of the files that it names: of a payload, a result, or of both."""
    named = [record.body if record.body_flags & _SPILLED else None]
    if record.carried is not None:
        named.append(record.carried.body if record.carried.flags & _SPILLED else None)
    return [stored for stored in named if stored is not None]


def renew(disk: Disk, path: str, body: bytes, what: str) -> None:
    """Let the file that a record is about to name be as young as the record.

    Called under the writer lock, before the record is added; ``what`` is the body called in errors.

    Raises:
        SpillMissing: it was removed since it was written, more than an hour ago.
        AppendFailed: the disk refuses.
    """
    name = decode_reference(body, what).name
    try:
        disk.touch(f"{path}/{DIRECTORY}/{name}")
    except FileNotFoundError:
        raise SpillMissing(
            f"{path}/{DIRECTORY}/{name} is gone, and held {what}: nothing was written, try again"
        ) from None
    except OSError as error:
        raise AppendFailed(path, error) from error


class Spill:
    """The files of one log, for threads that may wait for the disk; any number at a time.

    Args:
        path: the log's directory.
        make_disk: called for each operation, since a disk serves one thread.
    """

    def __init__(self, path: str, make_disk: Callable[[], Disk] = PatientDisk) -> None:
        self.path = path
        self._make_disk = make_disk
        self._is_kept = False
        #: names whose directory entries may not be on disk, whatever a later sync says
        self._doubtful: set[str] = set()

    def put(self, body: bytes, least_free: Callable[[int], int] | None = None) -> bytes:
        """Write the body to its file, unless it is there; returns what a record says of it.

        The file survives a power loss when this returns. ``least_free`` says how many bytes of a
        disk of a size must be left free.

        Raises:
            DiskFull: they would not be.
            AppendFailed: the disk refused.
        """
        import hashlib  # noqa: PLC0415 - it brings OpenSSL along, and few logs have such files

        disk = self._make_disk()
        digest = hashlib.sha256(body).digest()
        try:
            self._keep_directory(disk)
            self._put(disk, digest.hex(), body, least_free)
        except OSError as error:
            raise AppendFailed(self.path, error) from error
        return _REFERENCE.pack(digest, len(body))

    def get(self, stored: bytes, what: str) -> bytes:
        """Return the body whose record says this; ``what`` it is called in errors.

        The file is checked piece by piece before memory is taken for all of it.

        Raises:
            SpillMissing: its file is gone.
            LogDamaged: the file holds something else.
            LogError: it cannot be read.
        """
        with self._checked(stored, what) as (disk, descriptor, size):
            return disk.read(descriptor, size, 0)

    def check(self, stored: bytes, what: str) -> None:
        """Do as ``get``, without reading the body into memory; raises what it does."""
        with self._checked(stored, what):
            pass

    @contextlib.contextmanager
    def _checked(self, stored: bytes, what: str) -> Iterator[tuple[Disk, int, int]]:
        """The disk, a descriptor of the file and its size, once it proved to be right."""
        import hashlib  # noqa: PLC0415 - as above

        reference = decode_reference(stored, what)
        disk = self._make_disk()
        file = self.file_path(reference)
        with _reading(disk, file, what) as descriptor:
            size = disk.size(descriptor)
            if size != reference.size:
                raise LogDamaged(f"{file} has {size} bytes, {what} had {reference.size}")
            hashed, at = hashlib.sha256(), 0
            while at < size:
                piece = disk.read(descriptor, _PIECE_BYTES, at)
                hashed.update(piece)
                at += len(piece) or size
            if hashed.digest() != reference.digest:
                raise LogDamaged(f"{file} does not hold {what} any more: its SHA-256 differs")
            yield disk, descriptor, size

    def file_path(self, reference: Reference) -> str:
        """Return where the file is that a record names."""
        return f"{self.path}/{DIRECTORY}/{reference.name}"

    def _keep_directory(self, disk: Disk) -> None:
        """Make the directory, and its entry durable; whoever made it may have died before that."""
        if not self._is_kept:
            disk.make_directory(f"{self.path}/{DIRECTORY}")
            disk.sync_directory(self.path)
            self._is_kept = True

    def _put(
        self, disk: Disk, name: str, body: bytes, least_free: Callable[[int], int] | None
    ) -> None:
        directory = f"{self.path}/{DIRECTORY}"
        file = f"{directory}/{name}"
        if name in self._doubtful or not _is_there(disk, file, body):
            if least_free is not None:
                free, least = disk.free_bytes(self.path), least_free(disk.total_bytes(self.path))
                if free - len(body) < least:
                    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    raise DiskFull(self.path, full, free, least)
            temporary = f"{file}.{os.urandom(8).hex()}{_TEMPORARY}"
            try:
                write_file(disk, temporary, body)
                disk.rename(temporary, file)
            except OSError:
                with contextlib.suppress(OSError):
                    disk.remove(temporary)
                raise
        # Also for a file that was there: its writer may not have come so far.
        self._doubtful.add(name)
        disk.sync_directory(directory)
        self._doubtful.discard(name)


@contextlib.contextmanager
def _reading(disk: Disk, file: str, what: str) -> Iterator[int]:
    """A descriptor of the file; whatever the disk says against it is an error that names it."""
    try:
        descriptor = disk.open(file, write=False)
        try:
            yield descriptor
        finally:
            disk.close(descriptor)
    except FileNotFoundError:
        raise SpillMissing(
            f"{file} is missing, and held {what}: restore it from a backup of the directory"
        ) from None
    except OSError as error:
        raise refusal(file, error) from error


def _is_there(disk: Disk, file: str, body: bytes) -> bool:
    """Return whether the file holds exactly the body; touches it, so that it is not collected."""
    try:
        descriptor = disk.open(file, write=False)
    except FileNotFoundError:
        return False
    try:
        if disk.size(descriptor) != len(body):
            return False
        for at in range(0, len(body), _PIECE_BYTES):
            # A copy: bytes compare as fast as memory is read, a view's items one by one.
            piece = body[at : at + _PIECE_BYTES]
            if disk.read(descriptor, len(piece), at) != piece:
                return False
    finally:
        disk.close(descriptor)
    try:
        disk.touch(file)
    except FileNotFoundError:
        return False
    return True


# -- collecting -----------------------------------------------------------------------------------


def old_files(
    disk: Disk, path: str, now_ns: int, grace_seconds: float = GRACE_SECONDS
) -> Generator[None, None, list[OldFile]]:
    """Look for files that may be collected, in small steps; no lock is needed.

    Then find out which of them records name, and only then ``collect``: a record that is written
    after this has touched its file, and one from before is found.
    """
    limit_ns = now_ns - round(grace_seconds * SECOND_NS)
    old: list[OldFile] = []
    for number, name in enumerate(disk.names(f"{path}/{DIRECTORY}")):
        if number % _STEP_FILES == 0:
            yield
        ours = re.fullmatch(_NAME, name)
        if ours is None:
            continue
        modified_ns = disk.modified_ns(f"{path}/{DIRECTORY}/{name}")
        if modified_ns is not None and modified_ns <= limit_ns:
            digest = b"" if ours["rest"] else bytes.fromhex(name)
            old.append(OldFile(name, modified_ns, digest))
    return old


def collect(
    disk: Disk, path: str, files: list[OldFile], referenced: Container[bytes]
) -> Generator[None, None, int]:
    """Remove those of the files that no record names; returns how many.

    Each step removes one file, and must run under the writer lock. ``referenced`` is gathered from
    the oldest segment to the newest, its tail last: what compaction takes from behind it has
    written again in front before.

    Args:
        disk: the log's.
        path: the log's directory.
        files: what ``old_files`` found.
        referenced: digests of all that records name, as of a moment after ``old_files``.
    """
    removed = 0
    for file in files:
        if file.digest in referenced:
            continue
        yield
        removed += _remove_unless_touched(disk, f"{path}/{DIRECTORY}/{file.name}", file.modified_ns)
    return removed


def _remove_unless_touched(disk: Disk, file: str, modified_ns: int) -> bool:
    if disk.modified_ns(file) != modified_ns:
        return False
    # Moved aside first: who finds it from here on to be missing writes it anew, and who found it
    # just before has touched it, which shows.
    aside = file if file.endswith(_TEMPORARY) else f"{file}{_TEMPORARY}"
    with contextlib.suppress(FileNotFoundError):
        if aside != file:
            disk.rename(file, aside)
        if disk.modified_ns(aside) != modified_ns:
            disk.rename(aside, file)
            # Whoever touched it has synced the directory already.
            disk.sync_directory(file.rpartition("/")[0])
            return False
    disk.remove(aside)
    return True
