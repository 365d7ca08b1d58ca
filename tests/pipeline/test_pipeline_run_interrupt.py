from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from taskq_plugins.spark.run.command import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 30


def interrupted(stop: Callable[[], None], then: Callable[[threading.Event], None]) -> None:
    with interruptible(stop) as asked:
        signal.raise_signal(signal.SIGINT)
        then(asked)


def test_ctrl_c_stops_the_work_and_is_raised_in_place_of_what_that_made_fail() -> None:
    before = signal.getsignal(signal.SIGINT)
    stopped = threading.Event()

    def fail(asked: threading.Event) -> None:
        assert asked.is_set()
        assert stopped.wait(PATIENCE_SECONDS)
        raise RuntimeError("job cancelled")

    with pytest.raises(KeyboardInterrupt):
        interrupted(stopped.set, fail)
    assert signal.getsignal(signal.SIGINT) is before


def test_work_that_ends_all_the_same_is_interrupted_behind_it() -> None:
    done: list[threading.Event] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: None, done.append)
    assert done


def test_a_second_ctrl_c_waits_for_nothing() -> None:
    def again(asked: threading.Event) -> None:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: None, again)


def test_errors_without_ctrl_c_are_as_they_are() -> None:
    with pytest.raises(ValueError, match="x"), interruptible(lambda: None):
        raise ValueError("x")
