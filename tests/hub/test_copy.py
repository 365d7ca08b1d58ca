"""How a copy grows, what it refuses, and what it sets aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.engine import Border, DurableLog, LocalDisk, Replica
from taskq.errors import LogError
from taskq.log.journal.lock import WriterLock
from taskq.log.journal.recovery import FAILED_FILE, failure_marker
from taskq.log.machine.ports import write_file
from taskq.log.requests import Op
from taskq_plugins.hub.copies import in_order
from taskq_plugins.hub.models import (
    NOWHERE,
    Append,
    CopyEnd,
    Declare,
    Leave,
    Refused,
    Seal,
    Stored,
    Sync,
    Trouble,
)
from taskq_plugins.hub.sync import Push, Verdict, compare
from tests.hub.simulation import DEVICE, Simulation, at_once, hub_files
from tests.log.world import PATH, PLAIN, fill_segment
from tests.machine.crashable import CrashableDisk, PowerLost, ProcessKilled
from tests.processes.harness import eventually

_BIT: Final = 1
START: Final = Replica.START
_ITEM: Final = (PLAIN, b"in the air", None)


class Line:
    """A device with a sealed segment and a tail, and a hub that has nothing of it yet."""

    def __init__(self) -> None:
        self.simulation = simulation = Simulation(0)
        self.process = simulation._device()
        fill_segment(self.process)
        self.process.enqueue(b"tail")
        log = simulation._read_device()
        assert log is not None
        self.log: DurableLog = log
        self.disk = CrashableDisk(simulation.world.machine)
        first = log.segments[0]
        self.data, self.end = log.part(Border(first), 10**6)
        answer = self.ask(Sync(log.identity.log_id, 1, frozenset(), log.end))
        assert isinstance(answer, CopyEnd)
        self.session = answer.session

    def ask(self, asked: object) -> object:
        return self.simulation._ask_hub(asked)  # type: ignore[arg-type]

    def append(self, data: bytes, behind: Border | None = None) -> object:
        behind = behind or Border(self.log.segments[0])
        return self.ask(Append(self.session, self.log.identity.log_id, behind, data))

    def seal(self, digest: str = "") -> object:
        digest = digest or self.log.digest(self.end).hex()
        return self.ask(Seal(self.session, self.log.identity.log_id, self.end, digest))

    def declare(self, left: Border, at: Border) -> object:
        log_id = self.log.identity.log_id
        return self.ask(Declare(self.session, log_id, left, at, 99, "a test"))


def test_the_hub_keeps_whole_frames_and_drops_a_torn_tail() -> None:
    line = Line()
    half = line.log.borders(line.log.segments[0])[0]
    assert line.append(line.data[: half.offset + 20]) == Stored(half)
    assert line.append(line.data[half.offset :], half) == Stored(line.end)


@pytest.mark.parametrize("offset", [0, 12, 24, 40, START, START + 5, START + 20, START + 60])
def test_a_bit_that_fell_over_on_the_way_is_refused(offset: int) -> None:
    line = Line()
    data = bytearray(line.data)
    data[offset] ^= _BIT
    assert line.append(bytes(data)) == Refused(Trouble.DAMAGED, line_start(line, offset))
    assert isinstance(line.append(line.data), Stored)


def line_start(line: Line, offset: int) -> Border:
    """Return where a refusal says that the good frames end."""
    return NOWHERE if offset < START else Border(line.log.segments[0])


def test_frames_of_another_log_are_refused() -> None:
    line, other = Line(), Line()
    assert isinstance(line.append(other.data), Refused)


def test_a_segment_is_accepted_only_after_the_end_that_it_names() -> None:
    line = Line()
    second = Border(line.log.segments[1])
    data, _ = line.log.part(second, 10**6)
    half = line.log.borders(line.log.segments[0])[0]
    line.append(line.data[: half.offset])
    assert line.append(data, second) == Refused(Trouble.MISMATCH, half)
    assert line.append(line.data[half.offset :], half) == Stored(line.end)
    assert isinstance(line.append(data, second), Stored)


def test_a_segment_whose_digest_differs_is_thrown_out_and_comes_again() -> None:
    line = Line()
    line.append(line.data)
    assert line.seal("00" * 32) == Refused(Trouble.MISMATCH, NOWHERE)
    assert any("/torn/" in path for path in hub_files(line.simulation))
    line.append(line.data)
    assert line.seal() == line.seal() == Stored(line.end)


def test_a_gap_begins_where_the_copy_ends_and_goes_on_at_a_later_segment() -> None:
    line = Line()
    line.append(line.data)
    strange = line.end._replace(stem=bytes(56))
    before = hub_files(line.simulation)
    assert isinstance(line.declare(strange, Border(line.log.segments[1])), Refused)
    for at in (line.end, Border(line.log.segments[0])):
        assert isinstance(line.declare(line.end, at), Refused)
    assert hub_files(line.simulation) == before


def test_a_gap_is_set_aside_once_however_often_it_is_declared() -> None:
    line = Line()
    line.append(line.data)
    second = Border(line.log.segments[1])
    assert line.declare(line.end, second) == Stored(second)
    before = hub_files(line.simulation)
    assert line.declare(line.end, second) == Stored(second)
    assert hub_files(line.simulation) == before
    data, end = line.log.part(second, 10**6)
    assert line.append(data, second) == Stored(end)
    assert line.declare(line.end, second) == Stored(end)


def test_a_log_that_was_left_and_grows_is_on_two_machines_so_its_device_is_held() -> None:
    line, other = Line(), UUID(int=7)
    half = line.log.borders(line.log.segments[0])[0]
    line.append(line.data[: half.offset])
    left = line.ask(Leave(line.session, line.log.identity.log_id, half))
    assert left == Stored(half)
    registry = line.simulation.registry
    assert isinstance(line.ask(Sync(other, 1, frozenset(), NOWHERE)), CopyEnd)
    assert registry.standing(DEVICE)["state"] == "active"
    before = hub_files(line.simulation)
    assert line.append(line.data[half.offset :], half) == Refused(Trouble.HELD, NOWHERE)
    assert hub_files(line.simulation) == before
    assert registry.standing(DEVICE)["state"] == "held"
    registry.replace(DEVICE)
    assert line.append(line.data[half.offset :], half) == Stored(line.end)


def _steps_of_a_gap() -> int:
    line = Line()
    line.append(line.data)
    before = line.simulation.hub_machine.steps
    line.declare(line.end, Border(line.log.segments[1]))
    return line.simulation.hub_machine.steps - before


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("step", range(1, _steps_of_a_gap() + 1))
def test_a_set_aside_that_is_cut_short_loses_nothing(step: int, *, power: bool) -> None:
    line = Line()
    line.append(line.data)
    simulation, place = line.simulation, Border(line.log.segments[1])
    machine, held = simulation.hub_machine, simulation.hub_records()
    machine.stop_at(machine.steps + step, power=power)
    asked = Declare(line.session, line.log.identity.log_id, line.end, place, 99, "cut short")
    with pytest.raises((PowerLost, ProcessKilled)):
        simulation._hub().answer(DEVICE, asked)
    simulation.hub = None
    simulation._answered = None
    answer = line.ask(Sync(line.log.identity.log_id, 1, frozenset(), line.log.end))
    assert isinstance(answer, CopyEnd)
    copy = simulation._hub()._copies[DEVICE, line.log.identity.log_id]
    assert answer.at == (place if copy.gaps.all else line.end)
    assert held <= simulation.hub_records()
    data, end = line.log.part(place, 10**6)
    appended = Append(answer.session, line.log.identity.log_id, place, data)
    assert line.ask(appended) == Stored(end)
    assert simulation._device_records() <= simulation.hub_records()
    assert not [path for path in hub_files(simulation) if path.endswith(".tmp")]


def test_a_frame_comes_in_pieces_and_counts_once_it_is_whole() -> None:
    line = Line()
    half = line.log.borders(line.log.segments[0])[0]
    ids, data, cut = (line.session, line.log.identity.log_id), line.data[: half.offset], 90
    start = Border(line.log.segments[0])
    before = line.simulation.hub_records()
    assert line.append(data[:cut]) == Stored(NOWHERE, cut)
    piece = Append(*ids, start, data[cut:-8], cut)
    for _ in range(2):  # once more changes nothing
        assert line.ask(piece) == Stored(NOWHERE, len(data) - 8)
    assert line.append(data[:cut]) == Stored(NOWHERE, len(data) - 8), "it is there already"
    assert line.simulation.hub_records() == before
    assert line.ask(Append(*ids, start, data[-8:], len(data) - 8)) == Stored(half)


def test_pieces_that_a_hub_lost_come_again_and_others_count_for_nothing() -> None:
    line = Line()
    ids, start = (line.session, line.log.identity.log_id), Border(line.log.segments[0])
    assert line.append(line.data[:90]) == Stored(NOWHERE, 90)
    assert line.ask(Append(*ids, start, line.data[95:], 95)) == Stored(NOWHERE, 90)
    line.simulation._stop_hub()
    line.simulation._drive(line.log, 100, line.simulation._ask_hub)
    assert line.simulation._device_records() <= line.simulation.hub_records()


def test_a_piece_that_fell_over_on_the_way_is_refused_with_its_frame() -> None:
    line = Line()
    half = line.log.borders(line.log.segments[0])[0]
    ids, start, data = (line.session, line.log.identity.log_id), half, line.data[half.offset :]
    wrong = bytearray(data)
    wrong[80] ^= _BIT
    line.append(line.data[: half.offset])
    assert line.ask(Append(*ids, start, bytes(wrong[:60]))) == Stored(half, 60)
    assert line.ask(Append(*ids, start, bytes(wrong[60:]), 60)) == Refused(Trouble.DAMAGED, half)
    assert isinstance(line.ask(Append(*ids, start, data)), Stored)


def test_sessions_of_two_logs_of_a_device_do_not_end_each_other() -> None:
    line, other = Line(), UUID(int=7)
    line.ask(Sync(other, 1, frozenset(), NOWHERE))
    assert isinstance(line.append(line.data), Stored)


def test_logs_stay_in_the_order_in_which_they_came_whatever_is_written_of_them_later() -> None:
    line, (first, second, parent) = Line(), map(UUID, ("7" * 32, "5" * 32, "9" * 32))
    for log_id in (first, second):
        line.ask(Sync(log_id, 1, frozenset(), NOWHERE, ((parent, 4),) if log_id == second else ()))
    line.ask(Sync(first, 1, frozenset({"records-9"}), NOWHERE))
    line.ask(Sync(parent, 1, frozenset(), NOWHERE))
    copies = in_order(line.simulation._hub().all())
    assert [copy.log_id for copy in copies] == [parent, line.log.identity.log_id, first, second]


def test_a_late_request_of_an_older_session_changes_nothing() -> None:
    line = Line()
    late = Append(line.session, line.log.identity.log_id, Border(line.log.segments[0]), line.data)
    line.ask(Sync(line.log.identity.log_id, 1, frozenset(), line.log.end))
    before = hub_files(line.simulation)
    assert line.ask(late) == Refused(Trouble.SUPERSEDED, NOWHERE)
    assert hub_files(line.simulation) == before


def test_a_device_whose_fsync_failed_sends_nothing_until_it_is_opened_again() -> None:
    line = Line()
    line.process.send(Op.ENQUEUE, _ITEM)
    line.simulation.world.machine.fail_next_syncs()
    line.process.sync()
    assert line.simulation._read_device() is None


def test_nobody_but_the_hub_writes_to_a_copy(tmp_path: Path) -> None:
    line = Line()
    line.append(line.data)
    for path, data in hub_files(line.simulation).items():
        target = tmp_path / path.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (identity,) = tmp_path.rglob("taskq.json")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LogError, match=DEVICE):
        WriterLock(LocalDisk(), str(identity.parent), 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_comes_next_is_read_while_the_hub_is_waited_for() -> None:
    line, begun, waited = Line(), list[int](), list[int]()
    part = line.log.part

    def read(behind: Border, size: int) -> tuple[bytes, Border]:
        begun.append(behind.offset)
        return part(behind, size)

    async def ask(asked: object) -> object:
        if isinstance(asked, Append):
            segment, end = asked.behind.segment, asked.behind.offset + len(asked.data)
            ends = [border.offset for border in line.log.borders(segment)[:-1]]
            if end in ends:
                eventually(lambda: end in begun)
                waited.append(end)
        return line.ask(asked)

    line.log.part = read  # type: ignore[method-assign, assignment]
    at_once(Push(line.log, ask, lambda: 12_000, lambda: 12_000).run())  # type: ignore[arg-type]
    assert len(waited) > 3


_AT: Final = Border(7, 200, 100, bytes(56))


class Told(NamedTuple):
    """A log's view of the place where a hub ends."""

    is_there: bool = False
    is_next: bool = False
    is_elsewhere: bool = False
    is_younger: bool = False
    is_older: bool = False

    def stands(self, _at: Border) -> bool:
        return self.is_there

    def follows(self, _at: Border) -> bool:
        return self.is_next

    def is_moved(self, _at: Border) -> bool:
        return self.is_elsewhere

    def begins_behind(self, _at: Border) -> bool:
        return self.is_younger

    def begins_before(self, _segment: int) -> bool:
        return self.is_older


