"""A disk that runs full: how the tests of it are set up, and how they look at it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Final

from taskq.core.model import State
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import Op, Request
from tests.log.world import PATH, World

MIN_FREE: Final = 100_000
RESERVE: Final = 40_000
RESERVE_PATH: Final = f"{PATH}/reserve"
CONFIG: Final = LogConfig(
    segment_bytes=SEGMENT_BYTES_MIN, min_free_bytes=MIN_FREE, reserve_bytes=RESERVE
)


def request(op: Op, operand: Any) -> tuple[Request, Future[Any]]:
    future: Future[Any] = Future()
    return (op, None, future, operand), future


def reserve_size(world: World) -> int:
    paths = world.machine.paths()
    return len(world.machine.content(RESERVE_PATH)) if RESERVE_PATH in paths else 0


def state(world: World, job: int) -> State:
    view = world.view(job)
    assert view is not None
    return view.state
