"""Task logs written frame by frame with the codec alone: any bytes, and millions of records."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from taskq.arrow import Piece
from taskq.core.parsing import Tag
from taskq.core.records import Kind
from taskq.log.format import codec
from taskq.log.format.frames import segment_name
from taskq.log.requests import EnqueueSpec

LOG_ID: Final = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
EPOCH: Final = 0xF122334455667788
START_NS: Final = 1_700_000_000_123_456_789
SPEC: Final = EnqueueSpec("mail", "mail.send", 7, 3)


class Segments:
    """A log's directory, and frames for it.

    Args:
        directory: where it is made.
        log_id: of the log.
        device: the name of the device in its pieces.
    """

    def __init__(self, directory: Path, log_id: uuid.UUID = LOG_ID, device: str = "edge-7") -> None:
        self.directory = directory
        self.log_id = log_id
        self.device = device
        self.next_lsn = 1
        self.time_ns = START_NS
        self._path: Path | None = None
        self._segment = self._offset = 0
        (directory / "log").mkdir(parents=True)
        identity = {
            "format": 1,
            "log_id": str(log_id),
            "created_ns": START_NS,
            "features": {"compat": [], "read_only_compat": [], "incompat": []},
        }
        (directory / "taskq.json").write_text(json.dumps(identity))

    def begin(self) -> Path:
        self._segment = self.next_lsn
        self._path = self.directory / "log" / segment_name(self._segment)
        header = codec.SegmentHeader(self._segment, EPOCH, self.log_id.bytes, self.time_ns)
        self._path.write_bytes(codec.encode_segment_header(header))
        self._offset = codec.SEGMENT_HEADER.size
        return self._path

    def frame(self, *records: bytes | Callable[[int], bytes], synced: bool = True) -> int:
        """Append a frame; returns its offset. ``synced``: it declares all before it durable."""
        lsn = self.next_lsn
        return self.append(
            b"".join(
                record if isinstance(record, bytes) else record(lsn + index)
                for index, record in enumerate(records)
            ),
            len(records),
            synced=synced,
        )

    def append(self, body: bytes, count: int, *, synced: bool = True) -> int:
        if self._path is None:
            self.begin()
        assert self._path is not None
        offset, self.time_ns = self._offset, self.time_ns + 1_000_001
        seed = codec.segment_seed(self.log_id, self._segment)
        through = self.next_lsn if synced else 0
        frame = codec.encode_frame(
            body, count, self.next_lsn, EPOCH, self.time_ns, through, seed, offset
        )
        with self._path.open("ab") as file:
            file.write(frame)
        self._offset += len(frame)
        self.next_lsn += count
        return offset

    def piece(self, start: int = 0, end: int | None = None, path: Path | None = None) -> Piece:
        path = path or self._path
        assert path is not None
        end = path.stat().st_size if end is None else end
        tag = Tag(self.log_id.hex[:8])
        segment = int(path.stem)
        return Piece(str(path), self.device, str(self.log_id), tag, segment, start, end)


def enqueued(
    payload: bytes = b"{}", options: bytes = b"", spec: EnqueueSpec = SPEC, flags: int = 0
) -> Callable[[int], bytes]:
    queue, task = spec.queue.encode(), spec.task.encode()
    tail = codec.enqueue_tail(
        spec.priority, int(spec.flags) | flags | 1, spec.attempts, len(queue), len(task),
        queue + task, options,
    )  # fmt: skip
    return lambda lsn: codec.encode_checked(tail, payload, lsn)


def claimed(job: int, owner: int = 0xABCD, attempt: int = 1) -> bytes:
    return codec.encode_job(Kind.CLAIMED, 0, attempt, job, owner)


def succeeded(job: int, token: int, result: bytes | None = None) -> Callable[[int], bytes]:
    return lambda lsn: codec.encode_job(Kind.SUCCEEDED, 0, 1, job, token, result, lsn)
