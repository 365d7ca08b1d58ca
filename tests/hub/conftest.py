"""A hub of a test, in its process or served there."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from taskq_plugins.hub.server import Listener
from tests.hub.place import Place, served


@pytest.fixture
async def place(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await place.close()


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    with served(Listener(place.server, (None, None))) as address:
        yield address
