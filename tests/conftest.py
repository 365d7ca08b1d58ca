from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A deadline per example would fail on a busy machine; a test's own timeout is pytest's business.
settings.register_profile(
    "taskq", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("taskq")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: the library is asyncio-native."""
    return "asyncio"
