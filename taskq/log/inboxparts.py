"""Reading the parts of an upload: are they what was written, and the jobs from any place on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.errors import UploadDamaged, UsageError
from taskq.log.door import NotAFile
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
from taskq.log.requests import Plain, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.model import Extras
    from taskq.log.inboxmanifest import Part, Upload
    from taskq.log.ports import Disk
    from taskq.log.requests import EnqueueSpec, Item

    _Item = tuple[EnqueueSpec, bytes, Extras]

_PIECE_BYTES: Final = 256 * 1024
#: Headers of chunks that are read in one step.
_STEP_CHUNKS: Final = 64
#: Tails without options that are remembered decoded.
_TAILS_MAX: Final = 1_024
#: What a slice holds at most: plain jobs count one, those with options, which take longer, so many.
_WEIGHT_MAX: Final = 4_096
_ITEM_WEIGHT: Final = 32
#: What a record has besides tail and payload: length and CRC; and about what options take.
_RECORD_BYTES: Final = 8
_OPTIONS_BYTES: Final = 64


class PartFile:
    """A part on the disk; opened anew for each read, so that none stays open by mistake."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def read(self, count: int, offset: int) -> tuple[bytes, int]:
        """(at most ``count`` bytes from ``offset``, bytes in the file).

        Raises:
            UploadDamaged: there is no such file, or something else in its place.
        """
        try:
            descriptor = self._disk.open(self.path, write=False)
        except FileNotFoundError:
            raise UploadDamaged(f"{self.path} is missing, and was published") from None
        except NotAFile as error:
            raise UploadDamaged(f"{self.path}: {error.strerror}") from error
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
        #: of the chunk at ``_place``, up to the job ``_end``
        self._runs: list[Plain | list[_Item]] = []
        self._end = 0

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
            self._runs, self._end = [], 0
        while start >= self._end:
            self._load_next(start)
        runs: list[Plain | list[Item]] = []
        skip, room, size, is_keyed = start - self._place.row, _WEIGHT_MAX, 0, False
        for run in self._runs:
            length = _length(run)
            count = min(length - skip, max(room // _weight(run), 1))
            if count > 0:
                room -= count * _weight(run)
                stop = skip + count
                if isinstance(run, Plain):
                    part = Plain(run.spec, run.bodies[skip:stop])
                    size += sum(map(len, part.bodies))
                    size += (len(part.spec.tail) + _RECORD_BYTES) * count
                    runs.append(part)
                else:
                    runs.append(
                        [(spec, body, _aged(x, age_ns)) for spec, body, x in run[skip:stop]]
                    )
                    size += sum(map(_item_size, run[skip:stop]))
                    is_keyed = is_keyed or any(x.key is not None for _, _, x in run[skip:stop])
                if room <= 0 or stop < length:
                    break
            skip = max(skip - length, 0)
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
        file = PartFile(self._disk, f"{self._path}/{part.name}")
        chunk = file.chunk(offset)
        end = offset + CHUNK_HEADER.size + chunk.size
        following = (number, end) if end < part.size_bytes else (number + 1, 0)
        self._place, self._next = self._next, _Place(*following, row + chunk.jobs)
        self._end, self._runs = row + chunk.jobs, []
        if self._end > start:
            self._runs = self._parse(file.entries(chunk, offset), file.path)
            if sum(map(_length, self._runs)) != chunk.jobs:
                raise UploadDamaged(f"{file.path}: the chunk at offset {offset} has not its jobs")

    def _parse(self, body: bytes, what: str) -> list[Plain | list[_Item]]:
        """The jobs of a chunk, those together that are of one kind."""
        runs: list[Plain | list[_Item]] = []
        bodies: list[bytes] = []
        items: list[_Item] | None = None
        tail, extra = b"", 0
        for at, end in each_entry(body, what):
            # Nearly always another of the same task: a tail that begins like one is one.
            if extra and body.startswith(tail, at):
                bodies.append(body[at + extra : end])
                continue
            tail = body[at : at + tail_size(body, at, end, what)]
            job = self._job(tail, what)
            payload = body[at + len(tail) : end]
            if job.extras is None:
                extra, bodies, items = len(tail), [payload], None
                runs.append(Plain(job.spec, bodies))
                continue
            if items is None:
                extra, items = 0, []
                runs.append(items)
            items.append((job.spec, payload, job.extras))
        return runs

    def _job(self, tail: bytes, what: str) -> Job:
        job = self._tails.get(tail)
        if job is None:
            try:
                job = decode_tail(tail)
            except UsageError as error:
                raise UploadDamaged(f"{what}: {error}") from error
            if job.extras is None:
                if len(self._tails) >= _TAILS_MAX:
                    self._tails.clear()
                self._tails[tail] = job
        return job


def _item_size(item: _Item) -> int:
    """About how many bytes it adds to the log."""
    spec, body, extras = item
    headers = sum(len(name) + len(value) for name, value in extras.headers.items())
    keys = len(extras.key or b"") + len(extras.concurrency_key)
    return len(spec.tail) + len(body) + keys + headers + _OPTIONS_BYTES


def _length(run: Plain | list[_Item]) -> int:
    return len(run.bodies) if isinstance(run, Plain) else len(run)


def _weight(run: Plain | list[_Item]) -> int:
    return 1 if isinstance(run, Plain) else _ITEM_WEIGHT


def _aged(extras: Extras, age_ns: int) -> Extras:
    """The same for a job that was enqueued so long ago; what has passed is due or over at once."""
    if extras.due_ns and not extras.due_is_wall:
        extras = replace(extras, due_ns=max(extras.due_ns - age_ns, 0))
    if extras.expires_ns and not extras.expires_is_wall:
        extras = replace(extras, expires_ns=max(extras.expires_ns - age_ns, 1))
    return extras
