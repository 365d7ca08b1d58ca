"""Task logs written frame by frame, so that a test decides where each segment begins and ends."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from copy import copy
from pathlib import Path
from typing import Final, NamedTuple

from taskq.core.records import Kind, Option
from taskq.log.format import codec
from taskq.log.format.frames import segment_name

SKIP: Final = 2**20
SECOND: Final = 1_000_000_000
BEGAN_NS: Final = 1_700_000_000 * SECOND


def enqueued(lsn: int, payload: bytes = b"payload", queue: str = "mail", key: bytes = b"") -> bytes:
    route = queue.encode() + b"send"
    options = codec.option(Option.KEY, key) if key else b""
    tail = codec.enqueue_tail(5, 1, 3, len(queue), 4, route, options)
    return codec.encode_checked(tail, payload, lsn)


def claimed(job: int, owner: int = 7, attempt: int = 1) -> bytes:
    return codec.encode_job(Kind.CLAIMED, 0, attempt, job, owner)


def succeeded(job: int, token: int, lsn: int, attempt: int = 1) -> bytes:
    return codec.encode_job(Kind.SUCCEEDED, 0, attempt, job, token, b"done", lsn)


class Place(NamedTuple):
    path: Path
    segment: int
    offset: int
    end: int
    first_lsn: int
    next_lsn: int


class MadeLog:
    """A log of our own making: ``frame`` appends, ``rotate`` seals, ``new_epoch`` skips lsns."""

    def __init__(self, path: Path, log_id: uuid.UUID | None = None, created_ns: int = 1) -> None:
        self.path = path
        self.log_id = log_id or uuid.uuid4()
        self.parents: list[tuple[uuid.UUID, int]] = []
        (path / "log").mkdir(parents=True)
        identity = {"format": 1, "log_id": str(self.log_id), "created_ns": created_ns}
        (path / "taskq.json").write_text(json.dumps(identity))
        self.next_lsn = 1
        self.epoch = 11
        self.time_ns = BEGAN_NS
        self.synced_through = 0
        #: the last frame, as the next segment names it
        self.link = codec.NO_LINK
        self.frames: list[Place] = []
        #: all bytes of each segment, also of parents and children, even after its file went
        self.written: dict[tuple[uuid.UUID, int], bytes] = {}
        self._begin()

    def _begin(self) -> None:
        self.segment = self.next_lsn
        self.file = self.path / "log" / segment_name(self.segment)
        self.seed = codec.segment_seed(self.log_id, self.segment)
        self.synced_through = self.next_lsn
        header = codec.SegmentHeader(
            self.segment, self.epoch, self.log_id.bytes, self.time_ns, self.link
        )
        data = codec.encode_segment_header(header)
        self.file.write_bytes(data)
        self.written[self.log_id, self.segment] = data

    def rotate(self) -> None:
        self._begin()

    def new_epoch(self) -> None:
        self.epoch += 1
        self.next_lsn += SKIP
        self._begin()

    def child(self, path: Path, log_id: uuid.UUID | None = None) -> MadeLog:
        shutil.copytree(self.path, path)
        made = copy(self)
        made.path, made.log_id, made.frames = path, log_id or uuid.uuid4(), []
        made.parents = [*self.parents, (self.log_id, self.next_lsn)]
        made.name()
        made._begin()
        return made

    def replace(self, other: MadeLog) -> MadeLog:
        shutil.rmtree(self.path)
        other.path.rename(self.path)
        other.path, other.file = self.path, self.path / "log" / other.file.name
        return other

    @property
    def begins(self) -> int:
        return self.parents[-1][1] if self.parents else 1

    def owner(self, lsn: int) -> uuid.UUID:
        """Return the log that wrote a segment of this directory."""
        return next((log_id for log_id, end in self.parents if lsn < end), self.log_id)

    def name(self) -> None:
        parents = [{"log_id": str(log_id), "next_lsn": lsn} for log_id, lsn in self.parents]
        identity = {"format": 1, "log_id": str(self.log_id), "created_ns": 1, "parents": parents}
        (self.path / "taskq.json").write_text(json.dumps(identity))

    def frame(self, *records: bytes, synced: bool = True) -> Place:
        return self.append(b"".join(records), len(records), synced=synced)

    def append(self, body: bytes, count: int, *, synced: bool = True) -> Place:
        """Append a frame; if ``synced``, it declares all before it durable."""
        if synced:
            self.synced_through = self.next_lsn
        self.time_ns += SECOND
        offset = self.file.stat().st_size
        data = codec.encode_frame(
            body, count, self.next_lsn, self.epoch, self.time_ns, self.synced_through, self.seed,
            offset,
        )  # fmt: skip
        with self.file.open("ab") as file:
            file.write(data)
        self.link = codec.Link(offset, codec.FRAME_HEADER.unpack_from(data)[-1])
        self.written[self.log_id, self.segment] += data
        place = Place(
            self.file, self.segment, offset, offset + len(data), self.next_lsn,
            self.next_lsn + count,
        )  # fmt: skip
        self.frames.append(place)
        self.next_lsn += count
        return place

    def enqueue(self, count: int = 1, size: int = 20, queue: str = "mail") -> Place:
        first = self.next_lsn
        return self.frame(
            *(enqueued(first + number, bytes(size), queue) for number in range(count))
        )

    def mend(self) -> None:
        """Cut off what was torn, as the next writer does."""
        os.truncate(self.file, len(self.written[self.log_id, self.segment]))

    def tear(self, count: int = 30) -> None:
        with self.file.open("ab") as file:
            file.write(codec.FRAME_MAGIC_BYTES + b"x" * count)


def damage(place: Place, at: int = codec.FRAME_HEADER_SIZE + 20) -> None:
    """Spoil a byte of a frame: of its body, unless another place is given."""
    with place.path.open("r+b") as file:
        file.seek(place.offset + at)
        old = file.read(1)
        file.seek(place.offset + at)
        file.write(bytes([old[0] ^ 0x40]))
