"""Jobs of devices that were restored: what the log holds now, and what was left, each by itself."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from taskq_plugins.spark.lake import Lake
from taskq_plugins.spark.tables.fold import OVER
from tests.cli.helpers import taskq
from tests.effort import grows, some
from tests.pipeline.joblogs import Jobs, comparable, of_directory
from tests.pipeline.rowmaking import live

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]


def run(root: Path, *words: object) -> Lake:
    done = taskq("pipeline", "run", "--journals", root / "hub", "--lake", root / "lake", *words)
    assert done.exit_code == 0, done.output
    return Lake.open(root / "lake")


def jobs_of(lake: Lake) -> dict[tuple[int, int], Row]:
    """The rows of one log's jobs by branch and number; of each there is one."""
    rows = lake.dataset("jobs").to_table().to_pylist(maps_as_pydicts="strict")
    found = {(row["branch"], row["job"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def as_the_log_has_it(rows: dict[tuple[int, int], Row]) -> dict[int, Row]:
    """The jobs that the newest branch has, as it has them; and those that only older ones have."""
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
@pytest.mark.parametrize("seed", range(some(4, of=60)))
def test_a_restored_device_is_folded_as_its_log_has_it(tmp_path: Path, seed: int) -> None:
    """Set back again and again, read in between or not, in small batches or at once."""
    draw = random.Random(seed)
    device = tmp_path / "hub" / "edge"
    backups: list[Path] = []
    keep = draw.choice([None, None, "0s"])
    for turn in range(6):
        asyncio.run(live(device, seed * 100 + turn, draw.randrange(1, 5), keep=keep))
        words = ("--max-bytes", "40k") if draw.randrange(2) else ()
        lake = run(tmp_path, *words)
        check(jobs_of(lake), of_directory(device).jobs)
        backups.append(tmp_path / f"backup-{turn}")
        shutil.copytree(device, backups[-1])
        if draw.randrange(2):
            at = draw.randrange(len(backups))
            shutil.rmtree(device)
            shutil.copytree(backups[at], device)
            del backups[at + 1 :]
    assert max(branch for branch, _ in jobs_of(lake))
