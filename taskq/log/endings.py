"""What single records make of a job's state: for walks that look at many jobs and fold none."""

from __future__ import annotations

from typing import Final

from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.transitions import after
from taskq.log import codec
from taskq.log.codec import KIND_AT, STATE_AT

#: The state of a job of which nothing is known but that it was enqueued, as a plain number.
BORN: Final = int(after(State.ABSENT, Kind.ENQUEUED))
#: What a record makes of its job, where it ends or revives it. A kind leads to the same state
#: from wherever it finds the job, so it does not matter from where it is asked.
ENDINGS: Final[dict[int, int]] = {
    int(kind): int(after(State.ABSENT, kind))
    for kind in (
        Kind.SUCCEEDED, Kind.DIED, Kind.CANCELLED, Kind.EXPIRED, Kind.REQUEUED, Kind.PURGED,
    )
}  # fmt: skip


def carried_state(record: bytes) -> int:
    """What a CARRIED or REQUEUED record makes of its job."""
    return ENDINGS.get(record[KIND_AT], record[STATE_AT])


def is_named(data: bytes, at: int, queue: bytes | None, task: bytes | None) -> bool:
    """Whether the ENQUEUED record at ``at`` is of the queue and task; None for any."""
    if queue is None and task is None:
        return True
    start = at + codec.ENQUEUED.size
    middle = start + data[at + 14]
    return (queue is None or data[start:middle] == queue) and (
        task is None or data[middle : middle + data[at + 15]] == task
    )


def encoded(name: str | None) -> bytes | None:
    """A name as ``is_named`` takes it."""
    return None if name is None else name.encode("utf-8", "surrogatepass")
