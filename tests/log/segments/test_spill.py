"""Files of large bodies: on disk before they are named, shared, checked, collected in the end."""

from __future__ import annotations

import hashlib
from typing import Final

import pytest

from taskq.core.errors import AppendFailed, DiskFull, LogDamaged, LogError, SpillMissing
from taskq.log.machine.ports import Disk
from taskq.log.segments.spill import Spill, collect, decode_reference, old_files, renew
from taskq.testing.clock import FakeClock
from tests.log.tending import finish
from tests.machine.crashable import CrashableDisk, Machine, PowerLost, ProcessKilled

PATH: Final = "/srv/data"
BODY: Final = b"a large body " * 500
WHAT: Final = "the payload of job 1a-2"
HOUR: Final = 3_600.0


class Place:
    """A simulated machine with an empty log directory, which is on disk."""

    def __init__(self, seed: int = 0) -> None:
        self.machine = Machine(seed)
        self.clock = FakeClock()
        self.machine.wall_ns = self.clock.wall_ns
        disk = self.disk()
        disk.make_directory(PATH)
        for path in ("/", "/srv", PATH):
            disk.sync_directory(path)

    def disk(self) -> CrashableDisk:
        return CrashableDisk(self.machine)

    def spill(self) -> Spill:
        """Return the files as one process sees them."""
        disk = self.disk()
        return Spill(PATH, lambda: disk)

    def files(self) -> list[str]:
        return self.disk().names(f"{PATH}/spill")

    def collect(self, *referenced: bytes) -> int:
        """Collect with nothing in between."""
        disk = self.disk()
        old = finish(old_files(disk, PATH, self.clock.wall_ns()))
        return finish(collect(disk, PATH, old, {digest(name) for name in referenced}))


def digest(stored: bytes) -> bytes:
    return decode_reference(stored, WHAT).digest


