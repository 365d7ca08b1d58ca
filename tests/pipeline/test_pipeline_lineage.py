"""Restored and copied logs are logs of their own, each read once, whatever is read when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq_plugins.spark.source import plan as planning
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import LogHeld
from tests.fleet.made_logs import MadeLog, damage
from tests.pipeline.source_tools import Follower

if TYPE_CHECKING:
    from pathlib import Path


def keys_of(made: MadeLog, *lsns: int) -> list[tuple[str, int]]:
    return [(str(made.log_id), lsn) for lsn in lsns]


@pytest.mark.parametrize("max_bytes", [1, 300, 2000, planning.UNLIMITED])
def test_a_restored_log_is_read_from_where_it_left_its_parent(
    tmp_path: Path, max_bytes: int
) -> None:
    """Also when its device gets nothing of the batch in which it is seen first."""
    made, other = MadeLog(tmp_path / "dev"), MadeLog(tmp_path / "other")
    for _ in range(4):
        made.enqueue(1)
    backup = made.child(tmp_path / ".backup")
    made.enqueue(2)
    other.enqueue(3)
    follower = Follower(tmp_path).drain()
    backup.enqueue(3)
    made.replace(backup)
    for _ in range(10):
        other.enqueue(1, size=900)
    follower.drain(max_bytes)
    mine = [key for key in follower.read() if key[0] != str(other.log_id)]
    assert mine == keys_of(made, *range(1, 7)) + keys_of(backup, 5, 6, 7)
    assert len(follower.read()) == len(set(follower.read())) == 9 + 13
    assert not follower.problems


def test_a_parent_is_read_from_the_child_that_has_most_of_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / ".lost")
    made.enqueue(2)
    first = made.child(tmp_path / "a")
    made.rotate()
    made.enqueue(3)
    second = made.child(tmp_path / "b")
    first.enqueue(1)
    second.enqueue(1)
    rows = Follower(tmp_path).drain(100)
    expected = keys_of(made, 1, 2, 3, 4, 5) + keys_of(first, 3) + keys_of(second, 6)
    assert sorted(rows.read()) == sorted(expected)
    assert not rows.problems
    made.path.rename(tmp_path / "c")
    assert sorted(Follower(tmp_path).drain().read()) == sorted(expected)


def test_a_parent_is_read_before_its_child(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / ".lost")
    for _ in range(10):
        made.enqueue(1, size=500)
    child = made.child(tmp_path / "dev")
    child.enqueue(5)
    follower = Follower(tmp_path)
    follower.step(1200)
    assert {key[0] for key in follower.read()} == {str(made.log_id)}
    assert follower.drain(1200).read() == keys_of(made, *range(1, 11)) + keys_of(
        child, *range(11, 16)
    )


def test_other_frames_under_the_same_id_hold_that_log_alone(tmp_path: Path) -> None:
    made, other = MadeLog(tmp_path / "dev"), MadeLog(tmp_path / "other")
    made.enqueue(2)
    twin = MadeLog(tmp_path / ".twin", made.log_id)
    twin.time_ns += 5
    twin.enqueue(2)
    other.enqueue(1)
    follower = Follower(tmp_path).drain()
    made.replace(twin)
    other.enqueue(1)
    follower.drain()
    assert follower.read()[-1] == keys_of(other, 2)[0]
    assert list(follower.problems) == [str(made.log_id)]
    assert "does not hold the frame that was read last" in follower.problems[str(made.log_id)]
    strict = read_options({"path": str(tmp_path)})
    with pytest.raises(LogHeld):
        planning.plan(strict, follower.at)


def test_a_damaged_log_is_read_to_the_damage_and_held_there(tmp_path: Path) -> None:
    made, other = MadeLog(tmp_path / "dev"), MadeLog(tmp_path / "other")
    frames = [made.enqueue(1) for _ in range(5)]
    damage(frames[2])
    other.enqueue(2)
    for max_bytes in (1, 200, planning.UNLIMITED):
        held = Follower(tmp_path).drain(max_bytes)
        assert sorted(held.read()) == sorted(keys_of(made, 1, 2) + keys_of(other, 1, 2))
        assert list(held.problems) == [str(made.log_id)]
        assert held.at[str(made.log_id)].held == held.problems[str(made.log_id)]
    skips = Follower(tmp_path, corruptMode="skip")
    assert len(skips.step().skipped) == 1
    kinds = [row["kind"] for row in skips.rows if row["device"] == "dev"]
    assert kinds == ["enqueued", "enqueued", "break", "enqueued", "enqueued"]
