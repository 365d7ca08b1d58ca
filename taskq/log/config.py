"""How a log is opened: limits and choices, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taskq.core.errors import UsageError
from taskq.core.model import Durability

#: A batch takes requests from the mailbox up to this size, plus one transaction.
BATCH_BYTES_MAX: Final = 256 * 1024
#: Requests that may wait in the mailbox; senders beyond wait their turn.
MAILBOX_MAX: Final = 20_000
SEGMENT_BYTES_MIN: Final = 64 * 1024
#: Locations hold 31 bits of offset.
SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024
#: Ids to leave out after a loss, so that one seen before it never names another job. The log is
#: fsynced before half as many records hang in the air, whatever the durability.
LSN_SKIP: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Options of one open log.

    Attributes:
        durability: what an awaited answer survives.
        interval_seconds: with ``interval``, the longest time until the next fsync.
        segment_bytes: size at which a segment is sealed and the next begun.
        lock_wait_seconds: longest wait for the writer lock before callers get ``LogLocked``.
        exclusive: keep the writer lock for as long as the log is open.
        name: shown by ``taskq workers``.
    """

    durability: Durability = Durability.FSYNC
    interval_seconds: float = 0.05
    segment_bytes: int = 64 * 1024 * 1024
    lock_wait_seconds: float = 30.0
    exclusive: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise UsageError(
                f"segment_bytes is {self.segment_bytes}, it must be {SEGMENT_BYTES_MIN} to "
                f"{SEGMENT_BYTES_MAX}"
            )
        if self.interval_seconds <= 0 or self.lock_wait_seconds <= 0:
            raise UsageError("interval_seconds and lock_wait_seconds must be above 0")
