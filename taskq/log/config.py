"""Options of an open log: limits and choices, each with its unit."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, get_args

from taskq.core import errors, model
from taskq.core.folds.moments import STARVATION_NS
from taskq.core.model import Mode
from taskq.core.values import dataclass
from taskq.log.format.bodies import DECOMPRESSED_BYTES_MAX, Compression, check_compression

if TYPE_CHECKING:
    from taskq.log.machine.ports import Clock, Disk

#: Size up to which a batch takes requests from the mailbox, plus one transaction.
BATCH_BYTES_MAX: Final = 256 * 1024
#: Most requests in the mailbox; further senders wait.
MAILBOX_MAX: Final = 20_000
SEGMENT_BYTES_MIN: Final = 64 * 1024
#: Limit of a segment: locations hold 31 bits of offset.
SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024
#: Size up to which a segment grows if the next segment's file cannot be made.
STRETCHED_BYTES_MAX: Final = 2**31 - 64 * 1024 * 1024
#: Ids left out after a loss, so that an earlier id never names another job. The log is fsynced
#: before half as many records are unsynced, with any durability.
LSN_SKIP: Final = 2**20
#: Default bytes that enqueues leave free, and default size of the reserve; on a small disk each is
#: at most this part of the disk.
MIN_FREE_BYTES: Final = 16 * 1024 * 1024
RESERVE_BYTES: Final = 1024 * 1024
TINY_DISK_PARTS: Final = 50
#: Files that enqueues leave free on the disk; on a small disk the same part of its files.
MIN_FREE_FILES: Final = 64
#: Default time to keep finished jobs.
KEEP_SECONDS: Final = 7 * 86_400.0
#: Fewest segments of a log with a limit of bytes or time, so that it shrinks in small steps.
KEEP_PARTS: Final = 8
#: Shortest time between two seals, even with a short retention.
SEAL_SECONDS_MIN: Final = 10.0
#: Default window: a job rises one priority each time it has waited that long.
STARVATION_SECONDS: Final = STARVATION_NS / model.SECOND_NS
#: Default limit of held dedup keys.
KEYS_MAX: Final = 50_000_000
#: Stands for None if None means the log's own value.
ALWAYS_SECONDS: Final = model.TIME_NS_MAX / model.SECOND_NS


#: Options that must be above 0 if set.
_SIZES: Final = (
    "keep_bytes", "keep_segments", "reader_lag_bytes",
    "decompressed_bytes_max", "keys_max",
)  # fmt: skip


def check_dead_max(dead_max: int | None) -> None:
    if dead_max is not None and dead_max < 0:
        raise errors.UsageError(f"dead_max is {dead_max}, it must be 0 (keep none) or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Exceptions for one queue of a log; None: no exception.

    Attributes:
        compress: how payloads and results are compressed.
        keep_seconds: how long finished jobs are kept after their end.
        keep_dead_seconds: how long dead letters are kept after their death.
        dead_max: most dead letters of the queue, which then has its own count.
    """

    compress: Compression | None = None
    keep_seconds: float | None = None
    keep_dead_seconds: float | None = None
    dead_max: int | None = None

    def __post_init__(self) -> None:
        if self.compress is not None:
            check_compression(self.compress)
        check_dead_max(self.dead_max)
        for name in ("keep_seconds", "keep_dead_seconds"):
            value = getattr(self, name)
            if value is not None and not (type(value) in {int, float} and value >= 0):
                raise errors.UsageError(
                    f"{name} of a queue is {value!r:.60}, it must be a number, 0 or more"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Options of one open log, in its own units; ``LogOptions`` documents each option.

    A span or size of None means for ever, or no limit. None for ``min_free_bytes``,
    ``reserve_bytes``, ``segment_age_seconds`` or ``mode`` means a value by the disk or the
    retention.
    """

    durability: model.Durability = model.Durability.FSYNC
    interval_seconds: float = 0.05
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_seconds: float | None = None
    lock_wait_seconds: float = 30.0
    exclusive: bool = False
    name: str = ""
    min_free_bytes: int | None = None
    reserve_bytes: int | None = None
    compress: Compression = "none"
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    keep_seconds: float | None = KEEP_SECONDS
    keep_bytes: int | None = None
    keep_segments: int | None = None
    keep_dead_seconds: float | None = None
    dead_max: int | None = None
    reader_lag_bytes: int | None = None
    upkeep: bool = True
    keys_max: int = KEYS_MAX
    starvation_seconds: float | None = STARVATION_SECONDS
    queues: Mapping[str, QueuePolicy] = field(default_factory=dict, hash=False)
    mode: Mode | None = None
    #: clock in place of the machine's; set by ``taskq.testing.use_clock``
    clock: Clock | None = None

    def segment_age_of(self, keep_seconds: float) -> float:
        """Return the seconds from a segment's first ended job to its seal, for a retention."""
        if self.segment_age_seconds is not None:
            return min(self.segment_age_seconds, keep_seconds)
        return min(keep_seconds, max(keep_seconds / KEEP_PARTS, SEAL_SECONDS_MIN))

    def segment_bytes_on(self, disk: Disk, path: str) -> int:
        """Return the size at which a segment is sealed, small for a small log limit or disk.

        The needed part of a segment is rewritten before its removal, on a disk that may be full.
        """
        limits = [self.segment_bytes]
        if self.keep_bytes is not None:
            limits.append(self.keep_bytes // KEEP_PARTS)
        with contextlib.suppress(OSError):  # a failed check limits nothing
            limits.append(disk.total_bytes(path) // TINY_DISK_PARTS)
        return max(min(limits), SEGMENT_BYTES_MIN)

    def __post_init__(self) -> None:
        check_compression(self.compress)
        if self.mode is not None and self.mode not in get_args(Mode):
            raise errors.UsageError(f"mode is {self.mode!r:.60}, it must be private or group")
        check_dead_max(self.dead_max)
        object.__setattr__(self, "queues", MappingProxyType(dict(self.queues)))
        for name in _SIZES:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise errors.UsageError(f"{name} is {limit}, it must be above 0")
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise errors.UsageError(
                f"segment_bytes is {self.segment_bytes}, it must be {SEGMENT_BYTES_MIN} to "
                f"{SEGMENT_BYTES_MAX}"
            )
        if self.starvation_seconds is not None and self.starvation_seconds < 0:
            raise errors.UsageError(
                f"starvation is {self.starvation_seconds} s, it must be 0 or above"
            )
        if min(self.interval_seconds, self.lock_wait_seconds, self.segment_age_of(1)) <= 0:
            raise errors.UsageError("interval, lock_wait and segment_age must be above 0")
        for name, size in (("min_free", self.min_free_bytes), ("reserve", self.reserve_bytes)):
            if size is not None and size < 0:
                raise errors.UsageError(
                    f"{name} is {size}, it must be 0 (none) or a number of bytes"
                )

    @property
    def is_plain(self) -> bool:
        """Return whether bodies are stored as given unless a job or task sets a compression."""
        here: tuple[LogConfig | QueuePolicy, ...] = (self, *self.queues.values())
        return not any(config.compress not in {None, "none"} for config in here)

    def packing(self, queue: str, compress: Compression | None = None) -> Compression | None:
        """Return the compression of the queue's bodies; None: they are stored as given.

        ``compress`` is the choice of the job or its task, if there is one.
        """
        if compress is None and self.queues and (policy := self.queues.get(queue)) is not None:
            compress = policy.compress
        compress = self.compress if compress is None else compress
        return None if compress == "none" else compress
