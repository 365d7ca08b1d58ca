"""A backup that is cut short at any operation is the one before it, or the new one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskq import TaskQ
from taskq.core.errors import LogError
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.reader import LogReader
from taskq.log.read.readers import NamedReader, ReaderPosition, reader_positions
from taskq.log.upkeep import backup
from taskq.log.upkeep.backup import back_up, restore
from tests.effort import every, grows

#: Operations that need room on the disk.
GROWING = frozenset({"open", "write", "truncate", "make_directory"})


class Cut:
    """The moment from which the disk refuses operations: all, or writes alone."""

    def __init__(self, left: int, *, full: bool) -> None:
        self.left, self.full = left, full

    def step(self, operation: str) -> bool:
        if self.full and operation not in GROWING:
            return False
        self.left -= 1
        return self.left < 0

    def check(self, operation: str) -> None:
        if self.step(operation):
            self.refuse()

    def refuse(self) -> None:
        number = errno.ENOSPC if self.full else errno.EIO
        raise OSError(number, os.strerror(number))


def cut_disk(cut: Cut) -> type[LocalDisk]:
    class CutDisk(LocalDisk):
        def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
            if create:
                cut.check("open")
            return super().open(path, create=create, write=write)

        def write(self, descriptor: int, data: bytes, offset: int) -> int:
            if cut.step("write"):
                super().write(descriptor, data[: len(data) // 2], offset)
                cut.refuse()
            return super().write(descriptor, data, offset)

    def cutting(name: str) -> Any:
        whole = getattr(LocalDisk, name)

        def act(self: LocalDisk, *values: Any) -> Any:
            cut.check(name)
            return whole(self, *values)

        return act

    for name in ("truncate", "sync", "sync_directory", "rename", "remove", "make_directory"):
        setattr(CutDisk, name, cutting(name))
    return CutDisk


class Stands(NamedTuple):
    """The contents of a log."""

    jobs: dict[str, int]
    sources: dict[str, object]
    readers: dict[str, tuple[int, int]]


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def stands(path: Path) -> Stands:
    with LogReader.open(str(path)) as reader:
        report = reader.verify()
        assert (report.damage, report.torn_bytes) == ((), 0)
        jobs = {view.job_id: int(view.state) for view in reader.jobs(None, None, None, 10**6)}
        sources = {source.name: source.position for source in reader.sources()}
    return Stands(jobs, sources, reader_positions(LocalDisk(), str(path)))


def read_up_to(path: Path, lsn: int) -> None:
    with LogReader.open(str(path)) as reader:
        identity = reader.journal.identity
    named = NamedReader.take(LocalDisk(), str(path), identity, "billing")
    named.load()
    named.save(ReaderPosition(1, lsn))
    named.release()


class Case(NamedTuple):
    data: Path
    first: Path
    old: Stands
    new: Stands


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A log, a backup of it from before jobs were ingested, and what stands in it and now."""
    tmp_path = tmp_path_factory.mktemp("case")
    data, first = tmp_path / "data", tmp_path / "first"
    with TaskQ(data, segment_bytes=65_536, upkeep=False) as app:
        handles = [app.enqueue_by_name_sync("keep", "x" * 30_000) for _ in range(4)]
        app.enqueue_by_name_sync("keep", "x" * (2 << 20))
        read_up_to(data, 2)
        app.ingest_sync("bulk", [], 0)
        back_up(str(data), str(first))
        app.ingest_sync("bulk", [app.call_by_name("keep", "x")] * 500, 500)
        for handle in handles:
            handle.cancel_sync()
        for _ in range(4):
            app.enqueue_by_name_sync("keep", "y" * 30_000)
        app.enqueue_by_name_sync("keep", "y" * (3 << 20))
        read_up_to(data, int(app.enqueue_by_name_sync("keep", "z").id.partition("-")[2]))
        assert app.compact_sync(keep=0).freed > 100_000
    restore(str(first), str(tmp_path / "old"))
    back_up(str(data), str(tmp_path / "second"))
    restore(str(tmp_path / "second"), str(tmp_path / "new"))
    case = Case(data, first, stands(tmp_path / "old"), stands(tmp_path / "new"))
    assert (case.old.sources, case.new.sources) == ({"bulk": 0}, {"bulk": 500})
    assert len(case.old.jobs) == 5
    assert len(case.new.jobs) == 507
    assert case.old.readers != case.new.readers
    return case


def ends_early(case: Case, target: Path, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patched:
        patched.setattr(backup, "LocalDisk", cut_disk(cut))
        try:
            back_up(str(case.data), str(target))
        except LogError:
            return True
    return False


@grows
@pytest.mark.parametrize("full", [False, True], ids=["cut", "full"])
def test_a_second_backup_that_is_cut_anywhere_leaves_the_first_or_is_whole(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    """With jobs ingested in between, a reader that went on, and segments that went."""
    step, is_cut, seen = 0, True, []
    while is_cut:
        target, again = tmp_path / f"backup-{step}", tmp_path / f"again-{step}"
        shutil.copytree(case.first, target)
        is_cut = ends_early(case, target, Cut(step, full=full), monkeypatch)
        restore(str(target), str(again))
        seen.append(stands(again))
        assert seen[-1] in (case.old, case.new), f"cut at operation {step}"
        back_up(str(case.data), str(target))
        assert names(target) == names(case.first)
        shutil.rmtree(again)
        restore(str(target), str(again))
        assert stands(again) == case.new, f"cut at operation {step}, and then whole"
        shutil.rmtree(again)
        shutil.rmtree(target)
        step += every(23)
    assert case.old in seen
    assert seen[-1] == case.new
    assert len(seen) >= 3


@grows
def test_a_first_backup_that_is_cut_anywhere_is_none_or_whole(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, is_cut = 0, True
    while is_cut:
        target, again = tmp_path / f"backup-{step}", tmp_path / f"again-{step}"
        is_cut = ends_early(case, target, Cut(step, full=False), monkeypatch)
        try:
            restore(str(target), str(again))
        except LogError:
            assert is_cut
        else:
            assert stands(again) == case.new
            shutil.rmtree(again)
        back_up(str(case.data), str(target))
        restore(str(target), str(again))
        assert stands(again) == case.new
        step += every(73)
