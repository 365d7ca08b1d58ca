"""The rows that a log should decode to, one record after the other, as every other reader sees it.

``expected_rows`` goes by ``taskq.log.read.jobs.entries`` and ``decode_record``; ``decoded_rows``
come from the decoder. Both are lists of dicts by column.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from taskq.arrow import DETAILS, Corrupt, Piece, decode
from taskq.core import kinds
from taskq.core.errors import TaskqError
from taskq.core.folds.steps import Form
from taskq.core.kinds import CARRYING, ENDS, OF_JOBS, OF_STEPS
from taskq.core.model import Extras
from taskq.core.parsing import Tag
from taskq.core.records import PACKED, Kind, Option
from taskq.log.config import LogConfig
from taskq.log.format import codec
from taskq.log.format.carried import Carried, find_moment
from taskq.log.format.frames import segment_lsn
from taskq.log.format.options import decode_key_hash, each_option
from taskq.log.format.record import Record
from taskq.log.journal.journal import Journal
from taskq.log.read.jobs import entries
from taskq.log.read.reader import open_journal
from taskq.log.requests import EnqueueSpec
from taskq.log.segments.bodystore import BodyStore
from tests.fleet.made_logs import MadeLog
from tests.log.world import PATH
from tests.machine.crashable import Machine

Row = dict[str, Any]
DEVICE: Final = "edge-7"
_BIRTHS: Final = CARRYING | {int(Kind.ENQUEUED)}
_WITH_CAUSE: Final = (Kind.DEAD, Kind.CANCELLED, Kind.EXPIRED, Kind.RETRIED, Kind.RELEASED)
_OFFSET_MASK: Final = 2**32 - 1


def save(machine: Machine, target: Path) -> Path:
    for path in machine.paths():
        if path.startswith(f"{PATH}/"):
            file = target / path.removeprefix(f"{PATH}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(machine.content(path))
    return target


def pieces(journal: Journal, directory: Path, device: str = DEVICE) -> list[Piece]:
    identity = journal.identity
    result = []
    for path in sorted((directory / "log").glob("*.log")):
        segment = segment_lsn(path.name)
        assert segment is not None
        if segment <= journal.segment:
            end = journal.offset if segment == journal.segment else path.stat().st_size
            result.append(
                Piece(str(path), device, str(identity.log_id), identity.tag, segment, 0, end)
            )
    return result


def decoded_rows(
    parts: list[Piece], corrupt: Corrupt = Corrupt.SKIP, schema: pa.Schema = DETAILS, **rest: Any
) -> list[Row]:
    return [
        row
        for piece in parts
        for batch in decode(piece, schema, corrupt=corrupt, **rest)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


def expected_rows(journal: Journal, directory: Path, device: str = DEVICE) -> list[Row]:
    bodies = BodyStore(str(directory), LogConfig())
    return [_row(journal, record, bodies, device) for record in entries(journal)]


def rows_of_directory(directory: Path) -> tuple[list[Row], list[Row]]:
    journal = open_journal(str(directory))
    try:
        return decoded_rows(pieces(journal, directory)), expected_rows(journal, directory)
    finally:
        journal.close()


def _row(journal: Journal, record: Record, bodies: BodyStore, device: str) -> Row:
    row: Row = dict.fromkeys(DETAILS.names)
    row |= {
        "device": device, "log_id": str(journal.identity.log_id),
        "segment": journal.files.segment_at(record.location),
        "offset": record.location & _OFFSET_MASK, "lsn": record.lsn,
        "kind": kinds.name_of(record.type) if record.type in _known() else "unknown",
        "job_id": f"{journal.tag}-{record.job}" if record.job else None,
        "timestamp": record.time_ns // 1_000, "ts_ns": record.time_ns,
        "epoch": f"{record.epoch:016x}", "flags": record.flags, "job": record.job or None,
    }  # fmt: skip
    if record.type in _known():
        problems = []
        for name, value in _details(record, bodies, journal.tag):
            if name == "problem":
                problems.append(value)
            else:
                row[name] = value
        row["problem"] = "; ".join(problems) or None
        row["concurrency_key"] = _concurrency_key(record)
    row["timestamp"] = pa.scalar(row["timestamp"], DETAILS.field("timestamp").type).as_py()
    return row


def _concurrency_key(record: Record) -> str | None:
    if record.type not in _BIRTHS:
        return None
    born = record.data if record.carried is None else record.carried.born
    _, _, _, size, _, _, queue_size, task_size = codec.BORN.unpack_from(born)
    at = codec.BORN.size + queue_size + task_size
    options = dict(each_option(born, at, size))
    return _key(options.get(Option.CONCURRENCY_KEY))


def _details(record: Record, bodies: BodyStore, tag: str) -> Iterator[tuple[str, Any]]:
    kind = record.type
    what = f"what lsn {record.lsn} holds of {tag}-{record.job}"
    if kind == Kind.RATED:  # of no job, and for the fold of rates alone
        return
    if record.queue or record.task:
        yield "queue", record.queue or None
        yield "task", record.task or None
    if kind in _BIRTHS or kind == Kind.TALLIED:
        yield "priority", record.priority
    if kind in _BIRTHS | OF_JOBS:
        yield "attempt", record.attempt
        yield from _value("value", record.body, record.body_flags, bodies, what)
    yield from _other(record)
    if kind in OF_JOBS - OF_STEPS - CARRYING:
        fixed = codec.FIXED_SIZES[kind]
        _, _, _, size, _ = codec.PREFIX.unpack_from(record.data)
        if kind in ENDS:
            decode_key_hash(record.data, fixed, size)  # refuses another size, as in the fold
        yield "key_hash", find_moment(record.data, fixed, size, Option.KEY_HASH) or None
    yield "lease_ns", record.lease_ns or None
    if record.extras is not None:
        yield from _birth(record, record.extras)
    if record.carried is not None:
        yield from _carried(record.carried)
        stored, flags = record.carried.body, record.carried.flags & PACKED
        yield from _value("result", stored, flags, bodies, what)


def _other(record: Record) -> Iterator[tuple[str, Any]]:
    kind = record.type
    if kind in (Kind.CLAIMED, Kind.OWNER):
        yield "owner", _owner(record.token)
    elif kind in OF_JOBS or kind == Kind.COMPACTED:
        yield "token", _signed(record.token) or None
    if kind == Kind.OWNER:
        yield from _text("value", record.body)
    if kind in _WITH_CAUSE:
        yield "cause", record.cause
    if record.step is not None:
        yield "step", record.step.title
        yield "began_ns", record.step.began_ns or None
        if kind == Kind.STEP_DONE:
            yield "place", record.step.place
            known = {int(form): form.name.lower() for form in Form}
            yield "state", known.get(record.step.form)
    if kind == Kind.CLOCK:
        yield "step_ns", record.step_ns
    if kind in (Kind.RETRIED, Kind.RELEASED):
        yield from {"due_ns": record.due_ns or None, "moments": 0}.items()


def _birth(record: Record, extras: Extras) -> Iterator[tuple[str, Any]]:
    yield "due_ns", extras.due_ns or None
    yield "expires_ns", extras.expires_ns or None
    yield "moments", int(extras.due_is_wall) | int(extras.expires_is_wall) << 1
    yield "attempts_max", record.attempts_max or None
    yield "key", _key(extras.key)
    yield "headers", extras.headers or None
    born = codec.decode_born(record.data if record.carried is None else record.carried.born)
    yield ("replaces", find_moment(born.options, 0, len(born.options), Option.REPLACES) or None)
    if record.carried is not None:
        is_wall = record.carried.due_is_wall
        yield "moments", int(is_wall) | int(extras.expires_is_wall) << 1
        yield "expires_ns", record.carried.expires_ns or extras.expires_ns or None


def _carried(carried: Carried) -> Iterator[tuple[str, Any]]:
    yield "flags", codec.PREFIX.unpack_from(carried.born)[4]
    yield "state", carried.state.name.lower()
    yield "owner", _owner(carried.claim[1])
    yield "due_ns", carried.due_ns or None
    yield "enqueued_ns", carried.enqueued_ns or None
    yield "ended_ns", carried.ended_ns or None
    yield "history", carried.history or None
    yield "lease_ns", carried.lease_ns or None


def _value(
    name: str, stored: bytes | None, flags: int, bodies: BodyStore, what: str
) -> Iterator[tuple[str, Any]]:
    """Yield the body as it was given, or why it is missing."""
    try:
        body = bodies.unpack(stored, flags, what) if stored is not None and flags else stored
    except TaskqError as error:
        yield "problem", str(error)
        return
    yield from _text(name, body)


def _text(name: str, body: bytes | None) -> Iterator[tuple[str, Any]]:
    try:
        yield name, None if body is None else body.decode()
    except UnicodeDecodeError:
        yield f"{name}_bytes", body


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="backslashreplace")


def _owner(number: int) -> str | None:
    return f"{number:016x}" if number else None


def _known() -> frozenset[int]:
    return frozenset(codec.FIXED_SIZES)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


# -- segmentfiles ----------------------------------------------------------------------------------


LOG_ID: Final = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
EPOCH: Final = 0xF122334455667788
START_NS: Final = 1_700_000_000_123_456_789
SPEC: Final = EnqueueSpec("mail", "mail.send", 7, 3)


class Segments(MadeLog):
    def __init__(self, directory: Path, log_id: uuid.UUID = LOG_ID) -> None:
        super().__init__(directory, log_id)
        self.epoch, self.time_ns = EPOCH, START_NS
        self.rotate()

    def add(self, *records: bytes | Callable[[int], bytes], synced: bool = True) -> int:
        first = self.next_lsn
        place = self.frame(
            *(
                record if isinstance(record, bytes) else record(lsn)
                for lsn, record in enumerate(records, first)
            ),
            synced=synced,
        )
        return place.offset

    def piece(self, start: int = 0, end: int | None = None) -> Piece:
        end = self.file.stat().st_size if end is None else end
        tag = Tag(self.log_id.hex[:8])
        return Piece(str(self.file), DEVICE, str(self.log_id), tag, self.segment, start, end)


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
