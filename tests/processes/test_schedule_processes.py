"""Schedules over real worker processes that are killed: the program of tests/bench, smaller."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("season", ["spring", "autumn"])
def test_each_tick_of_a_week_is_written_once_though_workers_are_killed(season: str) -> None:
    command = [
        sys.executable, "-m", "tests.bench.schedules", "--seconds", "30", "--season", season,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each once" in done.stdout
