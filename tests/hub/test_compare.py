"""The verdict is drawn from content, in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.engine import Border
from taskq_plugins.hub.models import NOWHERE, CopyEnd
from taskq_plugins.hub.sync import Verdict, compare

if TYPE_CHECKING:
    from taskq.engine import DurableLog

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


def _synced(at: Border = _AT, *, has_end: bool = False) -> CopyEnd:
    return CopyEnd(1, at, is_sealed=False, has_end=has_end, begins=7)


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
def test_nothing_is_declared_where_the_hubs_end_stands_in_the_log(
    log: Told,
    has_end: bool,
) -> None:
    verdict = _compare(_synced(has_end=has_end), log._replace(is_there=True))
    assert verdict is (Verdict.OLDER if log.is_older else Verdict.BEHIND)


@given(st.integers(1, 2**63 - 1), st.integers(8, 2**20), st.binary(min_size=56, max_size=56))
def test_a_position_reads_back_as_it_was_written(segment: int, frame: int, stem: bytes) -> None:
    at = Border(segment, 0, frame, stem)
    header = at.header
    assert header is not None
    at = at._replace(offset=frame + header.size)
    assert Border.from_list(at.as_list()) == at
    with pytest.raises(ValueError, match="is no position"):
        Border.from_list(at._replace(offset=at.offset + 8).as_list())


def test_the_start_of_a_segment_is_a_position_too() -> None:
    assert Border.from_list(Border(5).as_list()) == Border(5)
