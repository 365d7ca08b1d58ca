"""The parts of an upload: chunks of jobs, as bytes that go into the log as they are.

A part (``inbox/<upload>.<16 hex digits>.part``) is a sequence of chunks, each a header of 24 bytes
(magic u32, version u16, 0 u16, jobs u32, size of the entries u32, CRC-32 of the entries u32, CRC-32
of the 20 bytes before, seeded with the CRC-32 of the chunk's offset u64) and its entries. An entry
is a job: its size u32, then its ENQUEUED record from the type up to the options, then its payload.
Moments that are relative are spans here: they count from the publication.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskq.core import errors, kinds, model, records
from taskq.core.values import NamedTuple
from taskq.log.format import codec, options
from taskq.log.inbox.directory import VERSION, Part, Upload
from taskq.log.machine import access, ports
from taskq.log.requests import EnqueueSpec, Item, Plain, Slice

CHUNK_HEADER: Final = struct.Struct("<IHHIIII")
_CHUNK_MAGIC: Final = 0x49514B54
#: Bytes or jobs of a chunk after which it is written out: about one batch of the log.
CHUNK_BYTES: Final = 192 * 1024
CHUNK_JOBS_MAX: Final = 4_096
#: No entry is larger: a payload with its names, key and headers.
ENTRY_BYTES_MAX: Final = model.PAYLOAD_BYTES_MAX + 64 * 1024
_CHUNK_BYTES_MAX: Final = CHUNK_BYTES + ENTRY_BYTES_MAX
_TAIL_BYTES_MIN: Final = codec.BORN_TAIL.size + 1
_U64: Final = struct.Struct("<Q")
_KEYED: Final = int(records.Flag.KEY_UNTIL_SETTLED)
_KNOWN_FLAGS: Final = int(
    records.Flag.CHECKED
    | records.Flag.DROP_RESULT
    | records.Flag.DURABLE_CLAIM
    | records.Flag.KEY_UNTIL_SETTLED
    | records.Flag.ZLIB
    | records.Flag.ZSTD
)
#: Options that a job of an upload may have, and the least and the most bytes of each.
_KNOWN_OPTIONS: Final[dict[int, tuple[int, int]]] = {
    records.Option.DUE: (8, 8),
    records.Option.DUE_WALL: (8, 8),
    records.Option.EXPIRES: (8, 8),
    records.Option.EXPIRES_RELATIVE: (8, 8),
    records.Option.KEY: (1, model.KEY_BYTES_MAX),
    records.Option.WINDOW: (8, 8),
    records.Option.HEADERS: (0, model.HEADERS_BYTES_MAX),
    records.Option.KEEP: (8, 8),
}
_SPECS_MAX: Final = 1_024


class Job(NamedTuple):
    """Job as its tail says; ``extras`` None: nothing but what the spec does."""

    spec: EnqueueSpec
    extras: model.Extras | None


def encode_tail(spec: EnqueueSpec, extras: model.Extras | None = None) -> bytes:
    """Return the tail of an entry. Spans (a delay, an expiry) count from the publication.

    Raises:
        UsageError: a key or header is empty, too long or not text.
    """
    if extras is None:
        return spec.tail
    flags = int(spec.flags)
    if extras.key is not None and (extras.until_settled or not extras.window_ns):
        flags |= _KEYED
    return codec.enqueue_tail(
        spec.priority, flags, spec.attempts, spec.lane_key[0], spec.lane_key[1], spec.route,
        options.encode_extras(extras, 0),
    )  # fmt: skip


def decode_tail(tail: bytes) -> Job:
    """Return the job of a tail, checked like a caller's options.

    Raises:
        UsageError: it is not a tail, or has options that no upload may have.
    """
    if len(tail) < _TAIL_BYTES_MIN:
        raise errors.UsageError(
            f"the tail of a job has {len(tail)} bytes: make it with encode_tail"
        )
    kind, priority, options_size, flags, attempts, queue_size, task_size = (
        codec.BORN_TAIL.unpack_from(tail)
    )
    names = codec.BORN_TAIL.size
    at = names + queue_size + task_size
    if kind != kinds.BIRTH or at + options_size != len(tail) or priority > model.PRIORITY_MAX:
        raise errors.UsageError("the tail of a job is no ENQUEUED record: make it with encode_tail")
    if flags & ~_KNOWN_FLAGS:
        raise errors.UsageError(
            f"a job of an upload has flags {flags & ~_KNOWN_FLAGS:#x}: payloads in files of their "
            f"own cannot be uploaded, compress them or pass a path"
        )
    spec = _spec(priority, flags & ~_KEYED, attempts, tail[names:at], queue_size)
    return Job(spec, _decode_options(tail, at, options_size, flags) if options_size else None)


@functools.lru_cache(_SPECS_MAX)
def _spec(priority: int, flags: int, attempts: int, names: bytes, queue_size: int) -> EnqueueSpec:
    try:
        queue, task = names[:queue_size].decode(), names[queue_size:].decode()
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"the names in the tail of a job are no UTF-8: {error}") from error
    return EnqueueSpec(queue, task, priority, attempts, flags)


def _decode_options(tail: bytes, at: int, size: int, flags: int) -> model.Extras:
    for tag, value in options.each_option(tail, at, size):
        least, most = _KNOWN_OPTIONS.get(tag, (1, 0))
        if not least <= len(value) <= most:
            raise errors.UsageError(
                f"a job of an upload has option {tag} of {len(value)} bytes, which none may have: "
                f"make its tail with encode_tail"
            )
    extras = options.decode_extras(tail, at, size)
    moments = extras.due_ns, extras.expires_ns, extras.window_ns, extras.keep_ns
    if not 0 <= min(moments) <= max(moments) <= model.TIME_NS_MAX:
        raise errors.UsageError(
            "a span or moment of a job of an upload is negative or over 146 years"
        )
    if extras.headers:
        # Undecodable text would read as longer text: refused now, or its adopter could not go on.
        options.encode_extras(model.Extras(headers=extras.headers), 0)
    extras.until_settled = bool(extras.window_ns and flags & _KEYED)
    return extras


class Chunk(NamedTuple):
    """Header of a chunk."""

    jobs: int
    size: int
    crc: int


def encode_chunk(entries: list[bytes], offset: int) -> bytes:
    body = b"".join(entries)
    head = CHUNK_HEADER.pack(
        _CHUNK_MAGIC, VERSION, 0, len(entries), len(body), codec.crc32(body), 0
    )
    crc = codec.crc32(head[:-4], codec.crc32(_U64.pack(offset)))
    return b"".join((head[:-4], codec.pack_length(crc), body))


def decode_chunk(header: bytes, offset: int, what: str) -> Chunk:
    """Return the header of the chunk at ``offset``; ``what`` is its file's name in errors.

    Raises:
        UploadDamaged: no chunk begins there.
    """
    if len(header) == CHUNK_HEADER.size:
        magic, version, _, jobs, size, body_crc, crc = CHUNK_HEADER.unpack(header)
        seed = codec.crc32(_U64.pack(offset))
        if magic == _CHUNK_MAGIC and crc == codec.crc32(header[:-4], seed):
            if version != VERSION:
                raise errors.FormatError(f"{what}: version {version} is unknown: use a newer taskq")
            if 0 < jobs <= CHUNK_JOBS_MAX and jobs <= size <= _CHUNK_BYTES_MAX:
                return Chunk(jobs, size, body_crc)
    raise errors.UploadDamaged(f"{what}: no chunk begins at offset {offset}")


def check_chunk(chunk: Chunk, body: bytes, offset: int, what: str) -> None:
    """Check the entries of a chunk.

    Raises:
        UploadDamaged: they are not what was written.
    """
    if len(body) != chunk.size or codec.crc32(body) != chunk.crc:
        raise errors.UploadDamaged(f"{what}: the chunk at offset {offset} does not read back")


def each_entry(body: bytes, what: str) -> Iterator[tuple[int, int]]:
    """(start of the tail, end of the payload) of each entry of a chunk.

    Raises:
        UploadDamaged: a size that cannot be.
    """
    at, end, unpack = 0, len(body), codec.LENGTH.unpack_from
    while at < end:
        size = unpack(body, at)[0] if at + 4 <= end else 0
        if size < _TAIL_BYTES_MIN + 4 or at + size > end:
            raise errors.UploadDamaged(f"{what}: a job has an impossible size of {size} bytes")
        yield at + 4, at + size
        at += size


def tail_size(body: bytes, at: int, end: int, what: str) -> int:
    """Return bytes of the tail at ``body[at:]`` of an entry that ends at ``end``.

    Raises:
        UploadDamaged: it does not fit.
    """
    _, _, options_size, _, _, queue_size, task_size = codec.BORN_TAIL.unpack_from(body, at)
    size: int = codec.BORN_TAIL.size + queue_size + task_size + options_size
    if at + size > end:
        raise errors.UploadDamaged(f"{what}: the names of a job are longer than the job")
    return size


# Reading the parts of an upload: are they what was written, and the jobs from any place on.

if TYPE_CHECKING:
    _Item = tuple[EnqueueSpec, bytes, model.Extras]

_PIECE_BYTES: Final = 256 * 1024
#: Headers of chunks that are read in one step.
_STEP_CHUNKS: Final = 64
#: Tails without options that are remembered decoded.
_TAILS_MAX: Final = 1_024
#: Greatest weight of a slice: a plain job counts one, a job with options more, as it takes longer.
_WEIGHT_MAX: Final = 4_096
_ITEM_WEIGHT: Final = 32
#: Bytes of a record besides tail and payload: length and CRC; and about the bytes of options.
_RECORD_BYTES: Final = 8
_OPTIONS_BYTES: Final = 64


class PartFile:
    """A part on the disk; opened anew for each read, so that none stays open by mistake."""

    def __init__(self, disk: ports.Disk, path: str) -> None:
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
            raise errors.UploadDamaged(f"{self.path} is missing, and was published") from None
        except access.NotAFile as error:
            raise errors.UploadDamaged(f"{self.path}: {error.strerror}") from error
        try:
            return self._disk.read(descriptor, count, offset), self._disk.size(descriptor)
        finally:
            self._disk.close(descriptor)

    def chunk(self, offset: int) -> Chunk:
        """Return the header of the chunk there.

        Raises:
            UploadDamaged: no chunk begins there.
        """
        data, _ = self.read(CHUNK_HEADER.size, offset)
        return decode_chunk(data, offset, self.path)

    def entries(self, chunk: Chunk, offset: int) -> bytes:
        """Return the entries of the chunk there, checked.

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
        import hashlib  # noqa: PLC0415 - it brings OpenSSL along, and few logs take uploads

        hashed, offset, size = hashlib.sha256(), 0, 0
        while True:
            data, size = self.read(_PIECE_BYTES, offset)
            hashed.update(data)
            offset += len(data)
            yield
            if not data or offset > part.size_bytes:
                break
        if size != part.size_bytes or offset != size:
            raise errors.UploadDamaged(
                f"{self.path} has {size} bytes, {part.size_bytes} were published"
            )
        if hashed.hexdigest() != part.sha256:
            raise errors.UploadDamaged(
                f"{self.path} is not what was published: its SHA-256 differs"
            )
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
            raise errors.UploadDamaged(f"{self.path} holds {jobs} jobs, {part.jobs} were published")


