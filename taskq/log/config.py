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
#: Enqueues leave so many bytes of the disk free, and the reserve is so large, unless other figures
#: are given; of a small disk each is at most one part in so many.
MIN_FREE_BYTES: Final = 16 * 1024 * 1024
RESERVE_BYTES: Final = 1024 * 1024
TINY_DISK_PARTS: Final = 50


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
        min_free_bytes: enqueues are refused with ``DiskFull`` when fewer would be left on the disk,
            while settling and cancelling go on; None for 16 MiB, or 2 % of a disk that is smaller
            than 800 MiB; 0 to use the disk up.
        reserve_bytes: set aside in a file that is given up when the disk is full, so that jobs can
            still be settled; None for 1 MiB, or 2 % of a disk that is smaller than 50 MiB; 0 for
            none.
    """

    durability: Durability = Durability.FSYNC
    interval_seconds: float = 0.05
    segment_bytes: int = 64 * 1024 * 1024
    lock_wait_seconds: float = 30.0
    exclusive: bool = False
    name: str = ""
    min_free_bytes: int | None = None
    reserve_bytes: int | None = None

    def __post_init__(self) -> None:
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise UsageError(
                f"segment_bytes is {self.segment_bytes}, it must be {SEGMENT_BYTES_MIN} to "
                f"{SEGMENT_BYTES_MAX}"
            )
        if self.interval_seconds <= 0 or self.lock_wait_seconds <= 0:
            raise UsageError("interval_seconds and lock_wait_seconds must be above 0")
        for name, size in (("min_free", self.min_free_bytes), ("reserve", self.reserve_bytes)):
            if size is not None and size < 0:
                raise UsageError(f"{name} is {size}, it must be 0 (none) or a number of bytes")
