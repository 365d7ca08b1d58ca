"""Records of a copied, moved or restored directory have names of their own: (log id, lsn)."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from taskq.core.errors import LogGone
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.format.frames import Frame
from taskq.log.journal.journal import Journal
from taskq.log.journal.lock import TailHint, WriterLock
from taskq.log.machine.disk import LocalDisk, SystemClock
from tests.log.world import World

_CONFIG: Final = LogConfig(segment_bytes=SEGMENT_BYTES_MIN)
_BODY: Final = codec.encode_owner(1, bytes(1_000), 1)


class Writer:
    """A process with an open directory, and the names of its records."""

    def __init__(self, path: Path) -> None:
        disk = LocalDisk()
        lock = WriterLock(disk, str(path), os.getpid())
        self.journal = Journal(disk, SystemClock(), str(path), _CONFIG, lock)
        self.journal.open()
        self.journal.writer.release()
        self.names: list[tuple[UUID, int]] = []

    def write(self, frames: int = 1) -> None:
        journal = self.journal
        for _ in range(frames):
            journal.lock()
            if journal.offset >= journal.segment_bytes:
                journal.rotate()
            self.names.append((journal.identity.log_id, journal.next_lsn))
            journal.append(_BODY, 1, journal.log_time()[0])
            journal.writer.release()

    def close(self) -> None:
        self.journal.close()


def _written(path: Path, frames: int = 5) -> list[tuple[UUID, int]]:
    path.mkdir(exist_ok=True)
    writer = Writer(path)
    writer.write(frames)
    writer.close()
    return writer.names


def _copied(path: Path) -> Path:
    return shutil.copytree(path, path.with_name("copy"))


def _hard_linked(path: Path) -> Path:
    return shutil.copytree(path, path.with_name("linked"), copy_function=os.link)


def _restored_over(path: Path) -> Path:
    """A backup is written over the directory, file by file and in place, as ``cp -a`` does."""
    backup = _copied(path)
    _written(path)
    return shutil.copytree(backup, path, dirs_exist_ok=True)


def _restored_over_longer(path: Path) -> Path:
    backup = _copied(path)
    _written(path, 80)
    return shutil.copytree(backup, path, dirs_exist_ok=True, copy_function=shutil.copyfile)


@pytest.mark.parametrize("copy", [_copied, _restored_over, _restored_over_longer, _hard_linked])
def test_what_a_copy_and_its_original_write_never_has_the_same_name(
    copy: Callable[[Path], Path], tmp_path: Path
) -> None:
    original = tmp_path / "data"
    _written(original, 10)
    other = copy(original)
    writers = [Writer(other), Writer(original)]
    for _ in range(80):
        for writer in writers:
            # Hard links share the lock's file: the second one misses the other's segment.
            with contextlib.suppress(LogGone):
                writer.write()
    names = [name for writer in writers for name in writer.names]
    for writer in writers:
        writer.close()
    assert len(set(names)) == len(names)


def _hints() -> dict[str, TailHint]:
    world = World()
    process = world.process()
    for _ in range(3):
        process.enqueue()
    hint = process.journal.writer.peek()
    assert hint is not None
    odd: dict[str, dict[str, int]] = {
        "an offset within the header": {"offset": 8, "clean_offset": 8, "last_frame": 0},
        "an offset of 0": {"offset": 0, "clean_offset": 0, "last_frame": 0},
        "an offset between two frames": {"offset": hint.offset - 8},
        "an offset that no frame has": {"offset": hint.offset - 4},
        "an offset beyond the file": {"offset": hint.offset + 8},
        "an offset beyond any file": {"offset": 2**63},
        "a last frame behind the end": {"last_frame": hint.offset},
        "a last frame at no multiple of 8": {"last_frame": 65},
        "an lsn beyond what the segment can hold": {"next_lsn": 2**40},
        "the last lsn of all": {"next_lsn": 2**63 - 1},
        "an lsn beyond all": {"next_lsn": 2**64 - 1},
        "an lsn before the segment": {"next_lsn": 0, "durable_lsn": 0},
        "more on disk than there is": {"durable_lsn": hint.next_lsn + 1},
        "clean beyond the end": {"clean_offset": hint.offset + 8},
        "clean within the header": {"clean_offset": 0},
        "no segment": {"segment": 0},
        "a segment that is not there": {"segment": 2},
        "a time before 1970": {"time_ns": -1},
        "a time beyond all": {"time_ns": 2**63 - 1},
        "a clock far ahead": {"clock_base_ns": 2**63 - 1},
        "a clock far behind": {"clock_base_ns": -(2**63)},
    }
    return {name: hint._replace(**values) for name, values in odd.items()}


_HINTS: Final = _hints()


@pytest.mark.parametrize("name", _HINTS)
def test_a_hint_of_odd_numbers_costs_neither_a_job_nor_a_process(name: str) -> None:
    world = World()
    first = world.process()
    jobs = [first.enqueue() for _ in range(3)]
    here = first.journal.home
    hint = _HINTS[name]._replace(boot=here[0], device=here[1], inode=here[2])
    first.journal.writer.write_hint(hint)
    second = world.process()
    jobs += [first.enqueue(), second.enqueue()]
    assert len(set(jobs)) == len(jobs)
    assert max(jobs) < 2**40 + 2**22
    frames = [item for _, item in world.reader().frames(world.reader().start())]
    assert all(isinstance(item, Frame) for item in frames)
    assert [delivery.job for delivery in world.process().claim(9)] == sorted(jobs)
