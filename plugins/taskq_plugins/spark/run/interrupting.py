"""Ctrl-C while Spark works.

pyspark's own handler speaks to Java from within whatever the main thread is saying to Java, which
ends in pages of tracebacks. Here the signal is noted, a thread of its own stops the work, and the
main thread raises when its call has come back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """Inside, Ctrl-C sets the event and calls ``stop`` in a thread; a second one raises at once.

    Raises:
        KeyboardInterrupt: at the end, and in place of what the stopping made fail.
    """
    asked = threading.Event()

    def note(_number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        threading.Thread(target=stop, name="taskq-interrupt", daemon=True).start()

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if is_main else None
    try:
        yield asked
    except Exception:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt
