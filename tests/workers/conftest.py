import logging
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.workers.fakes import FakeApp

Listen: TypeAlias = Callable[[Callable[[str], object]], None]


@pytest.fixture
async def fake() -> FakeApp:
    """Return an app whose log is in memory; made within the loop."""
    return FakeApp()


@pytest.fixture
def on_log(monkeypatch: pytest.MonkeyPatch) -> Listen:
    """Calls a function with each message of a worker, on the thread that logs it."""

    def listen(hear: Callable[[str], object]) -> None:
        handler, logger = logging.Handler(), logging.getLogger("taskq.worker")
        monkeypatch.setattr(handler, "emit", lambda record: hear(record.getMessage()))
        monkeypatch.setattr(logger, "handlers", [handler])

    return listen
