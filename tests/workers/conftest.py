from __future__ import annotations

import pytest

from tests.workers.fakes import FakeApp


@pytest.fixture
async def fake() -> FakeApp:
    """Return an app whose log is in memory; made within the loop."""
    return FakeApp()
