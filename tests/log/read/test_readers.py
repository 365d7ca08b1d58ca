"""Places of named readers: their files, and the permission to read under a name."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.errors import LogDamaged, ReaderBusy, UsageError
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.readers import (
    NAME_CHARACTERS_MAX,
    NamedReader,
    ReaderPosition,
    check_reader_name,
    is_read,
    read_position,
    reader_positions,
)
from taskq.log.segments.identity import Identity, LockMark, read_or_create_identity
from tests.log.world import PATH
from tests.machine.crashable import CrashableDisk, Machine, PowerLost, ProcessKilled

LOG_ID = uuid.UUID(int=7)
IDENTITY = Identity(LOG_ID, 1)
HERE = ReaderPosition(segment=1, lsn=42, offset=64, epoch=9, time_ns=5)
THERE = ReaderPosition(segment=40, lsn=2**63 - 1, offset=2**31, epoch=2**64 - 1, time_ns=2**62)


def take(path: Path, name: str = "billing", log_id: uuid.UUID = LOG_ID) -> NamedReader:
    return NamedReader.take(LocalDisk(), str(path), Identity(log_id, 1), name)


def found(path: Path, name: str = "billing", log_id: uuid.UUID = LOG_ID) -> ReaderPosition | None:
    return read_position(LocalDisk(), str(path), Identity(log_id, 1), name)


def test_a_position_reads_back_as_it_was_saved(tmp_path: Path) -> None:
    reader = take(tmp_path)
    assert reader.load() is None
    for position in (HERE, THERE, HERE._replace(lsn=43)):
        reader.save(position)
        assert found(tmp_path) == position
    reader.release()
    again = take(tmp_path)
    assert again.load() == HERE._replace(lsn=43)
    again.save(THERE)
    again.release()
    assert found(tmp_path) == THERE


@given(
    steps=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    power=st.booleans(),
)
def test_a_crash_at_any_step_leaves_a_position_that_was_saved(
    steps: int, seed: int, power: bool
) -> None:
    """The last one or the one before it, and never a file that does not read back."""
    machine = Machine(seed)
    disk = CrashableDisk(machine)
    disk.make_directory(PATH)
    disk.sync_directory("/srv")
    disk.sync_directory("/")
    saved: list[ReaderPosition] = []
    machine.stop_at(machine.steps + steps, power=power)
    try:
        reader = NamedReader.take(disk, PATH, IDENTITY, "billing")
        for number in range(20):
            saved.append(HERE._replace(lsn=HERE.lsn + number))
            reader.save(saved[-1])
    except (ProcessKilled, PowerLost):
        pass
    machine.stop_at(None)
    position = read_position(CrashableDisk(machine), PATH, IDENTITY, "billing")
    if position is None:
        assert len(saved) <= 1
    else:
        assert position in saved[-2:]


def test_what_does_not_read_back_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    reader = take(tmp_path)
    reader.save(HERE)
    reader.release()
    file = tmp_path / "readers" / "billing.place"
    whole = file.read_bytes()
    other, bad = whole.replace(b"42", b"43"), whole[:20] + b"\xff" + whole[21:]
    for junk in (b"", b"\0" * len(whole), whole[:-1], bad, other, b"[" * 4_096, b"{}"):
        file.write_bytes(junk)
        with pytest.raises(LogDamaged, match=r"billing\.place.*does not read back.*seek\(\)"):
            found(tmp_path)
    # A move writes a whole file again.
    again = take(tmp_path)
    with pytest.raises(LogDamaged):
        again.load()
    again.save(THERE)
    again.release()
    assert found(tmp_path) == THERE


def test_a_position_of_another_log_or_another_reader_is_none(tmp_path: Path) -> None:
    """Files that were copied, or that a file system takes for the same ("Billing", "billing")."""
    reader = take(tmp_path)
    reader.save(HERE)
    reader.release()
    folder = tmp_path / "readers"
    (folder / "Billing.place").write_bytes((folder / "billing.place").read_bytes())
    with pytest.raises(LogDamaged):
        found(tmp_path, "Billing")
    with pytest.raises(LogDamaged):
        found(tmp_path, log_id=uuid.UUID(int=8))


def test_a_name_is_read_by_one_at_a_time(tmp_path: Path) -> None:
    first = take(tmp_path)
    assert is_read(LocalDisk(), str(tmp_path), "billing")
    with pytest.raises(ReaderBusy, match=f"process {os.getpid()} reads under the name") as caught:
        take(tmp_path)
    assert (caught.value.reader, caught.value.holder_pid) == ("billing", os.getpid())
    take(tmp_path, "other").release()
    first.release()
    first.release()
    assert not is_read(LocalDisk(), str(tmp_path), "billing")
    take(tmp_path).release()


def test_a_reader_that_let_go_of_its_name_writes_nothing_any_more(tmp_path: Path) -> None:
    reader = take(tmp_path)
    reader.save(HERE)
    reader.release()
    reader.save(THERE)
    reader.forget()
    assert found(tmp_path) == HERE


def test_whoever_asks_whether_a_reader_lives_does_not_shut_one_out(tmp_path: Path) -> None:
    """The question takes the lock for a moment: a reader that comes just then tries again."""
    take(tmp_path).release()
    asked = os.open(tmp_path / "readers" / "billing.lck", os.O_RDWR)
    disk = LocalDisk()
    assert disk.try_lock(asked)

    class Impatient(LocalDisk):
        tries = 0

        def try_lock(self, descriptor: int) -> bool:
            Impatient.tries += 1
            if Impatient.tries == 3:
                disk.unlock(asked)
            return super().try_lock(descriptor)

    NamedReader.take(Impatient(), str(tmp_path), IDENTITY, "billing").release()
    os.close(asked)


def test_a_lock_file_that_was_forgotten_meanwhile_is_no_lock(tmp_path: Path) -> None:
    first = take(tmp_path)
    first.save(HERE)

    class Slow(LocalDisk):
        waited = False

        def try_lock(self, descriptor: int) -> bool:
            if not Slow.waited:
                Slow.waited = True
                first.forget()
            return super().try_lock(descriptor)

    second = NamedReader.take(Slow(), str(tmp_path), IDENTITY, "billing")
    with pytest.raises(ReaderBusy):
        take(tmp_path)
    assert second.load() is None
    second.release()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "has 0 bytes, it must have 1 to"),
        ("a/b", "must not hold a / or start with a dot"),
        ("../billing", "must not hold a / or start with a dot"),
        (".hidden", "must not hold a / or start with a dot"),
        ("a\0b", "characters that do not print"),
        ("a\nb", "characters that do not print"),
        ("\ud800", "characters that do not print"),
        ("x" * (NAME_CHARACTERS_MAX + 1), "has 101 characters: it may have at most 100"),
        ("\u20ac" * 67, "at most 100, and 200 bytes in UTF-8"),
        (7, "a reader's name is text, not 7"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_reader_name(name)
    with pytest.raises(UsageError, match=problem):
        take(tmp_path, name)


def test_the_compactor_learns_of_every_reader_and_stumbles_over_no_junk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, path = LocalDisk(), str(tmp_path)
    assert reader_positions(disk, path) == {}
    log_id = read_or_create_identity(disk, path, LockMark(1, 1), 1).log_id
    assert reader_positions(disk, path) == {}
    for name, position in (("billing", HERE), ("audit", THERE)):
        reader = take(tmp_path, name, log_id)
        reader.save(position)
        reader.release()
    folder = tmp_path / "readers"
    (folder / "empty.place").touch()
    (folder / "junk.place").write_bytes(b"junk" * 5_000)
    (folder / ".hidden.place").touch()
    (folder / "README").write_text("no reader")
    (folder / "folder.place").mkdir()
    before = sorted(folder.iterdir())
    assert reader_positions(disk, path) == {"audit": (40, 2**63 - 1), "billing": (1, 42)}
    assert sorted(folder.iterdir()) == before
    assert caplog.text.count("does not read back") == 2
