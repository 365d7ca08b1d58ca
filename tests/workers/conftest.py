from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from tests.workers.fakes import FakeApp

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads the settings of whoever runs it."""
    for name in [name for name in os.environ if name.upper().startswith("TASKQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    """An app on a real log."""
    return TaskQ(tmp_path / "data")


@pytest.fixture
async def fake() -> FakeApp:
    """An app whose log is in memory; made within the loop."""
    return FakeApp()
