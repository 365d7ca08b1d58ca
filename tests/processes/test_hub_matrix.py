"""Hub and device killed at each named moment once; all times of each by ``hub_kills --matrix``."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(300)
def test_a_hub_and_a_device_that_are_killed_at_a_named_moment_lose_nothing(tmp_path: Path) -> None:
    """In a process of its own, which forks those that are killed."""
    command = [sys.executable, "-m", "tests.processes.hub_kills", "--matrix", "--times", "0"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nothing lost, nothing twice" in done.stdout