def name(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_file_that_was_damaged_is_written_anew_when_its_body_is_put_again(place: Place) -> None:
    stored = place.spill().put(BODY)
    for harm in (b"?" + BODY[1:], BODY[:-1], b""):
        place.machine.put(f"{PATH}/spill/{name(BODY)}", harm)
        with pytest.raises(LogDamaged):
            place.spill().get(stored, WHAT)
        assert place.spill().put(BODY) == stored
        assert place.spill().get(stored, WHAT) == BODY
    assert place.files() == [name(BODY)]


def test_what_reads_back_otherwise_is_an_error_that_names_the_file(place: Place) -> None:
    stored = place.spill().put(BODY)
    file = f"{PATH}/spill/{name(BODY)}"
    place.machine.put(file, BODY[:-1])
    with pytest.raises(LogDamaged, match=f"{file} has 6499 bytes, {WHAT} had 6500"):
        place.spill().get(stored, WHAT)
    place.machine.put(file, b"?" + BODY[1:])
    with pytest.raises(LogDamaged, match=f"{file} does not hold {WHAT} any more"):
        place.spill().get(stored, WHAT)
    place.machine.unreadable.add((file, 3))
    with pytest.raises(LogError, match=f"{file}: Input.output error. Check the disk"):
        place.spill().get(stored, WHAT)
    place.disk().remove(file)
    with pytest.raises(SpillMissing, match=f"{file} is missing, and held {WHAT}: restore it"):
        place.spill().get(stored, WHAT)
    with pytest.raises(LogDamaged, match="holds 39 bytes"):
        place.spill().get(stored[:-1], WHAT)


def test_a_record_is_refused_when_its_file_is_gone(place: Place) -> None:
    stored = place.spill().put(BODY)
    renew(place.disk(), PATH, stored, WHAT)
    place.disk().remove(f"{PATH}/spill/{name(BODY)}")
    with pytest.raises(SpillMissing, match="nothing was written, try again"):
        renew(place.disk(), PATH, stored, WHAT)


# -- a disk that refuses ---------------------------------------------------------------------------


def test_a_full_disk_is_told_and_leaves_nothing_behind(place: Place) -> None:
    place.machine.free = 100
    with pytest.raises(AppendFailed, match="No space left on device"):
        place.spill().put(BODY)
    assert place.files() == []
    assert place.machine.free == 100
    place.machine.free = None
    place.machine.shorten = lambda size: max(size // 3, 1)
    stored = place.spill().put(BODY)
    assert place.spill().get(stored, WHAT) == BODY


def test_new_jobs_leave_room_for_what_ends_others(place: Place) -> None:
    """A file that is there already takes none."""
    place.machine.free = len(BODY) + 999
    with pytest.raises(DiskFull, match="7499 bytes are free, new jobs must leave 1000"):
        place.spill().put(BODY, lambda _: 1_000)
    assert place.files() == []
    stored = place.spill().put(BODY)
    assert place.spill().put(BODY, lambda _: 1_000) == stored


def test_after_a_failed_sync_of_the_directory_the_file_is_written_anew(place: Place) -> None:
    """The next sync would say that all is well, and the entry might not be on disk."""
    spill = place.spill()

    def refuse(operation: str, path: str) -> None:
        if operation == "sync_directory" and path.endswith("/spill"):
            raise OSError(5, "Input/output error")

    place.machine.on_step = refuse
    with pytest.raises(AppendFailed):
        spill.put(BODY)
    place.machine.on_step = None
    renamed: list[str] = []
    place.machine.on_step = lambda operation, _: renamed.append(operation)
    spill.put(BODY)
    assert "rename" in renamed


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_step_of_collecting_loses_nothing_that_is_named(power: bool) -> None:
    stop = 0
    finished = False
    while not finished:
        stop += 1
        for seed in range(20):
            place = Place(seed)
            spill = place.spill()
            kept, *rest = [spill.put(BODY + b"%d" % number) for number in range(4)]
            place.clock.advance(2 * HOUR)
            place.machine.stop_at(place.machine.steps + stop, power=power)
            try:
                assert place.collect(kept) == len(rest)
                finished = True
            except (PowerLost, ProcessKilled):
                pass
            place.machine.stop_at(None)
            place.machine.lose_power()
            assert place.spill().get(kept, WHAT) == BODY + b"0"
            # What is left of the others is whole or goes with the next collection.
            again = place.spill().put(BODY + b"1")
            assert place.spill().get(again, WHAT) == BODY + b"1"
            place.clock.advance(2 * HOUR)
            place.collect(kept, again)
            assert len(place.files()) == 2
    assert stop > 3


# -- collecting ------------------------------------------------------------------------------------


def test_young_files_and_those_of_others_are_left_alone(place: Place) -> None:
    spill = place.spill()
    spill.put(BODY)
    place.machine.put(f"{PATH}/spill/notes.txt", b"not ours")
    place.clock.advance(HOUR - 1)
    assert place.collect() == 0
    place.clock.advance(1)
    assert place.collect() == 1
    assert place.files() == ["notes.txt"]


@pytest.mark.parametrize("by", ["put", "renew"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_file_that_is_used_while_the_collection_runs_is_spared(
    place: Place, by: str, step: int
) -> None:
    """Whenever between the look at its age and its own turn; its neighbour goes."""
    neighbour, stored = sorted(place.spill().put(BODY + b"%d" % number) for number in range(2))
    body = place.spill().get(stored, WHAT)
    place.clock.advance(2 * HOUR)
    disk = place.disk()
    old = finish(old_files(disk, PATH, place.clock.wall_ns()))
    place.clock.advance(1)
    steps = collect(disk, PATH, old, set())
    for _ in range(step):
        next(steps)
    if by == "put":
        assert place.spill().put(body) == stored
    else:
        renew(place.disk(), PATH, stored, WHAT)
    assert finish(steps) == 1
    assert place.spill().get(stored, WHAT) == body
    with pytest.raises(SpillMissing):
        place.spill().get(neighbour, WHAT)


def test_a_file_that_is_touched_in_the_very_moment_of_its_removal_comes_back(place: Place) -> None:
    """Somebody who holds no lock found it there, and is about to name it."""
    stored = place.spill().put(BODY)
    place.clock.advance(2 * HOUR)
    disk: Disk = place.disk()
    old = finish(old_files(disk, PATH, place.clock.wall_ns()))
    writer = place.disk()

    def touch_first(operation: str, path: str) -> None:
        if operation == "rename":
            place.machine.on_step = None
            writer.touch(f"{PATH}/spill/{name(BODY)}")

    place.machine.on_step = touch_first
    assert finish(collect(disk, PATH, old, set())) == 0
    place.machine.lose_power()
    assert place.spill().get(stored, WHAT) == BODY


def test_the_clock_of_a_machine_that_boots_in_1970_collects_nothing(place: Place) -> None:
    stored = place.spill().put(BODY)
    place.clock.step(-50 * 365 * 24 * HOUR)
    assert place.collect() == 0
    assert place.spill().get(stored, WHAT) == BODY
    young = place.spill().put(BODY + b"!")
    place.clock.step(50 * 365 * 24 * HOUR)
    disk = place.disk()
    old = finish(old_files(disk, PATH, place.clock.wall_ns()))
    assert [item.digest for item in old] == [digest(young)]
    # Its record is written now, after all: that is seen although the clock says it is ancient.
    renew(place.disk(), PATH, young, WHAT)
    assert finish(collect(disk, PATH, old, set())) == 0
