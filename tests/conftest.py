from __future__ import annotations

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


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: the library is asyncio-native."""
    return "asyncio"
