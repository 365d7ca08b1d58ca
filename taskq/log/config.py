"""How a log is opened: limits and choices, each with its unit."""

from __future__ import annotations

import contextlib
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, get_args

from taskq.core.errors import UsageError
from taskq.core.folds.moments import STARVATION_NS
from taskq.core.model import SECOND_NS, SPILL_BYTES_MAX, TIME_NS_MAX, Durability
from taskq.core.values import NamedTuple, dataclass
from taskq.log.format.bodies import DECOMPRESSED_BYTES_MAX, Compression, check_storage
from taskq.log.machine.access import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskq.log.machine.ports import Clock, Disk

#: A batch takes requests from the mailbox up to this size, plus one transaction.
BATCH_BYTES_MAX: Final = 256 * 1024
#: Requests that may wait in the mailbox; senders beyond wait their turn.
MAILBOX_MAX: Final = 20_000
SEGMENT_BYTES_MIN: Final = 64 * 1024
#: Locations hold 31 bits of offset.
SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024
#: Where no file is to be had for the next segment, one grows on up to this size.
STRETCHED_BYTES_MAX: Final = 2**31 - 64 * 1024 * 1024
#: Ids to leave out after a loss, so that one seen before it never names another job. The log is
#: fsynced before half as many records hang in the air, whatever the durability.
LSN_SKIP: Final = 2**20
#: Enqueues leave so many bytes of the disk free, and the reserve is so large, unless other figures
#: are given; of a small disk each is at most one part in so many.
MIN_FREE_BYTES: Final = 16 * 1024 * 1024
RESERVE_BYTES: Final = 1024 * 1024
TINY_DISK_PARTS: Final = 50
#: Enqueues leave so many files to be made on the disk, with the same for a small one.
MIN_FREE_FILES: Final = 64
#: How long finished jobs are kept unless another time is given.
KEEP_SECONDS: Final = 7 * 86_400.0
#: A log with a limit of bytes or of time has at least so many segments, so that it can shrink in
#: small steps.
KEEP_PARTS: Final = 8
#: For what is kept for a short time a segment is not sealed more often than this.
SEAL_SECONDS_MIN: Final = 10.0
#: A job that waits longer rises one priority, unless another window is given.
STARVATION_SECONDS: Final = STARVATION_NS / SECOND_NS
#: Dedup keys that are held at a time, unless another limit is given.
KEYS_MAX: Final = 50_000_000
#: What to do with a body that is too large, and was not allowed to go to a file.
SPILL_HINT: Final = "allow it with spill=True, or store the data in a file and pass its path"
#: In place of None, where that stands for what the log says.
ALWAYS_SECONDS: Final = TIME_NS_MAX / SECOND_NS


class Packing(NamedTuple):
    """What becomes of a body on its way into the log."""

    compress: Compression
    #: whether it may go to a file of its own when it is larger than PAYLOAD_BYTES_MAX
    spill: bool


def check_dead_max(dead_max: int | None) -> None:
    """Refuse what is no number of dead letters.

    Raises:
        UsageError: it is below 0.
    """
    if dead_max is not None and dead_max < 0:
        raise UsageError(f"dead_max is {dead_max}, it must be 0 (keep none) or more")


