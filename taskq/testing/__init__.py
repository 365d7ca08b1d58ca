"""Helpers for tests of applications: no waiting, and nothing left on disk.

A ``Sandbox`` moves an app into a log in memory with a stopped clock; ``drain`` runs ready
jobs; ``assert_enqueued`` checks enqueued jobs. pytest finds the fixtures ``taskq_app`` and
``taskq_sandbox`` by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.testing.sandbox import (
        Drained,
        EnqueuedJob,
        FakeClock,
        Sandbox,
        TravelClock,
        assert_enqueued,
        assert_not_enqueued,
        drain,
        enqueued,
        use_clock,
    )

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

_HOMES: Final = {
    "taskq.testing.sandbox": (
        "Drained EnqueuedJob FakeClock Sandbox TravelClock assert_enqueued assert_not_enqueued "
        "drain enqueued use_clock"
    ),
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
