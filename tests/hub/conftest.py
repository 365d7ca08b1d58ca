"""A hub of a test, in its process or served there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq_plugins.hub.gate.listening import Listener
from taskq_plugins.hub.gate.server import Server
from tests.hub.place import Place, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    """Yield a hub that is served at a port of this machine."""
    with served(Listener(Server(place.hub), (None, None))) as address:
        yield address
