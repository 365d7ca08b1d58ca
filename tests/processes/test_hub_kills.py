"""Hub and device killed in a bad world."""

import pytest

from tests.effort import grows, some
from tests.programs import run_python


@pytest.mark.posix("forks")
@grows
@pytest.mark.timeout(300)
def test_a_hub_and_a_device_that_are_killed_lose_nothing() -> None:
    words = "-m", "tests.processes.hub_kills", "--sessions", some(12, 600)
    done = run_python(*words, timeout=36_000)
    assert done.returncode == 0, done.stderr
    assert "nothing lost, nothing twice" in done.stdout
