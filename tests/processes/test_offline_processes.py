"""Two worker processes and a host that comes up: nothing is written before, few run at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.offline import measure

if TYPE_CHECKING:
    from pathlib import Path


async def test_two_processes_wait_a_day_for_a_host_and_then_ramp_up(tmp_path: Path) -> None:
    """What ``measure`` asserts: no record while it is down, first job within 1 s, no stampede."""
    found = await measure(str(tmp_path / "data"), jobs=200, concurrency=8, seconds=0.5)
    assert found["claims"] == 200
