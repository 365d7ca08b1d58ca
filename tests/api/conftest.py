from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from tests.api.recorder import Recorder, record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads the settings of whoever runs it."""
    for name in [name for name in os.environ if name.upper().startswith("TASKQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "data")


@pytest.fixture
def recorder(app: TaskQ) -> Recorder:
    return record(app)
