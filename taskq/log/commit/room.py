"""Room on the disk: enqueues are refused before it is full, so that jobs can still end."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from taskq.core.errors import AppendFailed, DiskFull
from taskq.core.model import SECOND_NS
from taskq.log import config
from taskq.log.commit.answers import NOWAIT, refusals
from taskq.log.config import MIN_FREE_BYTES, MIN_FREE_FILES, RESERVE_BYTES, TINY_DISK_PARTS
from taskq.log.decide.context import BatchNeeds
from taskq.log.machine.ports import Clock, Disk, opened
from taskq.log.requests import Answer, Op, Request, Trait, ops_that


def parted(requests: list[Request]) -> list[Request]:
    """Return the requests with each job of a run, and each settlement without a caller, alone."""
    parts: list[Request] = []
    for request in requests:
        op, port, future, operand = request
        if op in NOWAIT:
            items, on_error = operand
            parts += [(op, port, future, ([item], on_error)) for item in items]
        elif op == Op.ENQUEUE_RUN:
            parts += [(op, port, single, single) for single in operand.singles()]
        else:
            parts.append(request)
    return parts


T = TypeVar("T")

RESERVE_FILE: Final = "reserve"
_PROBE_FILE: Final = "reserve.tmp"
#: Operations to refuse first: they add jobs, or revive dead ones.
GROWING: Final = ops_that(Trait.GROWS)
#: Errors of a full disk or quota.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Shortest and longest time between two checks, and the assumed speed at which the disk fills.
_LOOK_NS_MIN: Final = SECOND_NS // 20
_LOOK_NS_MAX: Final = SECOND_NS
#: Time after a refusal in which the log tries to make room.
_SOUGHT_NS: Final = 5 * SECOND_NS
_FILL_BYTES_PER_SECOND: Final = 4 * 1024**3
#: Bytes that a batch may have besides its requests: claims, expiries, jobs of dead owners.
_MARGIN_BYTES: Final = 16 * 1024


class Room:
    """Watch the room on the log's disk, for one process.

    Three measures keep the log working on a full disk. Enqueues are refused while fewer than
    ``min_free`` bytes are free. Settlements, cancels, expiry, releases and upkeep still append,
    since they let the log shrink. When the disk takes nothing at all, the reserve is freed for
    them: a file whose only use is its removal. It is made again once there is room for it besides
    ``min_free``. Until then enqueues are refused, or they would take the freed space.

    No measure needs the writer lock, and a crash at any step leaves a whole log: the next check
    finds the reserve complete, too small, or gone.

    Attributes:
        free_bytes: at the last check; None before that.
        limit_bytes: bytes that enqueues must leave free.
        refused: the disk's error for the last append, if it refused that append.
        left: bytes that batches may still add before the disk is checked.
        look_at_ns: steady time of the next check in any case; 0 while the disk is short.
    """

    def __init__(self, disk: Disk, clock: Clock, path: str, config: config.LogConfig) -> None:
        self._disk = disk
        self._clock = clock
        self._path = path
        self._reserve_path = f"{path}/{RESERVE_FILE}"
        self._probe_path = f"{path}/{_PROBE_FILE}"
        self._min_free = config.min_free_bytes
        self._files_left = ""
        self._reserve = config.reserve_bytes
        self.free_bytes: int | None = None
        self.limit_bytes: int = 0
        self.refused: OSError | None = None
        self._is_short = False
        self.left: int = 0
        self.look_at_ns: int = 0
        self._sought_until_ns = 0
        self._sought_bytes = 0

    @property
    def pressed(self) -> bool:
        """Return whether the disk is short: enqueues are refused, the log should free space."""
        return self._is_short or self.refused is not None

    @property
    def is_sought(self) -> bool:
        """Return whether a request was refused lately for want of room, so the log makes room."""
        return self.pressed or self._clock.steady_ns() < self._sought_until_ns

    def lacks(self, removable: int, spare: int = 0) -> bool:
        """Check again whether the log must and can make room.

        Args:
            removable: bytes that the log could free for enqueues; 0 if they are too few.
            spare: bytes to free beyond the present need.
        """
        is_sought = self._clock.steady_ns() < self._sought_until_ns
        wanted = spare + (self._sought_bytes if is_sought else 0)
        self.look(wanted)
        if self.refused is not None or self._files_left:
            return True
        short = wanted - self.headroom
        return (self._is_short or is_sought) and 0 < short <= removable

    @property
    def headroom(self) -> int:
        """Bytes that enqueues may still take, by the last check; below 0 for none."""
        return (self.free_bytes or 0) - self.limit_bytes

    def admit(
        self, requests: list[Request], needs: BatchNeeds
    ) -> tuple[list[Request], BatchNeeds, list[Answer]]:
        """Return (admitted requests, their needs, answers to the refused ones).

        The disk is checked once ``left`` is used up, or ``look_at_ns`` has come.
        """
        grows = not needs.ops.isdisjoint(GROWING)
        self.look(needs.size, grows=grows)
        if not (grows and self._is_short):
            return requests, needs, []
        # Requests that are never refused get their room first, anywhere in the batch.
        left = self.headroom - BatchNeeds.of(_not_growing(requests)).size
        if self._files_left:
            left = -1
        kept: list[Request] = []
        refused: list[Request] = []
        for request in parted(requests):
            size = BatchNeeds.of([request]).size if request[0] in GROWING else 0
            if not size or size <= left:
                left -= size
                kept.append(request)
            else:
                refused.append(request)
        if refused:
            now_ns, size = self._clock.steady_ns(), BatchNeeds.of(refused).size
            before = self._sought_bytes if now_ns < self._sought_until_ns else 0
            self._sought_bytes = max(size, before)
            self._sought_until_ns = now_ns + _SOUGHT_NS
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return kept, BatchNeeds.of(kept), refusals(refused, self._error(self.refused or full))

    def look(self, size: int = 0, *, grows: bool = False) -> None:
        """Check the room on the disk, and make a missing reserve if there is room.

        While the disk refuses appends, only an enqueue makes the reserve.
        """
        disk = self._disk
        try:
            min_free, reserve = self._limits()
            free = disk.free_bytes(self._path)
            self._files_left = files_left(disk, self._path) if min_free else ""
        except OSError:
            return  # a failed check refuses nothing
        limit = min_free
        if self.free_bytes is None:
            self._remove_probe()  # left by a killed process
        if reserve and _size_of(disk, self._reserve_path) < reserve:
            limit += reserve
            if free >= limit and (grows or self.refused is None):
                if self._set_aside(self._reserve_path, reserve):
                    free, limit = free - reserve, min_free
                else:
                    free = 0  # a quota: the disk has room, but not for this user
        self.free_bytes, self.limit_bytes = free, limit
        headroom = free - limit
        self._is_short = headroom < size or bool(self._files_left)
        self.left = max(headroom // 4, 0)
        wait_ns = headroom * SECOND_NS // _FILL_BYTES_PER_SECOND
        self.look_at_ns = self._clock.steady_ns() + min(max(wait_ns, _LOOK_NS_MIN), _LOOK_NS_MAX)
        if self.pressed:
            self.look_at_ns = 0

    def holds(self, size: int) -> bool:
        """Return whether the disk has room for ``size`` bytes, including bytes to leave free."""
        try:
            return size <= self._disk.free_bytes(self._path)
        except OSError:
            return True  # a failed check refuses nothing

    def may_try(self, size: int) -> bool:
        """Return whether an append of ``size`` bytes may be tried again after a refusal.

        A refused batch costs the fold of the log, so the disk is probed first. If the disk has no
        room at all, the reserve is freed.
        """
        if self.refused is None:
            return True
        if self._set_aside(self._probe_path, size + _MARGIN_BYTES):
            self._remove_probe()
            return True
        # Without a file for a probe, the append itself is the probe.
        return self.give_up_reserve() or (bool(self._files_left) and self.headroom > size)

    def sort_out(
        self, requests: list[Request], error: OSError
    ) -> tuple[list[Request], list[Answer]]:
        """Return requests to retry after the disk refused a batch, and answers to its enqueues.

        Without answers a retry is useless, unless the reserve is freed.
        """
        if not is_full(error):
            return requests, []
        self.refused, self.look_at_ns = error, 0
        self.look()
        growing = [request for request in requests if request[0] in GROWING]
        if not growing:
            return requests, []
        return _not_growing(requests), refusals(growing, self._error(error))

    def appended(self) -> None:
        if self.refused is not None:
            self.refused = None
            self.look_at_ns = 0

    def give_up_reserve(self) -> bool:
        """Free the reserve for requests that must not be refused; False without a reserve."""
        return give_up_reserve(self._disk, self._path)

    def _limits(self) -> tuple[int, int]:
        """Return (min_free, reserve): the settings, or values by the disk's size."""
        min_free, reserve = self._min_free, self._reserve
        if min_free is None or reserve is None:
            part = self._disk.total_bytes(self._path) // TINY_DISK_PARTS
            self._min_free = min_free = min(MIN_FREE_BYTES, part) if min_free is None else min_free
            self._reserve = reserve = min(RESERVE_BYTES, part) if reserve is None else reserve
        return min_free, reserve

    def _remove_probe(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove(self._probe_path)

    def _set_aside(self, path: str, size: int) -> bool:
        """Make a file of ``size`` bytes; False, and no file, if the disk has no room for it.

        Another error, such as a directory at that path, is no sign of missing room.
        """
        disk = self._disk
        try:
            with opened(disk, path, create=True) as descriptor:
                disk.allocate(descriptor, size)
        except OSError as error:
            with contextlib.suppress(OSError):
                disk.remove(path)
            return not is_full(error)
        return True

    def _error(self, error: OSError) -> DiskFull:
        if self._files_left:
            error = OSError(error.errno, self._files_left)
        return DiskFull(self._path, error, self.free_bytes or 0, self.limit_bytes)


def _not_growing(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request[0] not in GROWING]


def files_left(disk: Disk, path: str) -> str:
    """Return the problem if too few files can still be made on the disk; "" otherwise."""
    files = disk.files(path)
    if files is None:
        return ""
    free, least = files[0], min(MIN_FREE_FILES, files[1] // TINY_DISK_PARTS)
    return "" if free >= least else f"{free} files may still be made, {least} must be left"


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def give_up_reserve(disk: Disk, path: str) -> bool:
    reserve = f"{path}/{RESERVE_FILE}"
    if not _size_of(disk, reserve):
        return False
    try:
        disk.remove(reserve)
    except OSError:
        return False
    # Some file systems release the bytes only once the removal is on disk.
    with contextlib.suppress(OSError):
        disk.sync_directory(path)
    return True


def with_reserve(disk: Disk, path: str, action: Callable[[], T]) -> T:
    """Call ``action``; on a full disk free the reserve and call it again.

    A log must open on a full disk, so that its jobs can be settled.

    Raises:
        AppendFailed: the disk is still full.
    """
    try:
        try:
            return action()
        except OSError as error:
            if not is_full(error) or not give_up_reserve(disk, path):
                raise
        return action()
    except OSError as error:
        if not is_full(error):
            raise
        raise AppendFailed(path, error) from error


def _size_of(disk: Disk, path: str) -> int:
    """Return the size of a file, 0 if it cannot be opened."""
    with contextlib.suppress(OSError), opened(disk, path, write=False) as descriptor:
        return disk.size(descriptor)
    return 0