def _compare(synced: CopyEnd, log: Told) -> Verdict:
    return compare(synced, cast("DurableLog", log))


def _synced(at: Border = _AT, *, has_end: bool = False, begins: int = 7) -> CopyEnd:
    return CopyEnd(1, at, is_sealed=False, has_end=has_end, begins=begins)


@pytest.mark.parametrize(
    ("log", "has_end", "verdict"),
    [
        (Told(is_there=True), False, Verdict.BEHIND),
        (Told(is_there=True), True, Verdict.BEHIND),
        (Told(is_next=True, is_younger=True), False, Verdict.BEHIND),
        (Told(is_there=True, is_older=True), True, Verdict.OLDER),
        (Told(is_elsewhere=True), False, Verdict.BEHIND),
        (Told(is_elsewhere=True), True, Verdict.BEHIND),
        (Told(), True, Verdict.AHEAD),
        (Told(is_younger=True), True, Verdict.AHEAD),
        (Told(is_younger=True), False, Verdict.GAP),
        (Told(), False, Verdict.DIFFERS),
    ],
)
def test_each_finding_has_its_verdict(log: Told, verdict: Verdict, *, has_end: bool) -> None:
    assert _compare(_synced(has_end=has_end), log) is verdict


@given(st.builds(Told), st.booleans())
def test_a_hub_without_anything_of_the_log_gets_all_of_it(log: Told, has_end: bool) -> None:
    assert _compare(_synced(NOWHERE, has_end=has_end), log) is Verdict.NEW


