"""Bulk enqueue: jobs by the million, written to files by any process, and published in one step.

A writer needs neither the log nor its lock: several processes, on several machines, write
parts with a ``PartWriter`` each. ``publish`` names them all in one manifest, which is the moment
from which the upload stands; a second ``publish`` of the same name changes nothing and says False,
so that a retry brings no job twice. Then the log's own processes adopt the jobs in slices, through
the same decisions as any other enqueue: keys, priorities and delays hold, and workers run the first
jobs while the last are still in files. ::

    tail = encode_tail(EnqueueSpec("mail", "mail.send", 5, 3))
    writer = PartWriter(data_dir, "nightly")
    writer.add_many(tail, payloads)
    publish(data_dir, "nightly@12", [writer.close()])

If jobs have the same key, the first wins; there is no replacing and no refusal here. Delays and
expiries that are spans count from the publication.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final, Self

from taskq.core import errors, model
from taskq.log.config import MIN_FREE_BYTES, TINY_DISK_PARTS, LogConfig
from taskq.log.format.codec import pack_length
from taskq.log.inbox import directory, parts
from taskq.log.inbox.parts import CHUNK_JOBS_MAX
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import WriterLock
from taskq.log.machine import peers, ports
from taskq.log.machine.disk import PatientDisk, SystemClock
from taskq.log.requests import EnqueueSpec
from taskq.log.segments.identity import read_identity
from taskq.log.state.uploads import INBOX, MANIFEST, waiting_uploads

#: Bytes of a part after which its writer looks whether the disk has room for more.
_LOOK_BYTES: Final = 8 * 1024 * 1024


class PartWriter:
    """Writes one part of an upload; any number of them at a time, in any processes.

    Parts that are not closed do not count. ``abort`` and ``discard`` remove the files of an upload
    that is given up; an adopter does so after a week at the latest.

    Args:
        data_dir: of the task log; it is made if it is missing.
        upload: a name that all parts of the upload share.
        trusted: all tails are ``encode_tail``'s own, so they need no check, which for a tail of
            each job's own (one with a key) costs ten times as much as all the rest.

    Raises:
        UsageError: an upload may not have that name.
        AppendFailed: the disk refuses.
    """

    def __init__(
        self,
        data_dir: Path,
        upload: str,
        *,
        trusted: bool = False,
        disk: ports.Disk | None = None,
        clock: ports.Clock | None = None,
    ) -> None:
        directory.check_upload_name(upload)
        self._log_path = os.path.realpath(data_dir)
        self._disk = disk or PatientDisk()
        self._clock = clock or SystemClock()
        self._inbox = directory.Inbox(self._disk, self._clock, self._log_path)
        #: of the file that it becomes
        self.name = f"{upload}.{os.urandom(8).hex()}{directory.PART}"
        self._path = f"{self._log_path}/{INBOX}/{self.name}"
        self._hash = hashlib.sha256()
        self._entries: list[bytes] = []
        self._size = self._offset = self._jobs = self._look_at = 0
        self._tail: bytes | None = None
        self._known: set[bytes] = set()
        self._trusted = trusted
        self._descriptor = -1
        try:
            self._inbox.keep()
            self._descriptor = self._disk.open(f"{self._path}{directory.TEMPORARY}", create=True)
        except OSError as error:
            raise errors.AppendFailed(self._log_path, error) from error

    @staticmethod
    def tail(spec: EnqueueSpec, extras: model.Extras) -> bytes:
        """Return what ``add`` takes of a job beside its payload, as ``encode_tail``.

        Raises:
            UsageError: there can be no such job.
        """
        return parts.encode_tail(spec, extras)

    @staticmethod
    def published(disk: ports.Disk, path: str) -> dict[str, bool]:
        """Return the names that were published to a log, and whether each may wait still."""
        names = dict.fromkeys(waiting_uploads(disk, path), True)
        over = (
            disk.names(f"{path}/{INBOX}/{folder}") for folder in (directory.DONE, directory.REFUSED)
        )
        ended = (name.removesuffix(MANIFEST) for name in chain(*over) if name.endswith(MANIFEST))
        return dict.fromkeys(ended, False) | names

    def publish(self, name: str) -> bool:
        """Close the part, and publish it alone, as ``publish``; adopters are woken.

        Raises:
            LogError: as ``publish``.
        """
        part = self.close()
        published = publish_with(self._disk, self._clock, self._log_path, name, [part])
        if published:
            peers.poke_owners(Path(self._log_path) / "owners")
        return published

    def add(self, tail: bytes, payload: bytes) -> None:
        """Add one job: its ``encode_tail`` and its payload.

        It costs least when the same ``tail`` object comes again and again.

        Raises:
            UsageError: the tail is not one, or the payload is over its limit.
            AppendFailed: the disk refuses; ``DiskFull`` when it has too little room.
        """
        if tail is not self._tail:
            self._use(tail)
        size = len(payload)
        if size > model.PAYLOAD_BYTES_MAX:
            raise errors.PayloadTooLarge(
                "the payload of an uploaded job", size, model.PAYLOAD_BYTES_MAX
            )
        size += len(tail) + 4
        entries = self._entries
        entries.append(pack_length(size) + tail + payload)
        self._size += size
        if self._size >= parts.CHUNK_BYTES or len(entries) >= CHUNK_JOBS_MAX:
            self._flush()

    def add_many(self, tail: bytes, payloads: Sequence[bytes]) -> None:
        """Do as ``add`` for each payload, at half the cost; after an error some may be added."""
        if tail is not self._tail:
            self._use(tail)
        extra = len(tail) + 4
        pack, at = pack_length, 0
        while at < len(payloads):
            room = CHUNK_JOBS_MAX - len(self._entries)
            # By the mean of the next jobs: a chunk may be somewhat larger or smaller than meant.
            piece = payloads[at : at + room]
            sizes = list(map(len, piece))
            largest = max(sizes)
            if largest > model.PAYLOAD_BYTES_MAX:
                raise errors.PayloadTooLarge(
                    "the payload of an uploaded job", largest, model.PAYLOAD_BYTES_MAX
                )
            fit = max((parts.CHUNK_BYTES - self._size) // (largest + extra), 1)
            piece, sizes = piece[:fit], sizes[:fit]
            self._entries += [
                pack(size + extra) + tail + payload
                for size, payload in zip(sizes, piece, strict=True)
            ]
            self._size += sum(sizes) + extra * len(piece)
            at += len(piece)
            if self._size + extra >= parts.CHUNK_BYTES or len(self._entries) >= CHUNK_JOBS_MAX:
                self._flush()

    def close(self) -> directory.Part:
        """Put the part on disk, under its name; return its entry for a manifest.

        Raises:
            AppendFailed: the disk refuses; nothing of the part counts.
            LogClosed: it was closed or aborted before.
        """
        self._check_open()
        try:
            self._flush()
            self._disk.sync(self._descriptor)
            self._close_file()
            self._disk.rename(f"{self._path}{directory.TEMPORARY}", self._path)
            self._disk.sync_directory(self._inbox.path)
        except OSError as error:
            self.abort()
            raise errors.AppendFailed(self._log_path, error) from error
        return directory.Part(self.name, self._jobs, self._offset, self._hash.hexdigest())

    def abort(self) -> None:
        """Remove what was written. Legal twice, and after ``close``, which then stands."""
        if self._descriptor >= 0:
            self._close_file()
            with contextlib.suppress(OSError):
                self._disk.remove(f"{self._path}{directory.TEMPORARY}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.abort()

    def _use(self, tail: bytes) -> None:
        self._check_open()
        if not self._trusted and tail not in self._known:
            job = parts.decode_tail(tail)
            if job.extras is None:  # others seldom come again
                self._known.add(tail)
        self._tail = tail

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise errors.LogClosed(f"{self._path} is closed: begin another part")

    def _flush(self) -> None:
        self._check_open()
        if not self._entries:
            return
        data = parts.encode_chunk(self._entries, self._offset)
        try:
            if self._offset >= self._look_at:
                self._look_for_room(len(data))
            ports.write_all(self._disk, self._descriptor, data, self._offset)
        except OSError as error:
            self.abort()
            raise errors.AppendFailed(self._log_path, error) from error
        self._hash.update(data)
        self._offset += len(data)
        self._jobs += len(self._entries)
        self._entries, self._size = [], 0

    def _look_for_room(self, size: int) -> None:
        """Leave the log's own processes the room that they need to settle jobs."""
        disk, path = self._disk, self._log_path
        self._look_at = self._offset + _LOOK_BYTES
        least = min(MIN_FREE_BYTES, disk.total_bytes(path) // TINY_DISK_PARTS)
        free = disk.free_bytes(path)
        if free - size < least:
            self.abort()
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise errors.DiskFull(path, full, free, least)

    def _close_file(self) -> None:
        self._disk.close(self._descriptor)
        self._descriptor = -1
        self._tail = None


def publish(data_dir: Path, name: str, parts: Sequence[directory.Part]) -> bool:
    """Let the jobs of these parts be enqueued: all of them, from the moment that this returns.

    Atomic and durable. The log is made if it is missing. A name like ``stream@12`` counts as
    batch 12 of a stream: the last 100 of each stream are remembered, and earlier ones refused.

    Returns:
        False if the name was published before: nothing was changed.

    Raises:
        UsageError: a name is not allowed, or there are too many parts.
        LogError: a part is missing, the name was refused before or belongs to a forgotten batch, or
            the directory cannot be used.
    """
    path = os.path.realpath(data_dir)
    published = publish_with(PatientDisk(), SystemClock(), path, name, parts)
    if published:
        peers.poke_owners(Path(path) / "owners")
    return published


def publish_with(
    disk: ports.Disk, clock: ports.Clock, path: str, name: str, parts: Sequence[directory.Part]
) -> bool:
    try:
        if read_identity(disk, path) is None:
            _make_log(disk, clock, path)
        inbox = directory.Inbox(disk, clock, path)
        inbox.keep()
        return inbox.publish(name, parts)
    except OSError as error:
        raise errors.AppendFailed(path, error) from error


def outcome(data_dir: Path, name: str) -> directory.Ended | None:
    """Return the end of a publication: adopted, or refused for a reason.

    None: it still waits, or was forgotten.

    Raises:
        LogError: its file does not read.
    """
    return directory.Inbox(PatientDisk(), SystemClock(), os.path.realpath(data_dir)).ended(name)


def discard(data_dir: Path, upload: str) -> int:
    """Remove the files of an upload that was never published; returns how many there were.

    Files that a manifest names are left alone.

    Raises:
        UsageError: the name is none.
        AppendFailed: the disk refuses.
    """
    path = os.path.realpath(data_dir)
    directory.check_upload_name(upload)
    if not (Path(path) / INBOX).is_dir():
        return 0
    try:
        return directory.Inbox(PatientDisk(), SystemClock(), path).discard(upload)
    except OSError as error:
        raise errors.AppendFailed(path, error) from error


def _make_log(disk: ports.Disk, clock: ports.Clock, path: str) -> None:
    config = LogConfig()
    disk.make_directory(f"{path}/log")
    writer = WriterLock(disk, path, os.getpid())
    journal = Journal(disk, clock, path, config, writer)
    try:
        journal.open()
    finally:
        journal.writer.release()
        journal.close()
