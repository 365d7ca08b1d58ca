"""Hub and device killed at each named moment, and in a bad world: some by default."""

from __future__ import annotations

import pytest

from tests.effort import grows, some
from tests.programs import run_python


@grows
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("option", "count"), [("--times", some(0, 10)), ("--sessions", some(12, 300))]
)
def test_a_hub_and_a_device_that_are_killed_lose_nothing(option: str, count: int) -> None:
    done = run_python("-m", "tests.processes.hub_kills", option, count, timeout=36_000)
    assert done.returncode == 0, done.stderr
    assert "nothing lost, nothing twice" in done.stdout
