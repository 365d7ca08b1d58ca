"""Chords whose workers are killed: each callback runs once, with all results of its members.

``python -m tests.bench.chords`` does the same at full size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.chords import judge, run

if TYPE_CHECKING:
    from pathlib import Path

CHORDS = 80
MEMBERS = 10


async def test_callbacks_run_once_with_all_results_while_workers_are_killed(tmp_path: Path) -> None:
    await run(tmp_path / "data", CHORDS, MEMBERS, kill_seconds=1.0, seed=1)
    verdict = judge(tmp_path / "data", MEMBERS)
    assert verdict.is_good, verdict
    assert verdict.callbacks == CHORDS
    assert verdict.successes == CHORDS * (MEMBERS + 1)
