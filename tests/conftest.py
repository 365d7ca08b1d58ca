from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, settings

# The examples are the same in every run, so that a red run means a change; and none has a deadline,
# which a busy machine would miss. New ones are looked for with --hypothesis-profile=explore.
_COMMON = settings(
    deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.register_profile("taskq", _COMMON, derandomize=True)
settings.register_profile("explore", _COMMON, max_examples=2_000)
settings.load_profile("taskq")

#: A torture takes what it takes, and more on a busy machine: this only ends one that hangs.
SLOW_SECONDS: Final = 1_800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each slow test the same time, whatever its neighbours have."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS), append=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: the library is asyncio-native."""
    return "asyncio"
