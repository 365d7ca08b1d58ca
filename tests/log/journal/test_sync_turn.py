"""Processes that wait for the disk take turns: one fsync serves all whose frames it covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskq.log.journal.lock import SyncTurn
from taskq.log.machine.disk import LocalDisk

pytestmark = pytest.mark.disk
BOOT, GENERATION = 7, 3


@pytest.fixture
def turns(tmp_path: Path) -> tuple[SyncTurn, SyncTurn]:
    """Two processes' views: two open files, which flock keeps apart."""
    return SyncTurn(LocalDisk(), str(tmp_path)), SyncTurn(LocalDisk(), str(tmp_path))


def test_who_is_covered_by_anothers_sync_does_none(turns: tuple[SyncTurn, SyncTurn]) -> None:
    first, second = turns
    assert first.take(BOOT, GENERATION, 10)
    first.leave(BOOT, GENERATION, 25)
    assert not second.take(BOOT, GENERATION, 25)
    assert second.take(BOOT, GENERATION, 26)


def test_a_process_that_is_stopped_in_its_turn_holds_nobody_up(
    turns: tuple[SyncTurn, SyncTurn],
) -> None:
    first, second = turns
    assert first.take(BOOT, GENERATION, 10)
    assert second.take(BOOT, GENERATION, 12)
    second.leave(BOOT, GENERATION, 12)
    first.leave(BOOT, GENERATION, 10)
    assert not first.take(BOOT, GENERATION, 12)


def test_a_mark_of_nonsense_covers_nobody(turns: tuple[SyncTurn, SyncTurn], tmp_path: Path) -> None:
    (tmp_path / "sync.lock").write_bytes(b"\xff" * 24)
    assert turns[0].take(BOOT, GENERATION, 1)
