"""A disk that forgets unsynced data, and fails on demand.

A crash does what file systems may do: any sectors written since a file's last sync may be on disk,
each in any state that it had since then or torn in the middle; the file's size is one of its
earlier sizes; any directory entries made, renamed or removed since the directory's last sync may
have been kept. After a failed sync the pages are clean, as on Linux: they read back well, are never
written again, and the next sync succeeds.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from typing import Final

from taskq.core.values import NamedTuple

SECTOR_BYTES: Final = 512
#: Earlier states of an unsynced sector or size that a crash may bring back.
_VERSIONS_MAX: Final = 4
_EVEN: Final = 0.5
_SELDOM: Final = 0.1
#: How much of a file's unsynced data a crash keeps, on average; one of these for each crash.
_INODE_SHARES: Final = (0.0, 0.5, 0.9, 1.0)


class File:
    """Bytes with a past.

    Attributes:
        number: of this file and no other of its machine.
        cache: what reads give.
        platter: what a crash leaves, besides those dirty sectors that it keeps.
        dirty: sector -> the states that it had since the last sync, without the latest.
        sizes: of the file since the last sync, without the latest.
        holder: descriptor that holds the file's lock.
        errors: how many syncs of it failed.
        modified_ns: when it was last written.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.cache = bytearray()
        self.platter = bytearray()
        self.dirty: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.holder: int | None = None
        self.errors = 0
        self.modified_ns = 0
        self._kept_modified_ns = 0

    def sector(self, number: int) -> bytes:
        return bytes(self.cache[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])

    def write(self, data: bytes, offset: int) -> None:
        size = len(self.cache)
        if offset > size:
            self._soil(size, offset)
            self.cache += bytes(offset - size)
        self._soil(offset, offset + len(data))
        self.cache[offset : offset + len(data)] = data
        self._note_size(size)

    def truncate(self, size: int) -> None:
        before = len(self.cache)
        self._soil(min(size, before), max(size, before))
        self.cache[size:] = bytes(max(size - before, 0))
        self._note_size(before)

    def _soil(self, start: int, end: int) -> None:
        for number in range(start // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES):
            states = self.dirty.setdefault(number, [])
            states.append(self.sector(number))
            del states[:-_VERSIONS_MAX]

    def _note_size(self, before: int) -> None:
        self.sizes.append(before)
        del self.sizes[:-_VERSIONS_MAX]

    def settle(self) -> None:
        for number in self.dirty:
            self._put(number, self.sector(number))
        self._resize_platter(len(self.cache))
        self.dirty.clear()
        self.sizes.clear()
        self._kept_modified_ns = self.modified_ns

    def lose(self, chance: random.Random) -> None:
        share = chance.choice(_INODE_SHARES)
        sizes = [len(self.platter), *self.sizes, len(self.cache)]
        size = chance.choice(sizes) if chance.random() < _EVEN else len(self.cache)
        for number, states in self.dirty.items():
            if chance.random() < share:
                latest = self.sector(number)
                kept = chance.choice(states) if chance.random() < _SELDOM else latest
                if chance.random() < _SELDOM:
                    torn = chance.randrange(SECTOR_BYTES)
                    old = bytes(self.platter[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])
                    kept = kept[:torn] + old.ljust(SECTOR_BYTES, b"\0")[torn:]
                self._put(number, kept)
        self._resize_platter(size)
        self.cache = bytearray(self.platter)
        self.dirty.clear()
        self.sizes.clear()
        self.holder = None
        # With the first of its data on disk an inode has its times, too.
        self.modified_ns = self._kept_modified_ns or self.modified_ns

    def forget_dirty(self, chance: random.Random) -> None:
        for number in self.dirty:
            if chance.random() < _EVEN:
                self._put(number, self.sector(number))
        if chance.random() < _EVEN:
            self._resize_platter(len(self.cache))
        self.dirty.clear()
        self.sizes.clear()
        self.errors += 1

    def _put(self, number: int, data: bytes) -> None:
        start = number * SECTOR_BYTES
        if start > len(self.platter):
            self.platter += bytes(start - len(self.platter))
        self.platter[start : start + len(data)] = data

    def _resize_platter(self, size: int) -> None:
        del self.platter[size:]
        self.platter += bytes(size - len(self.platter))


#: Free bytes, and all bytes, of a disk that has no limit.
PLENTY_BYTES: Final = 2**40
#: How many of a directory's unsynced changes a crash keeps, on average; one of these for each.
_SHARES: Final = (0.0, 0.5, 1.0)


class PowerLost(BaseException):
    """The machine lost power. A ``BaseException``, since no code survives it."""


class ProcessKilled(BaseException):
    """The process is gone, as by kill -9."""


class _Change(NamedTuple):
    """One change of a directory that is not synced yet: ``file`` None removes ``name``."""

    name: str
    file: File | None
    #: renamed from
    source: str = ""


class _Open(NamedTuple):
    file: File
    path: str
    owner: object


class Machine:
    """Files, their fate, and the faults that a test asks for.

    Attributes:
        boot: changes when the power is lost.
        steps: how many calls changed something so far.
        free: bytes that may still be written; None for no limit.
        total: bytes of the disk, used ones included.
        files: (free, all) inodes of the disk; none is made at 0.
        shorten: given the size of a write, how much of it is done.
        unreadable: (path, sector) that give an EIO when read.
        wall_ns: the clock of modification times.
        on_step: called before every change with (operation, path); may raise an ``OSError``.
        errors_reach_all: after a failed sync, the next one of every other descriptor of the file
            reports it too (Linux since 4.13); else only the first does.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.boot = 1
        self.steps = 0
        self.free: int | None = None
        self.total = PLENTY_BYTES
        self.files: tuple[int, int] | None = None
        self.shorten: Callable[[int], int] | None = None
        self.on_step: Callable[[str, str], None] | None = None
        self.errors_reach_all = True
        self.wall_ns: Callable[[], int] = lambda: 0
        self.unreadable: set[tuple[str, int]] = set()
        self._failing_syncs = 0
        self._stop_at: tuple[int, bool] | None = None
        self._numbers = itertools.count(1)
        root = File(next(self._numbers))
        self._names: dict[str, File] = {"/": root}
        self._kept_names: dict[str, File] = {"/": root}
        #: the objects themselves: another file may get the id of a removed one
        self._directories = {root}
        self._changes: dict[str, list[_Change]] = {}
        self._open: dict[int, _Open] = {}
        self._seen: dict[int, int] = {}
        self._descriptors = 2

    # -- faults -----------------------------------------------------------------------------------

    def fail_next_syncs(self, count: int = 1) -> None:
        """Let the next ``count`` syncs of file data fail with EIO."""
        self._failing_syncs = count

    def stop_at(self, step: int | None, *, power: bool = True) -> None:
        """Lose the power, or kill the calling process, in the middle of that step."""
        self._stop_at = None if step is None else (step, power)

    def lose_power(self) -> None:
        """Decide what was kept, and begin another boot. Every disk of this machine is dead."""
        self.boot += 1
        self._stop_at = None
        self._open.clear()
        self._seen.clear()
        for changes in self._changes.values():
            share = self.random.choice(_SHARES)
            for change in changes:
                if self.random.random() < share:
                    self._keep(change)
        self._changes.clear()
        self._names = {
            path: file for path, file in self._kept_names.items() if self._is_reachable(path)
        }
        self._kept_names = dict(self._names)
        for file in {id(file): file for file in self._names.values()}.values():
            file.lose(self.random)

    def corrupt(self, path: str, offset: int, data: bytes) -> None:
        file = self._names[path]
        for held in (file.cache, file.platter):
            held[offset : offset + len(data)] = data

    def put(self, path: str, data: bytes) -> None:
        file = self._names.get(path)
        if file is None:
            file = self._names[path] = self._kept_names[path] = File(next(self._numbers))
        file.cache = bytearray(data)
        file.settle()
        file.platter = bytearray(data)
        file.modified_ns = self.wall_ns()

    def hide(self, path: str) -> Callable[[], None]:
        """Let a file be missing until what is returned is called."""
        file = self._names.pop(path)
        return lambda: self._names.update({path: file})

    def content(self, path: str) -> bytes:
        return bytes(self._names[path].cache)

    def paths(self) -> list[str]:
        return sorted(p for p, file in self._names.items() if file not in self._directories)

    # -- for the disks ----------------------------------------------------------------------------

    def step(self, operation: str, path: str, partly: Callable[[], None] | None = None) -> bool:
        """Count a change; returns True when the calling process is to be killed in it."""
        self.steps += 1
        stop = self._stop_at
        if stop is not None and self.steps >= stop[0]:
            self._stop_at = None
            if partly is not None:
                partly()
            if stop[1]:
                self.lose_power()
                raise PowerLost
            return True
        if self.on_step is not None:
            self.on_step(operation, path)
        return False

    def find(self, path: str) -> File | None:
        return self._names.get(path)

    def link(self, path: str, file: File | None = None, *, directory: bool = False) -> File:
        directory_path = parent(path)
        if directory_path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self.files is not None and not self.files[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if file is None:
            file = File(next(self._numbers))
            file.modified_ns = self.wall_ns()
        self._names[path] = file
        if directory:
            self._directories.add(file)
        self._changes.setdefault(directory_path, []).append(_Change(path, file))
        return file

    def rename(self, source: str, target: str) -> None:
        file = self._names.pop(source)
        self._release(self._names.get(target))
        self._names[target] = file
        self._changes.setdefault(parent(target), []).append(_Change(target, file, source))

    def unlink(self, path: str) -> None:
        file = self._names.pop(path, None)
        if file is not None:
            self._release(file)
            self._changes.setdefault(parent(path), []).append(_Change(path, None))

    def listing(self, path: str) -> list[str]:
        return sorted(
            name.rpartition("/")[2] for name in self._names if name != "/" and parent(name) == path
        )

    def sync_names(self, path: str) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for change in self._changes.pop(path, ()):
            self._keep(change)

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        file, path, _ = self.describe(descriptor)
        data = bytes(file.cache[offset : offset + count])
        sectors = range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1)
        if self.unreadable and any((path, number) in self.unreadable for number in sectors):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data

    def describe(self, descriptor: int) -> _Open:
        result = self._open.get(descriptor)
        if result is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return result

    def opened(self, file: File, path: str, owner: object) -> int:
        self._descriptors += 1
        self._open[self._descriptors] = _Open(file, path, owner)
        self._seen[self._descriptors] = file.errors
        return self._descriptors

    def closed(self, descriptor: int) -> None:
        file = self.describe(descriptor).file
        if file.holder == descriptor:
            file.holder = None
        del self._open[descriptor], self._seen[descriptor]

    def count_open(self, owner: object) -> int:
        return sum(item.owner is owner for item in self._open.values())

    def close_all(self, owner: object) -> None:
        for descriptor in [number for number, item in self._open.items() if item.owner is owner]:
            self.closed(descriptor)

    def take_room(self, file: File, size: int, offset: int) -> int:
        """Return how many of ``size`` bytes may be written; they are counted as used."""
        if self.shorten is not None:
            size = min(self.shorten(size), size)
        if self.free is None:
            return size
        room = len(file.cache) - offset + self.free
        if room <= 0 < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = min(size, room)
        self.free -= max(offset + size - len(file.cache), 0)
        return size

    def set_aside(self, size: int) -> None:
        """All of these bytes are used from now on, or there is no room for them."""
        if self.free is None:
            return
        if size > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free -= size

    def give_room(self, count: int) -> None:
        if self.free is not None:
            self.free += count

    def sync_data(self, descriptor: int) -> None:
        file = self.describe(descriptor).file
        if self._failing_syncs:
            self._failing_syncs -= 1
            file.forget_dirty(self.random)
            self._seen[descriptor] = file.errors
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file.settle()
        if self._seen[descriptor] < file.errors and self.errors_reach_all:
            self._seen[descriptor] = file.errors
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _keep(self, change: _Change) -> None:
        if change.file is None:
            self._kept_names.pop(change.name, None)
            return
        if change.source and self._kept_names.get(change.source) is change.file:
            del self._kept_names[change.source]
        self._kept_names[change.name] = change.file

    def _is_reachable(self, path: str) -> bool:
        while path != "/":
            path = parent(path)
            if path not in self._kept_names:
                return False
        return True

    def _release(self, file: File | None) -> None:
        if file is not None and file not in self._names.values():
            self.give_room(len(file.cache))


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


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
