"""Records that repeat or sum up others: rewritten jobs, totals, progress of compaction."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from taskq.core.errors import FormatError
from taskq.core.folds.dedup import key_hash
from taskq.core.folds.lanes import Lane
from taskq.core.kinds import CARRYING
from taskq.core.model import LINES_BYTES_MAX, State
from taskq.core.records import Flag, Kind, Option
from taskq.core.values import NamedTuple
from taskq.core.views import AttemptView
from taskq.log.format import codec
from taskq.log.format.codec import CRC_SIZE, KIND_AT, OPTION, QUEUE_SIZE_AT, option
from taskq.log.format.flows import decode_needs, decode_unlocks, encode_needs, encode_unlocks
from taskq.log.format.options import decode_key_hash, each_option, encode_key_hash

#: Most kept attempts, most bytes of all of them, and most bytes of one reason.
ATTEMPTS_KEPT: Final = 20
HISTORY_BYTES_MAX: Final = 32 * 1024
REASON_KEPT_BYTES: Final = 1_024
_ATTEMPT: Final = struct.Struct("<IQqqBH")
#: Bytes of all options of a record; flows and keys come first.
OPTIONS_BYTES_MAX: Final = 2**16 - 1
_LINES_STORED_MAX: Final = 60_000
#: Outcomes by their numbers, which never change.
OUTCOMES: Final = ("", "succeeded", "retried", "dead", "released", "lost", "cancelled", "expired")


def encode_history(attempts: Sequence[AttemptView]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for attempt in reversed(attempts[-ATTEMPTS_KEPT:]):
        part = _encode(attempt)
        size += len(part)
        if size > HISTORY_BYTES_MAX:
            break
        parts.append(part)
    return b"".join(reversed(parts))


def encode_attempts(attempts: Sequence[AttemptView]) -> tuple[bytes, bytes]:
    """Return a job's packed attempts, and the stored log lines of the last attempt."""
    return encode_history(attempts), attempts[-1].stored_lines if attempts else b""


def decode_history(data: bytes) -> list[AttemptView]:
    attempts: list[AttemptView] = []
    at = 0
    while at + _ATTEMPT.size <= len(data):
        number, owner, started_ns, ended_ns, outcome, size = _ATTEMPT.unpack_from(data, at)
        at += _ATTEMPT.size
        attempts.append(
            AttemptView(
                number=number,
                owner=owner,
                started_ns=started_ns,
                ended_ns=ended_ns,
                outcome=OUTCOMES[outcome] if outcome < len(OUTCOMES) else "",
                reason=data[at : at + size].decode("utf-8", "replace"),
            )
        )
        at += size
    return attempts[-ATTEMPTS_KEPT:]


def _encode(attempt: AttemptView) -> bytes:
    reason = attempt.reason.encode("utf-8", "replace")[:REASON_KEPT_BYTES]
    reason = reason.decode("utf-8", "ignore").encode()
    outcome = OUTCOMES.index(attempt.outcome) if attempt.outcome in OUTCOMES else 0
    fixed = _ATTEMPT.pack(
        attempt.number, attempt.owner, attempt.started_ns, attempt.ended_ns, outcome, len(reason)
    )
    return fixed + reason


