"""A device and its hub with faults between them: some sessions by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import grows, some


@grows
@pytest.mark.timeout(300)
def test_whatever_goes_wrong_a_copy_is_its_log_and_each_job_ran_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.processes.hub_chaos", "--dir", str(tmp_path)]
    words = ("--sessions", str(some(8, 3_000)), "--kills", str(some(2, 150)))
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing lost, nothing twice" in done.stdout
