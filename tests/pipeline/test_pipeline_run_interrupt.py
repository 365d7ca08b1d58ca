from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from taskq_plugins.spark.run.interrupting import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 30


def interrupted(stop: Callable[[], None], then: Callable[[threading.Event], None]) -> None:
    """Work that is interrupted by Ctrl-C, and then does something."""
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


def test_a_batch_that_begins_behind_the_stop_is_not_told_to_spark_as_one_that_ran() -> None:
    """Else the checkpoint would be ahead of the tables, which lack its records."""
    from taskq_plugins.spark.run.stream import _Sink, _Stopped  # noqa: PLC0415 - imports pyspark

    nothing: Any = None
    sink = _Sink(nothing, nothing, nothing)
    sink.stop()
    with pytest.raises(_Stopped):
        sink(nothing, 7)


def test_a_run_whose_java_is_gone_ends_behind_the_batch_that_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its writer is closed under it, and the interpreter ends while it is in native code."""
    from taskq_plugins.spark.run import stream  # noqa: PLC0415 - imports pyspark

    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def commit(*_: object, **__: object) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        done.set()

    class Query:
        @property
        def isActive(self) -> bool:  # noqa: N802 - pyspark's name
            # The batch is still at work for a while after this is known.
            threading.Timer(0.1, goes_on.set).start()
            raise ConnectionRefusedError

    monkeypatch.setattr(stream, "fold_batch", commit)
    monkeypatch.setattr(stream, "batch_of", lambda *_: None)
    nothing: Any = mock.Mock()
    sink = stream._Sink(nothing, nothing, nothing)
    thread = threading.Thread(target=sink, args=(nothing, 7))
    thread.start()
    assert begun.wait(PATIENCE_SECONDS)
    query: Any = Query()
    with pytest.raises(ConnectionRefusedError):
        stream._stop(query, sink)
    assert done.is_set()
    thread.join()
