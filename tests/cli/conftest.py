"""A task log with a job in every state that is easy to reach, made through the public API."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.helpers import Sample
from tests.cli.logs import fill_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Made once: no read command changes it, as one of the tests makes sure."""
    path = tmp_path_factory.mktemp("sample") / "queue"
    return Sample(path, asyncio.run(fill_sample(path)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a directory for a log that a test fills by itself."""
    return tmp_path / "log"
