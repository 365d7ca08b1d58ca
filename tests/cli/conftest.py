"""A task log with a job in every state that is easy to reach, made through the public API."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.helpers import Sample
from tests.cli.logs import fill_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("sample") / "queue"
    return Sample(path, asyncio.run(fill_sample(path)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"
