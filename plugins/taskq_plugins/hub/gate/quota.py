"""What a device may have on a hub's disk: whatever is written for a request of it counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from taskq.engine import PatientDisk

if TYPE_CHECKING:
    from pathlib import Path

#: A file takes whole blocks, and a folder or an empty file one.
_BLOCK: Final = 4_096
#: What stays free for who runs the hub.
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024


def used_bytes(folder: Path) -> int:
    sizes: dict[int, int] = {}
    for path, _, names in os.walk(folder):
        for name in (".", *names):
            status = os.lstat(f"{path}/{name}")
            sizes[status.st_ino] = _blocks(status.st_size) if name != "." else _BLOCK
    return sum(sizes.values())


class Account:
    """What one device has, and may have, on the hub's disk.

    Attributes:
        used: bytes of it, in blocks.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._disk, self._path, self._most = PatientDisk(), str(folder.parent), most
        self.used = used_bytes(folder)

    def require(self, size: int) -> None:
        """Have room for so many bytes more.

        Raises:
            OSError: the device has as much as it may, or the disk is nearly full.
        """
        if self.used + size > self._most:
            raise OSError(errno.EDQUOT, "the device has as much there as it may")
        if self._disk.free_bytes(self._path) < _FREE_BYTES_MIN + size:
            raise OSError(errno.ENOSPC, "the disk is nearly full")

    def charge(self, size: int) -> None:
        if size > 0:
            self.require(size)
            self.used += size


class ChargedDisk(PatientDisk):
    """The machine's disk, as requests of one device write to it, whose account is asked for."""

    def __init__(self, account: Callable[[], Account]) -> None:
        super().__init__()
        self._account = account

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        if create and self.status(path) is None:
            self._account().charge(_BLOCK)
        return super().open(path, create=create, write=write)

    def make_directory(self, path: str) -> None:
        above = path
        while self.status(above) is None:
            self._account().charge(_BLOCK)
            above = above.rpartition("/")[0]
        super().make_directory(path)

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        grown = _blocks(offset + len(data)) - _blocks(self.size(descriptor))
        self._account().charge(grown)
        return super().write(descriptor, data, offset)


def _blocks(size: int) -> int:
    return max(-(-size // _BLOCK), 1) * _BLOCK
