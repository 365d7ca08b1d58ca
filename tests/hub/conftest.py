"""A hub of a test, in its process or served there."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from taskq_plugins.hub.server import Listener
from tests.hub.place import Place, served


@pytest.fixture
async def place(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Place]:
    """Yield a hub; its servers are closed after the test."""
    place = Place(tmp_path)
    yield place
    await place.close()


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    """Yield a hub that is served at a port of this machine."""
    with served(Listener(place.server, (None, None))) as address:
        yield address
