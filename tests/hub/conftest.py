"""A hub of a test, in its process or served there."""

from __future__ import annotations

import socket
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from taskq_plugins.hub.gate.listening import Listener
from taskq_plugins.hub.gate.server import Server
from tests.hub.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    """Yield a hub that is served at a port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()  # who comes before it runs waits
        server = Listener(Server(place.hub), (None, None))
        thread = Thread(target=partial(server.run, [sock]))
        thread.start()
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        thread.join()
