"""Hub and device killed at each named moment: at some once, all times of each in the slow ring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import grows, some


@grows
@pytest.mark.timeout(300)
def test_a_hub_and_a_device_that_are_killed_at_a_named_moment_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.processes.hub_kills", "--matrix"]
    done = subprocess.run(
        [*command, "--times", str(some(0, 10_000)), "--dir", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing lost, nothing twice" in done.stdout
