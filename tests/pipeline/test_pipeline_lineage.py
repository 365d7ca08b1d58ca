"""Restored and copied logs are logs of their own, each read once, whatever is read when."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from taskq.arrow import DETAILS, Corrupt
from taskq_plugins.spark.source import plan as planning
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import LogHeld, positions_from_json, positions_to_json
from taskq_plugins.spark.source.rows import RowReader, read_pieces
from tests.fleet.made_logs import MadeLog, damage

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.source.plan import Plan, Positions

READING = RowReader(DETAILS, Corrupt.FAIL, payload=True, headers=True, fails_on_loss=True)


class Follower:
    """Reads batches with a limit; checks that a position moves only with bytes that were read."""

    def __init__(self, path: Path, **options: str) -> None:
        self.options = read_options({"path": str(path), "failOnDataLoss": "hold"} | options)
        self.reading = READING._replace(corrupt=Corrupt(self.options.corrupt_mode))
        self.at: Positions = {}
        self.rows: list[dict[str, Any]] = []
        self.problems: dict[str, str] = {}

    def step(self, max_bytes: int = planning.UNLIMITED) -> Plan:
        planned = planning.plan(self.options, self.at, max_bytes)
        read = {piece.log_id for part in planned.pieces for piece in part}
        moved = {
            log_id for log_id, end in planned.ends.items()
            if log_id not in self.at or end.place != self.at[log_id].place
        }  # fmt: skip
        assert moved == read
        for part in planned.pieces:
            for batch in read_pieces(part, self.reading):
                self.rows += batch.to_pylist()
        self.at = positions_from_json(positions_to_json(planned.ends))
        self.problems = planned.problems
        return planned

    def drain(self, max_bytes: int = planning.UNLIMITED) -> Follower:
        while self.step(max_bytes).pieces:
            pass
        return self

    def read(self) -> list[tuple[str, int]]:
        return [(row["log_id"], row["lsn"]) for row in self.rows if row["kind"] != "break"]


def keys_of(made: MadeLog, *lsns: int) -> list[tuple[str, int]]:
    return [(str(made.log_id), lsn) for lsn in lsns]


def set_back(backup: Path, made: MadeLog) -> None:
    """Put a copy of another state into the place of a log's directory."""
    shutil.rmtree(made.path)
    backup.rename(made.path)
    for name in ("file", "path"):
        old = getattr(made, name)
        setattr(made, name, made.path / "log" / old.name if name == "file" else made.path)


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
    shutil.rmtree(made.path)
    backup.path.rename(made.path)
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
    set_back(twin.path, made)
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


@pytest.mark.parametrize("seed", range(100))
def test_what_is_read_depends_neither_on_sizes_nor_on_moments(tmp_path: Path, seed: int) -> None:
    """Devices write, are set back to backups, are cloned and lose their parents' directories."""
    chance = random.Random(seed)
    live = [MadeLog(tmp_path / f"dev-{number}") for number in range(3)]
    backups: list[tuple[int, MadeLog]] = []
    ever: set[tuple[str, int]] = set()
    follower = Follower(tmp_path)
    count = 0
    for _ in range(chance.randint(5, 25)):
        at = chance.randrange(len(live))
        made, count = live[at], count + 1
        act = chance.choice(["write"] * 5 + ["rotate", "backup", "back", "clone", "read", "read"])
        if act == "write":
            first = made.next_lsn
            made.enqueue(chance.randint(1, 4), size=chance.choice([10, 400, 3000]))
            ever |= {(str(made.log_id), lsn) for lsn in range(first, made.next_lsn)}
        elif act == "rotate":
            made.rotate()
        elif act == "backup" and made.next_lsn > made.begins:
            backups.append((at, made.child(tmp_path / f".backup-{count}")))
        elif act == "back" and backups:
            at, backup = backups.pop(chance.randrange(len(backups)))
            path = live[at].path
            shutil.rmtree(path)
            backup.path.rename(path)
            backup.path, backup.file = path, path / "log" / backup.file.name
            live[at] = backup
        elif act == "clone" and made.next_lsn > made.begins:
            live.append(made.child(tmp_path / f"clone-{count}"))
        elif act == "read":
            follower.step(chance.choice([1, 700, 5000, planning.UNLIMITED]))
    follower.drain(chance.choice([700, planning.UNLIMITED]))
    fresh = [sorted(Follower(tmp_path).drain(size).read()) for size in (900, 10**9)]
    assert fresh[0] == fresh[1]
    read = follower.read()
    assert len(read) == len(set(read))
    assert set(fresh[0]) <= set(read) <= ever
    assert not follower.problems
