"""One fsync for the waiters of all processes.

Every process that appended a frame waits for the disk, and an fsync by any of them covers what all
of them wrote before it. So they take turns: whoever has the turn syncs everything that the log
holds and publishes how far that is; the others find their own frames covered. With 16 processes
that only enqueue this saves most of the fsyncs. The turn is a courtesy, not a lock that anything
depends on: a process that is stopped while it has it costs the others a moment, then they sync for
themselves.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from typing import Final

from taskq.log.format.codec import crc32
from taskq.log.machine.ports import Disk, write_all

#: boot, generation, durable lsn
_MARK: Final = struct.Struct("<QIQ")
_SIZE: Final = _MARK.size + 4
#: How long to wait for another's fsync before doing one's own, and how often to look.
_LOOKS: Final = 12
_LOOK_SECONDS: Final = 0.000_25


class SyncTurn:
    """The file ``sync.lock``: locked by whoever syncs, it holds how far the last one came."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._file = disk.open(f"{path}/sync.lock", create=True)
        #: whether enough others have the log open for turns to be worth their cost
        self.crowded = True

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._file,)

    def share(
        self, boot: int, generation: int, wanted_lsn: int, sync: Callable[[], tuple[int, int]]
    ) -> tuple[int, int]:
        """Sync when it is this process's turn; (lsn, offset) up to which the log is on disk then.

        The offset is 0 where another process synced all below ``wanted_lsn``.
        """
        if not self.take(boot, generation, wanted_lsn):
            return wanted_lsn, 0
        try:
            through, clean = sync()
        except BaseException:
            self.give_up()
            raise
        self.leave(boot, generation, through)
        return through, clean

    def take(self, boot: int, generation: int, wanted_lsn: int) -> bool:
        """Return whether this process is to sync; False once all below ``wanted_lsn`` is synced."""
        with contextlib.suppress(OSError):  # then it does not share
            for _ in range(_LOOKS):
                taken = self._disk.try_lock(self._file)
                if self._published(boot, generation) >= wanted_lsn:
                    if taken:
                        self.give_up()
                    return False
                if taken:
                    return True
                time.sleep(_LOOK_SECONDS)
        return True

    def leave(self, boot: int, generation: int, durable_lsn: int) -> None:
        # What is synced is, whoever knows of it: others that do not just sync for themselves.
        with contextlib.suppress(OSError):
            if durable_lsn > self._published(boot, generation):
                packed = _MARK.pack(boot, generation, durable_lsn)
                write_all(self._disk, self._file, packed + crc32(packed).to_bytes(4, "little"), 0)
        self.give_up()

    def give_up(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.unlock(self._file)

    def close(self) -> None:
        self._disk.close(self._file)

    def _published(self, boot: int, generation: int) -> int:
        data = self._disk.read(self._file, _SIZE, 0)
        if len(data) < _SIZE or crc32(data[: _MARK.size]) != int.from_bytes(
            data[_MARK.size :], "little"
        ):
            return 0
        marked_boot, marked_generation, lsn = _MARK.unpack_from(data)
        return lsn if (marked_boot, marked_generation) == (boot, generation) else 0