def encode_lines(text: str) -> bytes:
    """Return the option LINES: the latest log lines of an attempt, as far as they fit."""
    data = text.encode("utf-8", "replace")[-LINES_BYTES_MAX:]
    while len(stored := zlib.compress(data, 1)) > _LINES_STORED_MAX:
        data = data[len(data) // 8 :]
    return option(Option.LINES, stored)


_I64: Final = struct.Struct("<q")
_CLAIM: Final = struct.Struct("<QQ")
#: DROP_RESULT marks a carried record without a result: an empty body may be a result.
_OWN_FLAGS: Final = int(Flag.CHECKED | Flag.DROP_RESULT)


class Carried(NamedTuple):
    """Content of a CARRIED, REQUEUED or EDITED record. Moments are nanoseconds, 0 for none.

    ``due_ns``, ``lease_ns``, ``key_until_ns`` and ``expires_ns`` shift with the clock, by the time
    of the record's frame. With an eta, ``due_ns`` is wall time (``due_is_wall``).

    A CARRIED record holds the job's whole ENQUEUED record, byte for byte, so payload, key and
    headers are read from the copy.
    """

    job: int
    state: State
    #: the job's ENQUEUED record
    born: bytes
    enqueued_ns: int
    attempt: int = 0
    token: int = 0
    due_ns: int = 0
    due_is_wall: bool = False
    #: (epoch, owner) of a running job's claim
    claim: tuple[int, int] = (0, 0)
    lease_ns: int = 0
    #: end of a key's window
    key_until_ns: int = 0
    #: relative expiry; 0: see its ENQUEUED record
    expires_ns: int = 0
    ended_ns: int = 0
    history: bytes = b""
    #: result or reason; None without either
    body: bytes | None = None
    #: ``Flag`` bits of the result
    flags: int = 0
    #: a cancel of the running job was requested
    cancel_wanted: bool = False
    #: count and policy of a held job's inputs (``core.flows``)
    needs: int | None = None
    #: of REQUEUED: held jobs for which it had counted as done
    waited: tuple[int, ...] = ()
    #: packed log lines of an ended job's last attempt
    lines: bytes = b""
    #: of EDITED: hash of its key in the queue that it left, 0 without a key or a move
    left_key: int = 0
    #: its waits within its run (``core.folds.steps``); empty without steps
    awaiting: bytes = b""

    @property
    def ready_ns(self) -> int:
        return self.due_ns or self.enqueued_ns


def encode_carried(kind: int, carried: Carried, lsn: int) -> bytes:
    options = _encode_options(carried)
    flags = carried.flags | (_OWN_FLAGS if carried.body is None else 0)
    return codec.encode(
        kind, carried.attempt, carried.job, carried.token, carried.due_ns, carried.enqueued_ns,
        lsn=lsn, byte=carried.state, flags=flags, options=options,
        body=carried.born if carried.body is None else carried.born + carried.body,
    )  # fmt: skip


def decode_carried(record: bytes) -> Carried:
    length, _, state, options_size, flags, attempt, job, token, due_ns, enqueued_ns = (
        codec.WHOLE.unpack_from(record)
    )
    at = codec.WHOLE.size + options_size
    end = length - CRC_SIZE
    born = born_in(record)
    rest = at + len(born)
    values: dict[str, Any] = {}
    claim, cancel_wanted = (0, 0), False
    needs: int | None = None
    waited: tuple[int, ...] = ()
    left_key = 0
    for tag, value in each_option(record, codec.WHOLE.size, options_size):
        if tag == Option.CLAIM:
            claim = _CLAIM.unpack(value)
        elif tag in _BYTES:
            values[_BYTES[tag]] = value
        elif tag == Option.CANCEL_WANTED:
            cancel_wanted = True
        elif tag == Option.NEEDS:
            needs = decode_needs(value)
        elif tag == Option.UNLOCKS:
            waited = decode_unlocks(value)
        elif tag == Option.KEY_HASH:
            left_key = decode_key_hash(record, codec.WHOLE.size, options_size)
        elif tag in _MOMENTS:
            values[_MOMENTS[tag]] = _I64.unpack(value)[0]
    is_wall = "due_wall_ns" in values
    return Carried(
        job=job, state=State(state), born=born, enqueued_ns=enqueued_ns, attempt=attempt,
        token=token, due_ns=values.pop("due_wall_ns", due_ns), due_is_wall=is_wall, claim=claim,
        body=None if flags & Flag.DROP_RESULT else record[rest:end],
        flags=flags & ~_OWN_FLAGS, cancel_wanted=cancel_wanted, needs=needs,
        waited=waited, left_key=left_key, **values,
    )  # fmt: skip


def born_in(record: bytes) -> bytes:
    if len(record) < codec.WHOLE.size + codec.BORN.size:
        raise FormatError("a carried record is shorter than its contents")
    at = codec.WHOLE.size + codec.PREFIX.unpack_from(record)[3]
    if at + codec.BORN.size > len(record) - CRC_SIZE:
        raise FormatError("a carried record is shorter than its contents")
    length = codec.LENGTH.unpack_from(record, at)[0]
    if length < codec.BORN.size or at + length > len(record) - CRC_SIZE:
        raise FormatError(f"a carried record holds one of {length} bytes")
    return record[at : at + length]


def is_carrying(record: bytes) -> bool:
    return len(record) > KIND_AT and record[KIND_AT] in CARRYING


def encode_queue(kind: int, queue: str, lsn: int) -> bytes:
    return codec.encode(kind, 0, lsn=lsn, body=queue.encode("utf-8", "surrogatepass"))


def decode_queue(record: bytes) -> str:
    return record[codec.NAME.size : -CRC_SIZE].decode("utf-8", "replace")


def encode_tally(lane: Lane, lsn: int) -> bytes:
    """Return a TALLIED record: counts of the lane's ended jobs by end."""
    return codec.encode(
        Kind.TALLIED, 0, lane.succeeded, lane.dead, lane.cancelled, lane.expired,
        lsn=lsn, byte=lane.priority, body=lane.key,
    )  # fmt: skip


def encode_compacted(floor_lsn: int, lsn: int) -> bytes:
    """Return a COMPACTED record: segments that begin before ``floor_lsn`` may be gone."""
    return codec.encode(Kind.COMPACTED, 0, floor_lsn, lsn=lsn)


def encode_lease(deadline_ns: int) -> bytes:
    return option(Option.LEASE, _I64.pack(deadline_ns))


def find_moment(data: bytes, at: int, size: int, wanted: int) -> int:
    """Return the number in an option of a record, usually a moment; 0 without the option."""
    for tag, value in each_option(data, at, size):
        if tag == wanted and len(value) == _I64.size:
            moment: int = _I64.unpack(value)[0]
            return moment
    return 0


_BYTES: Final = {
    int(Option.HISTORY): "history", int(Option.LINES): "lines", int(Option.AWAITS): "awaiting",
}  # fmt: skip
_MOMENTS: Final = {
    int(Option.LEASE): "lease_ns",
    int(Option.KEY_UNTIL): "key_until_ns",
    int(Option.ENDED): "ended_ns",
    int(Option.DUE_WALL): "due_wall_ns",
    int(Option.EXPIRES_RELATIVE): "expires_ns",
}


def _encode_options(carried: Carried) -> bytes:
    parts: list[bytes] = []
    moments = (
        (Option.LEASE, carried.lease_ns),
        (Option.KEY_UNTIL, carried.key_until_ns),
        (Option.ENDED, carried.ended_ns),
        (Option.DUE_WALL, carried.due_ns if carried.due_is_wall else 0),
        (Option.EXPIRES_RELATIVE, carried.expires_ns),
    )
    parts += [option(tag, _I64.pack(moment)) for tag, moment in moments if moment]
    if carried.token:
        parts.append(option(Option.CLAIM, _CLAIM.pack(*carried.claim)))
    if carried.history:
        parts.append(option(Option.HISTORY, carried.history))
    if carried.cancel_wanted:
        parts.append(option(Option.CANCEL_WANTED, b""))
    if carried.needs is not None:
        parts.append(encode_needs(carried.needs))
    if carried.left_key:
        parts.append(encode_key_hash(carried.left_key))
    if carried.waited:
        parts.append(encode_unlocks(list(carried.waited)))
    if carried.awaiting:
        parts.append(option(Option.AWAITS, carried.awaiting))
    if carried.lines and sum(map(len, parts)) + len(carried.lines) + 3 <= OPTIONS_BYTES_MAX:
        parts.append(option(Option.LINES, carried.lines))
    return b"".join(parts)


_KEY: Final = int(Option.KEY)


def key_hash_of(data: bytes, at: int = 0) -> int:
    """Return the hash of an ENQUEUED record's key, 0 without a key.

    Every settlement of a job with a key calls it, and so does the index for each such record. So it
    makes no ``Extras`` and does not use ``each_option``.
    """
    start = at + codec.BORN.size
    queue_end = start + data[at + QUEUE_SIZE_AT]
    place = queue_end + data[at + QUEUE_SIZE_AT + 1]
    end = place + codec.PREFIX.unpack_from(data, at)[3]
    while place + OPTION.size <= end:
        tag, length = OPTION.unpack_from(data, place)
        place += OPTION.size
        if tag == _KEY:
            key = data[place : min(place + length, end)]
            return key_hash(data[start:queue_end], key)
        place += length
    return 0