@given(st.builds(Told, *[st.booleans()] * 5), st.booleans())
def test_nothing_is_declared_where_the_hubs_end_stands_in_the_log(log: Told, has_end: bool) -> None:
    verdict = _compare(_synced(has_end=has_end), log._replace(is_there=True))
    assert verdict is (Verdict.OLDER if log.is_older else Verdict.BEHIND)


@given(st.integers(1, 2**63 - 1), st.integers(8, 2**20), st.binary(min_size=56, max_size=56))
def test_a_position_reads_back_as_it_was_written(segment: int, frame: int, stem: bytes) -> None:
    at = Border(segment, 0, frame, stem)
    header = at.header
    assert header is not None
    at = at._replace(offset=frame + header.size)
    assert Border.from_list(at.as_list()) == at
    assert Border.from_list(Border(segment).as_list()) == Border(segment)
    with pytest.raises(ValueError, match="is no position"):
        Border.from_list(at._replace(offset=at.offset + 8).as_list())


def _compact(line: Line) -> None:
    line.disk.remove(f"{PATH}/log/{line.log.segments[0]:020d}.log")


def _move(line: Line) -> None:
    """The device's next opener cannot know that its last frame is on disk."""
    header = line.log.end.header
    assert header is not None
    marker = failure_marker(line.log.end.segment, header.first_lsn, OSError())
    write_file(line.disk, f"{PATH}/{FAILED_FILE}", json.dumps(marker).encode())
    line.simulation._drop_process()
    line.simulation._device()


@pytest.mark.parametrize(("change", "number"), [(_compact, 0), (_move, 1)])
def test_a_log_goes_on_behind_what_the_hub_has_wherever_that_stands_now(
    change: Callable[[Line], None], number: int
) -> None:
    line = Line()
    at = line.log.end_of(line.log.segments[number])
    change(line)
    log = line.simulation._read_device()
    assert log is not None
    assert not log.stands(at)
    for stem, is_there in ((at.stem, True), (bytes(56), False)):
        synced = _synced(at._replace(stem=stem), begins=line.log.segments[0])
        assert (compare(synced, log) is Verdict.BEHIND) is is_there
