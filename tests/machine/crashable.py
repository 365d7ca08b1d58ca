"""A disk that forgets unsynced data, and fails on demand.

A crash does what file systems may do: any sectors written since a file's last sync may be on disk,
each in any state that it had since then or torn in the middle; the file's size is one of its
earlier sizes; any directory entries made, renamed or removed since the directory's last sync may
have been kept. After a failed sync the pages are clean, as on Linux: they read back well, are never
written again, and the next sync succeeds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from tests.machine.machine import PLENTY_BYTES, Machine, PowerLost, ProcessKilled, parent

__all__ = ["CrashableDisk", "Machine", "PowerLost", "ProcessKilled"]


class CrashableDisk:
    """The disk of a ``Machine`` as one process sees it. Implements ``Disk``."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._boot = machine.boot
        self._is_killed = False
        #: how many calls are made before a signal handler raises; 0: none does
        self.raise_in = 0

    @property
    def is_dead(self) -> bool:
        return self._is_killed or self._boot != self.machine.boot

    @property
    def open_files(self) -> int:
        return self.machine.count_open(self)

    def kill(self) -> None:
        """End the process: its descriptors close, its locks are free, what it wrote stays."""
        if not self._is_killed and self._boot == self.machine.boot:
            self.machine.close_all(self)
        self._is_killed = True

    def _check(self) -> Machine:
        if self._boot != self.machine.boot:
            raise PowerLost
        if self._is_killed:
            raise ProcessKilled
        if self.raise_in:
            self.raise_in -= 1
            if not self.raise_in:
                raise KeyboardInterrupt
        return self.machine

    def _step(self, operation: str, path: str, partly: Callable[[], None] | None = None) -> Machine:
        machine = self._check()
        if machine.step(operation, path, partly):
            self.kill()
            raise ProcessKilled
        return machine

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Return a descriptor, of numbers that are never used again."""
        machine = self._check()
        file = machine.find(path)
        if file is None:
            if not create or not write:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = self._step("create", path).link(path)
        return machine.opened(file, path, self)

    def close(self, descriptor: int) -> None:
        if not self.is_dead:
            self._check().closed(descriptor)

    def size(self, descriptor: int) -> int:
        return len(self._check().describe(descriptor).file.cache)

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        return self._check().read(descriptor, count, offset)

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        """Bytes written; fewer than given when the disk is nearly full, or told to be short."""
        machine = self._check()
        file, path, _ = machine.describe(descriptor)

        def partly() -> None:
            file.write(data[: machine.random.randrange(len(data) + 1)], offset)

        self._step("write", path, partly)
        size = machine.take_room(file, len(data), offset)
        file.write(data[:size], offset)
        file.modified_ns = machine.wall_ns()
        return size

    def truncate(self, descriptor: int, size: int) -> None:
        file, path, _ = self._check().describe(descriptor)
        machine = self._step("truncate", path)
        machine.give_room(len(file.cache) - size)
        file.truncate(size)

    def allocate(self, descriptor: int, size: int) -> None:
        file, path, _ = self._check().describe(descriptor)
        machine = self._step("allocate", path)
        before = len(file.cache)
        if size > before:
            machine.set_aside(size - before)
            file.truncate(size)

    def sync(self, descriptor: int) -> None:
        path = self._check().describe(descriptor).path
        self._step("sync", path).sync_data(descriptor)

    def sync_directory(self, path: str) -> None:
        self._step("sync_directory", path).sync_names(path)

    def rename(self, source: str, target: str, *, waits: bool = True) -> None:
        del waits  # nothing else holds files
        if self._check().find(source) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._step("rename", target).rename(source, target)

    def link(self, source: str, target: str) -> None:
        file = self._check().find(source)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._step("link", target).link(target, file)

    def remove(self, path: str) -> None:
        self._step("remove", path).unlink(path)

    def make_directory(self, path: str) -> None:
        if self._check().find(path) is None:
            self.make_directory(parent(path))
            self._step("make_directory", path).link(path, directory=True)

    def names(self, path: str) -> list[str]:
        return self._check().listing(path)

    def status(self, path: str) -> tuple[int, int, int] | None:
        file = self._check().find(path)
        return None if file is None else (1, file.number, len(file.cache))

    def modified_ns(self, path: str) -> int | None:
        file = self._check().find(path)
        return None if file is None else file.modified_ns

    def free_bytes(self, path: str) -> int:  # noqa: ARG002 - one disk holds all
        free = self._check().free
        return PLENTY_BYTES if free is None else max(free, 0)

    def total_bytes(self, path: str) -> int:  # noqa: ARG002 - one disk holds all
        return self._check().total

    def files(self, path: str) -> tuple[int, int] | None:  # noqa: ARG002 - one disk holds all
        self._check()
        return self.machine.files

    def try_lock(self, descriptor: int) -> bool:
        file = self._check().describe(descriptor).file
        if file.holder not in (None, descriptor):
            return False
        file.holder = descriptor
        return True

    def lock(self, descriptor: int) -> None:
        """Take the lock; one thread simulates all processes, so nobody could ever give it back."""
        if not self.try_lock(descriptor):
            path = self.machine.describe(descriptor).path
            raise AssertionError(f"{path} is locked by another simulated process: a deadlock")

    def unlock(self, descriptor: int) -> None:
        file = self._check().describe(descriptor).file
        if file.holder == descriptor:
            file.holder = None

    def boot_id(self) -> int:
        return self._check().boot

    def has_living_owners(self, path: str) -> bool:  # noqa: ARG002 - as Disk has it
        return False

    def identity(self, descriptor: int) -> tuple[int, int]:
        return 1, self._check().describe(descriptor).file.number

    def born_ns(self, descriptor: int) -> int:
        return self._check().describe(descriptor).file.number

    def was_restored(self, descriptor: int) -> bool:
        self._check().describe(descriptor)
        return False


# -- peers -----------------------------------------------------------------------------------------


class Neighbourhood:
    """All processes with one directory open; hands out owner numbers."""

    def __init__(self) -> None:
        self.living: set[int] = set()
        self._joined = 0

    def join(self) -> SimulatedPeers:
        self._joined += 1
        self.living.add(self._joined)
        return SimulatedPeers(self, self._joined)


class SimulatedPeers:
    """One process's view of the others. Implements ``Peers``.

    Attributes:
        woken: interest bits that this process woke the others for, oldest first.
        forgotten: owners whose files this process removed.
    """

    def __init__(self, neighbourhood: Neighbourhood, owner: int) -> None:
        self._neighbourhood = neighbourhood
        self._owner = owner
        self.woken: list[int] = []
        self.forgotten: list[int] = []

    @property
    def owner(self) -> int:
        return self._owner

    def alive(self, owner: int) -> bool:
        return owner in self._neighbourhood.living

    def is_known(self) -> bool:
        return self.alive(self._owner)

    def forget(self, owner: int) -> None:
        assert owner not in self._neighbourhood.living, f"owner {owner} lives"
        self.forgotten.append(owner)

    def wake(self, interest: int) -> None:
        """Nobody sleeps here; the call is remembered."""
        self.woken.append(interest)

    def sleep(self, interest: int, timeout_seconds: float | None) -> bool:
        del interest, timeout_seconds
        return False

    def announce(self, interest: int) -> None: ...
    def poke(self) -> None: ...
    def close(self) -> None:
        self._neighbourhood.living.discard(self._owner)