class _ChunkPlace(NamedTuple):
    """A chunk of an upload."""

    part: int
    offset: int
    #: jobs of the upload before it
    row: int


class UploadReader:
    """The jobs of an upload from any place on."""

    def __init__(self, disk: ports.Disk, path: str, upload: Upload) -> None:
        self._disk = disk
        self._path = path
        self._upload = upload
        self._tails: dict[bytes, Job] = {}
        self._next = self._place = _ChunkPlace(0, 0, 0)
        #: of the chunk at ``_place``, up to the job ``_end``
        self._runs: list[Plain | list[_Item]] = []
        self._end = 0

    def slice(self, start: int, age_ns: int) -> Slice:
        """Return the next jobs after the first ``start``, enough for one batch.

        Args:
            start: fewer than there are in the upload.
            age_ns: how long ago it was published: what spans have lost.

        Raises:
            UploadDamaged: they do not read back.
        """
        if start < self._place.row:
            self._next = self._place = _ChunkPlace(0, 0, 0)
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
            raise errors.UploadDamaged(
                f"{self._path}: {self._upload.name} holds fewer jobs than it says"
            )
        part = self._upload.parts[number]
        if row + part.jobs <= start and not offset:
            self._next = _ChunkPlace(number + 1, 0, row + part.jobs)
            return
        file = PartFile(self._disk, f"{self._path}/{part.name}")
        chunk = file.chunk(offset)
        end = offset + CHUNK_HEADER.size + chunk.size
        following = (number, end) if end < part.size_bytes else (number + 1, 0)
        self._place, self._next = self._next, _ChunkPlace(*following, row + chunk.jobs)
        self._end, self._runs = row + chunk.jobs, []
        if self._end > start:
            self._runs = self._parse(file.entries(chunk, offset), file.path)
            if sum(map(_length, self._runs)) != chunk.jobs:
                raise errors.UploadDamaged(
                    f"{file.path}: the chunk at offset {offset} has not its jobs"
                )

    def _parse(self, body: bytes, what: str) -> list[Plain | list[_Item]]:
        """Return the jobs of a chunk, those together that are of one kind."""
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
            except errors.UsageError as error:
                raise errors.UploadDamaged(f"{what}: {error}") from error
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


def _aged(extras: model.Extras, age_ns: int) -> model.Extras:
    """The same job, enqueued ``age_ns`` ago; what has passed since is due or over at once."""
    if extras.due_ns and not extras.due_is_wall:
        extras = replace(extras, due_ns=max(extras.due_ns - age_ns, 0))
    if extras.expires_ns and not extras.expires_is_wall:
        extras = replace(extras, expires_ns=max(extras.expires_ns - age_ns, 1))
    return extras