def check_mode(mode: object) -> None:
    """Refuse what is no mode.

    Raises:
        UsageError: it is neither of them.
    """
    if mode is not None and mode not in get_args(Mode):
        raise UsageError(f"mode is {mode!r:.60}, it must be private or group")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """What is other in one queue than in the rest of its log; None: nothing.

    Attributes:
        compress: how payloads and results are compressed.
        spill: whether large ones may go to files of their own.
        keep_seconds: how long finished jobs are kept after their end.
        keep_dead_seconds: how long dead letters are kept after their death.
        dead_max: most dead letters of the queue, which is then counted by itself.
    """

    compress: Compression | None = None
    spill: bool | None = None
    keep_seconds: float | None = None
    keep_dead_seconds: float | None = None
    dead_max: int | None = None

    def __post_init__(self) -> None:
        check_storage(self.compress, self.spill)
        check_dead_max(self.dead_max)
        for name in ("keep_seconds", "keep_dead_seconds"):
            value = getattr(self, name)
            if value is not None and not (type(value) in {int, float} and value >= 0):
                raise UsageError(
                    f"{name} of a queue is {value!r:.60}, it must be a number, 0 or more"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Options of one open log.

    Attributes:
        durability: what an awaited answer survives.
        interval_seconds: with ``interval``, the longest time until the next fsync.
        segment_bytes: size at which a segment is sealed and the next begun.
        segment_age_seconds: the longest time that a segment goes on after the first job ended in
            it, so that this may go in time; None for an eighth of the time for which it is kept.
        lock_wait_seconds: longest wait for the writer lock before callers get ``LogLocked``.
        exclusive: keep the writer lock for as long as the log is open.
        name: shown by ``taskq workers``.
        min_free_bytes: enqueues are refused with ``DiskFull`` when fewer would be left on the disk,
            while settling and cancelling go on; None for 16 MiB, or 2 % of a disk that is smaller
            than 800 MiB; 0 to use the disk up.
        reserve_bytes: set aside in a file that is given up when the disk is full, so that jobs can
            still be settled; None for 1 MiB, or 2 % of a disk that is smaller than 50 MiB; 0 for
            none.
        compress: how payloads and results are compressed, where their task or queue does not say.
        spill: likewise, whether those over PAYLOAD_BYTES_MAX may go to files beside the log.
        spill_bytes_max: largest one that may.
        decompressed_bytes_max: what would become larger is not decompressed.
        keep_seconds: how long a finished job is kept after its end; None for ever. What is older
            goes with its whole segment.
        keep_bytes: the log's size beyond which the oldest finished jobs go, whatever their age;
            None for no limit. Unsettled jobs, dead letters and held keys always stay.
        keep_segments: likewise, a number of sealed segments.
        keep_dead_seconds: how long a dead letter is kept after its death; None for ever.
        dead_max: most dead letters, of all queues together that have no number of their own; the
            oldest deaths go first. None for no limit.
        reader_lag_bytes: a named reader keeps what it has not read, up to a log of this size; None:
            however large the log becomes.
        upkeep: whether this process keeps the log in order while it works.
        starvation_seconds: a job that waits longer rises one priority for each such window, up to
            9; None or 0: it does not.
        keys_max: most dedup keys that are held at a time; an enqueue with another is refused.
        queues: what is other in some queues, by their names.
        mode: who may use a log that is made here, its user ("private") or its directory's group
            ("group"), and what one that is there must be; None: whatever the directory says, and
            its user alone where there is none.
        clock: tells the time in place of the machine's: ``taskq.testing.use_clock`` sets it.
    """

    durability: Durability = Durability.FSYNC
    interval_seconds: float = 0.05
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_seconds: float | None = None
    lock_wait_seconds: float = 30.0
    exclusive: bool = False
    name: str = ""
    min_free_bytes: int | None = None
    reserve_bytes: int | None = None
    compress: Compression = "none"
    spill: bool = False
    spill_bytes_max: int = SPILL_BYTES_MAX
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
    clock: Clock | None = None

    def segment_age_of(self, keep_seconds: float) -> float:
        """Return how long a segment goes on after the first end in it, for what is kept so long."""
        if self.segment_age_seconds is not None:
            return min(self.segment_age_seconds, keep_seconds)
        return min(keep_seconds, max(keep_seconds / KEEP_PARTS, SEAL_SECONDS_MIN))

    def segment_bytes_on(self, disk: Disk, path: str) -> int:
        """Size at which a segment is sealed: small beside a limit for the whole log, or its disk.

        What is needed of a segment is written again before it goes, on a disk that may be full.
        """
        limits = [self.segment_bytes]
        if self.keep_bytes is not None:
            limits.append(self.keep_bytes // KEEP_PARTS)
        with contextlib.suppress(OSError):  # who cannot be asked limits nothing
            limits.append(disk.total_bytes(path) // TINY_DISK_PARTS)
        return max(min(limits), SEGMENT_BYTES_MIN)

    def __post_init__(self) -> None:
        check_storage(self.compress, self.spill)
        check_mode(self.mode)
        check_dead_max(self.dead_max)
        object.__setattr__(self, "queues", MappingProxyType(dict(self.queues)))
        for name in ("keep_bytes", "keep_segments", "reader_lag_bytes"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise UsageError(f"{name} is {limit}, it must be above 0")
        for name in ("spill_bytes_max", "decompressed_bytes_max", "keys_max"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be above 0")
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise UsageError(
                f"segment_bytes is {self.segment_bytes}, it must be {SEGMENT_BYTES_MIN} to "
                f"{SEGMENT_BYTES_MAX}"
            )
        if self.starvation_seconds is not None and self.starvation_seconds < 0:
            raise UsageError(f"starvation is {self.starvation_seconds} s, it must be 0 or above")
        if min(self.interval_seconds, self.lock_wait_seconds, self.segment_age_of(1)) <= 0:
            raise UsageError("interval, lock_wait and segment_age must be above 0")
        for name, size in (("min_free", self.min_free_bytes), ("reserve", self.reserve_bytes)):
            if size is not None and size < 0:
                raise UsageError(f"{name} is {size}, it must be 0 (none) or a number of bytes")

    @property
    def is_plain(self) -> bool:
        """Return whether bodies are stored as given where neither job nor task says otherwise."""
        here: tuple[LogConfig | QueuePolicy, ...] = (self, *self.queues.values())
        return not any(config.spill or config.compress not in {None, "none"} for config in here)

    def packing(
        self, queue: str, compress: Compression | None = None, spill: bool | None = None
    ) -> Packing | None:
        """Return what becomes of a body of the queue; None: it is stored as it is, and has a limit.

        ``compress`` and ``spill`` are what the job or its task says, None for nothing.
        """
        if self.queues and (compress is None or spill is None):
            policy = self.queues.get(queue)
            if policy is not None:
                compress = policy.compress if compress is None else compress
                spill = policy.spill if spill is None else spill
        compress = self.compress if compress is None else compress
        spill = self.spill if spill is None else spill
        return Packing(compress, spill) if spill or compress != "none" else None
