"""Reading the parts of an upload: are they what was written, and the jobs from any place on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.errors import UploadDamaged, UsageError
from taskq.log.adopts import Plain, Slice
from taskq.log.inboxformat import (
    CHUNK_HEADER,
    Chunk,
    Job,
    check_chunk,
    decode_chunk,
    decode_tail,
    each_entry,
    tail_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.model import Extras
    from taskq.log.enqueues import Item
    from taskq.log.inboxmanifest import Part, Upload
    from taskq.log.ports import Disk

_PIECE_BYTES: Final = 256 * 1024
#: Headers of chunks that are read in one step.
_STEP_CHUNKS: Final = 64
#: Tails without options that are remembered decoded.
_TAILS_MAX: Final = 1_024
#: What a slice holds at most: plain jobs count one, those with options, which take longer, so many.
_WEIGHT_MAX: Final = 4_096
_ITEM_WEIGHT: Final = 16
#: What a record has besides tail and payload: length and CRC.
_RECORD_BYTES: Final = 8


class PartFile:
    """A part on the disk; opened anew for each read, so that none stays open by mistake."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def read(self, count: int, offset: int) -> tuple[bytes, int]:
        """(at most ``count`` bytes from ``offset``, bytes in the file).

        Raises:
            UploadDamaged: there is no such file.
        """
        try:
            descriptor = self._disk.open(self.path, write=False)
        except FileNotFoundError:
            raise UploadDamaged(f"{self.path} is missing, and was published") from None
        try:
            return self._disk.read(descriptor, count, offset), self._disk.size(descriptor)
        finally:
            self._disk.close(descriptor)

    def chunk(self, offset: int) -> Chunk:
        """The header of the chunk there.

        Raises:
            UploadDamaged: there is none.
        """
        data, _ = self.read(CHUNK_HEADER.size, offset)
        return decode_chunk(data, offset, self.path)

    def entries(self, chunk: Chunk, offset: int) -> bytes:
        """The entries of the chunk there, checked.

        Raises:
            UploadDamaged: they do not read back.
        """
        body, _ = self.read(chunk.size, offset + CHUNK_HEADER.size)
        check_chunk(chunk, body, offset, self.path)
        return body

    def check_steps(self, part: Part) -> Iterator[None]:
        """Read it as a whole, in steps of about a millisecond.

        Raises:
            UploadDamaged: it is not what was published.
        """
        hashed, offset, size = hashlib.sha256(), 0, 0
        while True:
            data, size = self.read(_PIECE_BYTES, offset)
            hashed.update(data)
            offset += len(data)
            yield
            if not data or offset > part.size_bytes:
                break
        if size != part.size_bytes or offset != size:
            raise UploadDamaged(f"{self.path} has {size} bytes, {part.size_bytes} were published")
        if hashed.hexdigest() != part.sha256:
            raise UploadDamaged(f"{self.path} is not what was published: its SHA-256 differs")
        yield from self._check_jobs(part)

    def _check_jobs(self, part: Part) -> Iterator[None]:
        jobs = offset = number = 0
        while offset < part.size_bytes:
            chunk = self.chunk(offset)
            jobs += chunk.jobs
            offset += CHUNK_HEADER.size + chunk.size
            number += 1
            if not number % _STEP_CHUNKS:
                yield
        if jobs != part.jobs or offset != part.size_bytes:
            raise UploadDamaged(f"{self.path} holds {jobs} jobs, {part.jobs} were published")


class _Place(NamedTuple):
    """A chunk of an upload."""

    part: int
    offset: int
    #: jobs of the upload before it
    row: int


class UploadReader:
    """The jobs of an upload from any place on.

    Args:
        disk: of this process.
        path: of the inbox.
        upload: whose parts were checked.
    """

    def __init__(self, disk: Disk, path: str, upload: Upload) -> None:
        self._disk = disk
        self._path = path
        self._upload = upload
        self._tails: dict[bytes, Job] = {}
        self._next = self._place = _Place(0, 0, 0)
        self._file = PartFile(disk, path)
        self._body = b""
        self._entries: list[tuple[int, int]] = []

    def slice(self, start: int, age_ns: int) -> Slice:
        """The next jobs behind the first ``start``, as many as suit one batch.

        Args:
            start: fewer than there are in the upload.
            age_ns: how long ago it was published: what spans have lost.

        Raises:
            UploadDamaged: they do not read back.
        """
        if start < self._place.row:
            self._next = self._place = _Place(0, 0, 0)
            self._entries = []
        while start >= self._place.row + len(self._entries):
            self._load_next(start)
        runs: list[Plain | list[Item]] = []
        weight = size = 0
        is_keyed = False
        for at, end in self._entries[start - self._place.row :]:
            job, body_at = self._job(at, end)
            body = self._body[body_at:end]
            size += end - at + _RECORD_BYTES
            last = runs[-1] if runs else None
            if job.extras is None:
                weight += 1
                if isinstance(last, Plain) and last.spec is job.spec:
                    last.bodies.append(body)
                else:
                    runs.append(Plain(job.spec, [body]))
            else:
                weight += _ITEM_WEIGHT
                is_keyed = is_keyed or job.extras.key is not None
                item = (job.spec, body, _aged(job.extras, age_ns))
                if isinstance(last, list):
                    last.append(item)
                else:
                    runs.append([item])
            if weight >= _WEIGHT_MAX:
                break
        upload = self._upload
        return Slice(upload.id, start, upload.jobs, runs, size, is_keyed)

    def _load_next(self, start: int) -> None:
        """Have the entries of the next chunk; of those before ``start`` not even that."""
        number, offset, row = self._next
        if number >= len(self._upload.parts):
            raise UploadDamaged(f"{self._path}: {self._upload.name} holds fewer jobs than it says")
        part = self._upload.parts[number]
        if row + part.jobs <= start and not offset:
            self._next = _Place(number + 1, 0, row + part.jobs)
            return
        self._file = file = PartFile(self._disk, f"{self._path}/{part.name}")
        chunk = file.chunk(offset)
        end = offset + CHUNK_HEADER.size + chunk.size
        following = (number, end) if end < part.size_bytes else (number + 1, 0)
        self._place, self._next = self._next, _Place(*following, row + chunk.jobs)
        self._entries = []
        if row + chunk.jobs <= start:
            return
        self._body = file.entries(chunk, offset)
        self._entries = list(each_entry(self._body, file.path))
        if len(self._entries) != chunk.jobs:
            raise UploadDamaged(f"{file.path}: the chunk at offset {offset} has not its jobs")

    def _job(self, at: int, end: int) -> tuple[Job, int]:
        """The job of an entry, and where its payload begins."""
        body_at = at + tail_size(self._body, at, end, self._file.path)
        tail = self._body[at:body_at]
        job = self._tails.get(tail)
        if job is None:
            try:
                job = decode_tail(tail)
            except UsageError as error:
                raise UploadDamaged(f"{self._file.path}: {error}") from error
            if job.extras is None:
                if len(self._tails) >= _TAILS_MAX:
                    self._tails.clear()
                self._tails[tail] = job
        return job, body_at


def _aged(extras: Extras, age_ns: int) -> Extras:
    """The same for a job that was enqueued so long ago; what has passed is due or over at once."""
    if extras.due_ns and not extras.due_is_wall:
        extras = replace(extras, due_ns=max(extras.due_ns - age_ns, 0))
    if extras.expires_ns and not extras.expires_is_wall:
        extras = replace(extras, expires_ns=max(extras.expires_ns - age_ns, 1))
    return extras
