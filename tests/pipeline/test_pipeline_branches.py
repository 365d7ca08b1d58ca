"""Jobs of devices that were restored: what the log holds now, and what was left, each by itself."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from taskq_plugins.hub.models import BreakKind
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.tables.logs import OVER
from tests.cli.helpers import taskq
from tests.effort import grows, some
from tests.fleet.made_logs import SECOND, MadeLog, claimed
from tests.pipeline.joblogs import Jobs, comparable, of_directory
from tests.pipeline.rowmaking import live
from tests.pipeline.test_pipeline_breaks import declare

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]


def run(root: Path, *words: object, lake_name: str = "lake") -> Lake:
    lake = root / lake_name
    done = taskq("pipeline", "run", "--journals", root / "hub", "--lake", lake, *words)
    assert done.exit_code == 0, done.output
    return Lake.open(lake)


def jobs_of(lake: Lake) -> dict[tuple[int, int], Row]:
    rows = lake.dataset("jobs").to_table().to_pylist(maps_as_pydicts="strict")
    result = {(row["branch"], row["job"]): row for row in rows}
    assert len(result) == len(rows)
    return result


def as_the_log_has_it(rows: dict[tuple[int, int], Row]) -> dict[int, Row]:
    return {job: row for (_, job), row in sorted(rows.items())}


def check(rows: dict[tuple[int, int], Row], wanted: Jobs) -> None:
    newest = as_the_log_has_it(rows)
    for (_, job), row in wanted.items():
        got = comparable(newest[job])
        assert not {name: (got[name], row[name]) for name in row if got[name] != row[name]}, job
    numbers = {job for _, job in wanted}
    open_rows = {job for (_, job), row in rows.items() if row["state"] not in OVER}
    assert open_rows <= numbers, "what only a branch that was left has, is over or lost"
    last = max(branch for branch, _ in rows)
    assert all(branch == last for (branch, _), row in rows.items() if row["state"] not in OVER)


@grows
@pytest.mark.parametrize("seed", range(some(2, of=60)))
def test_a_restored_device_is_folded_as_its_log_has_it(tmp_path: Path, seed: int) -> None:
    """Set back again and again, read in between or not, in small batches or at once."""
    draw = random.Random(seed)
    device = tmp_path / "hub" / "edge"
    backups: list[Path] = []
    keep = draw.choice([None, None, "0s"])
    for turn in range(some(4, of=6)):
        asyncio.run(live(device, seed * 100 + turn, draw.randrange(1, 5), keep=keep))
        words = ("--max-bytes", "40k") if draw.randrange(2) else ()
        lake = run(tmp_path, "duplicates", *words)
        check(jobs_of(lake), of_directory(device).jobs)
        backups.append(tmp_path / f"backup-{turn}")
        shutil.copytree(device, backups[-1])
        if draw.randrange(2):
            at = draw.randrange(len(backups))
            shutil.rmtree(device)
            shutil.copytree(backups[at], device)
            del backups[at + 1 :]
    assert max(branch for branch, _ in jobs_of(lake))


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """Return a hub's own directory: its devices are below."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "serve.lock").touch()
    return tmp_path / "hub" / "devices"


def test_what_was_not_told_of_behind_a_declared_gap_is_lost(tmp_path: Path, hub: Path) -> None:
    made = MadeLog(hub / "edge" / "log")
    frames = [made.enqueue(3)]
    other = MadeLog(hub / "other" / "log")
    other.enqueue(1)
    assert {row["state"] for row in jobs_of_all(run(tmp_path, "breaks"))} == {"ready"}
    declare(made, BreakKind.GAP, frames[0], None, 50, end_lsn=53)
    made.time_ns += 60 * SECOND
    made.rotate()
    made.enqueue(1)
    lake = run(tmp_path, "breaks")
    assert {row["state"] for row in jobs_of_all(lake)} == {"ready"}, "the device has told more"
    made.frame(claimed(2))
    made.enqueue(1)
    lake = run(tmp_path, "breaks")
    states = {(row["device"], row["job"]): row["state"] for row in jobs_of_all(lake)}
    wanted = dict.fromkeys([("edge", 50), ("edge", 52), ("other", 1)], "ready")
    assert states == wanted | {("edge", 1): "lost", ("edge", 2): "running", ("edge", 3): "lost"}
    made.frame(claimed(50))
    gap = {
        "device": "edge",
        "log_id": str(made.log_id),
        "kind": "gap",
        "branch": 0,
        "cause": "told",
    }
    gap |= {"is_declared": True, "lsn": 4, "goes_on_lsn": 50, "end_lsn": 53}
    for lake in (run(tmp_path), run(tmp_path, lake_name="later")):
        assert lake.dataset("breaks").to_table().to_pylist() == [gap]
    later = Lake.open(tmp_path / "later")
    assert jobs_of_all(later) == jobs_of_all(lake)
    lag = {row["device"]: row for row in lake.dataset("device_lag").to_table().to_pylist()}
    assert lag["edge"]["missing_from"] == [50]
    assert lag["other"]["waiting"] == 1


def jobs_of_all(lake: Lake) -> list[Row]:
    rows: list[Row] = lake.dataset("jobs").to_table().to_pylist(maps_as_pydicts="strict")
    return sorted(rows, key=lambda row: (row["device"], row["branch"], row["job"]))


def test_a_declared_fork_has_its_row_whether_the_other_branch_was_read_or_not(
    tmp_path: Path, hub: Path
) -> None:
    made = MadeLog(hub / "edge" / "log")
    frames = [made.enqueue(2) for _ in range(3)]
    run(tmp_path)
    declare(made, BreakKind.FORK, frames[2], frames[0], 1)
    made.frame(claimed(1))
    made.enqueue(1)
    rows = jobs_of_all(run(tmp_path))
    shown = [(row["branch"], row["job"], row["state"]) for row in rows]
    lost = [(0, job, "lost") for job in (3, 4, 5, 6)]
    assert shown == [*lost, (1, 1, "running"), (1, 2, "ready"), (1, 4, "ready")]
    run(tmp_path, "breaks", lake_name="later")
    for lake, branch in ((tmp_path / "lake", 1), (tmp_path / "later", None)):
        (row,) = Lake.open(lake).dataset("breaks").to_table().to_pylist()
        assert (row["kind"], row["is_declared"], row["branch"]) == ("fork", True, branch)
        assert (row["lsn"], row["goes_on_lsn"], row["end_lsn"]) == (3, None, 7)
    rollup = Lake.open(tmp_path / "lake").dataset("rollup_hour").to_table()
    assert rollup["enqueued"].to_pylist() == [7], "what both branches have was enqueued once"


def test_what_was_gone_over_has_its_row(tmp_path: Path, hub: Path) -> None:
    made = MadeLog(hub / "edge" / "log")
    made.enqueue(1)
    made.rotate()
    lost = made.enqueue(2)
    made.rotate()
    made.enqueue(1)
    lost.path.unlink()
    lake = run(tmp_path, "breaks", "--ignore-data-loss")
    (row,) = lake.dataset("breaks").to_table().to_pylist()
    assert (row["kind"], row["is_declared"], row["branch"]) == ("gap", False, 0)
    assert (row["lsn"], row["goes_on_lsn"], row["end_lsn"], row["cause"]) == (2, 4, None, None)
    assert [row["state"] for row in jobs_of_all(lake)] == ["ready", "ready"], "they may be carried"
