"""Testing what enqueues and what runs, without waiting and without leaving anything behind.

For tests of applications: a ``Sandbox`` moves an app into a log in memory with a clock that stands
still; ``drain`` runs what is ready; ``assert_enqueued`` looks at what was enqueued. pytest finds
the fixtures ``taskq_app`` and ``taskq_sandbox`` by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskq.testing.asserts import (
        EnqueuedJob,
        assert_enqueued,
        assert_not_enqueued,
        enqueued,
    )
    from taskq.testing.clock import FakeClock, TravelClock, use_clock
    from taskq.testing.draining import Drained, drain
    from taskq.testing.sandbox import Sandbox

__all__ = [
    "Drained",
    "EnqueuedJob",
    "FakeClock",
    "Sandbox",
    "TravelClock",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "use_clock",
]

_HOMES = {
    "Drained": "draining",
    "EnqueuedJob": "asserts",
    "FakeClock": "clock",
    "Sandbox": "sandbox",
    "TravelClock": "clock",
    "assert_enqueued": "asserts",
    "assert_not_enqueued": "asserts",
    "drain": "draining",
    "enqueued": "asserts",
    "use_clock": "clock",
}


if not TYPE_CHECKING:  # or the type checker would take every name for one of ours

    def __getattr__(name: str) -> Any:
        """Import what is asked for, and no more."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value
