"""How a copy grows, what it refuses, and what it sets aside."""

import json
from collections.abc import Callable
from typing import Final
from unittest.mock import create_autospec
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.engine import Border, DurableLog, Replica
from taskq.log.format import codec
from taskq.log.journal.recovery import FAILED_FILE, failure_marker
from taskq.log.machine.ports import write_file
from taskq_plugins.hub.copies import in_order
from taskq_plugins.hub.models import (
    NOWHERE,
    Append,
    CopyEnd,
    Declare,
    Refused,
    Stored,
    Sync,
    Trouble,
)
from taskq_plugins.hub.sync import Verdict, compare
from tests.hub.simulation import Simulation, hub_files
from tests.log.world import PATH, fill_segment
from tests.machine.crashable import CrashableDisk

_BIT: Final = 1
START: Final = Replica.START


class Line:
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

    def append(self, data: bytes, behind: Border | None = None, before: str = "") -> object:
        behind = behind or Border(self.log.segments[0])
        return self.ask(Append(self.session, self.log.identity.log_id, behind, data, 0, before))

    def declare(self, left: Border, at: Border) -> object:
        log_id = self.log.identity.log_id
        return self.ask(Declare(self.session, log_id, left, at, 99, "a test"))


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


@pytest.mark.parametrize("link", [codec.NO_LINK, codec.LOST])
def test_a_segment_without_an_end_is_taken_after_its_owners_end(link: codec.Link) -> None:
    line = Line()
    second = Border(line.log.segments[1])
    data, _ = line.log.part(second, 10**6)
    header = codec.decode_segment_header(data, "")
    assert header is not None
    data = codec.encode_segment_header(header._replace(link=link)) + data[START:]
    line.append(line.data)
    half = line.log.borders(line.log.segments[0])[0]
    for wrong in ("", half.stem.hex()):
        assert line.append(data, second, wrong) == Refused(Trouble.MISMATCH, line.end)
    assert isinstance(line.append(data, second, line.end.stem.hex()), Stored)


def test_a_gap_begins_where_the_copy_ends_and_goes_on_at_a_later_segment() -> None:
    line = Line()
    line.append(line.data)
    strange = line.end._replace(stem=bytes(56))
    before = hub_files(line.simulation)
    assert isinstance(line.declare(strange, Border(line.log.segments[1])), Refused)
    for at in (line.end, Border(line.log.segments[0])):
        assert isinstance(line.declare(line.end, at), Refused)
    assert hub_files(line.simulation) == before


def test_logs_stay_in_the_order_in_which_they_came_whatever_is_written_of_them_later() -> None:
    line, (first, second, parent) = Line(), map(UUID, ("7" * 32, "5" * 32, "9" * 32))
    for log_id in (first, second):
        line.ask(Sync(log_id, 1, frozenset(), NOWHERE, ((parent, 4),) if log_id == second else ()))
    line.ask(Sync(first, 1, frozenset({"records-9"}), NOWHERE))
    line.ask(Sync(parent, 1, frozenset(), NOWHERE))
    copies = in_order(line.simulation._hub().all())
    assert [copy.log_id for copy in copies] == [parent, line.log.identity.log_id, first, second]


_AT: Final = Border(7, 200, 100, bytes(56))


def _synced(
    at: Border = _AT, *, has_end: bool = False, begins: int = 7, kin: Border = NOWHERE
) -> CopyEnd:
    return CopyEnd(1, at, has_end=has_end, begins=begins, kin=kin)


@pytest.mark.parametrize(("found", "has_end", "verdict"), [
    (("has",), False, Verdict.BEHIND), (("has",), True, Verdict.BEHIND),
    (("follows", "begins_after"), False, Verdict.BEHIND),
    (("has", "begins_before"), True, Verdict.OLDER),
    (("is_moved",), False, Verdict.BEHIND), (("is_moved",), True, Verdict.BEHIND),
    ((), True, Verdict.AHEAD), (("begins_after",), True, Verdict.AHEAD),
    (("begins_after",), False, Verdict.GAP), ((), False, Verdict.DIFFERS),
])  # fmt: skip
def test_each_finding_has_its_verdict(
    found: tuple[str, ...], verdict: Verdict, *, has_end: bool
) -> None:
    log = create_autospec(DurableLog)
    for name in ("has", "follows", "is_moved", "begins_after", "begins_before"):
        getattr(log, name).return_value = name in found
    assert compare(_synced(has_end=has_end), log) is verdict
    in_kin = compare(_synced(NOWHERE, has_end=has_end, kin=_AT), log)
    assert in_kin is (Verdict.NEW if found else verdict)


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
def test_a_log_goes_on_after_the_hubs_end(change: Callable[[Line], None], number: int) -> None:
    line = Line()
    at = line.log.end_of(line.log.segments[number])
    change(line)
    log = line.simulation._read_device()
    assert log is not None
    assert not log.has(at)
    for stem, is_there in ((at.stem, True), (bytes(56), False)):
        synced = _synced(at._replace(stem=stem), begins=line.log.segments[0])
        assert (compare(synced, log) is Verdict.BEHIND) is is_there
