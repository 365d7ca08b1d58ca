"""Conditions that must hold before a job runs, for work that waits for a network or a machine.

::

    @app.task(requires=[online("api.example.com:443"), disk_free("1GB"), on_power(), unmetered()])
    async def upload(path: str) -> None: ...

While one of them does not hold, the jobs wait: nothing is written, and no attempt is burnt. Any
function without arguments that returns a bool is a condition as well, async or not. Conditions that
are equal share one probe in each worker process, and are probed only while jobs wait or run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskq.conditions.base import Condition, condition
    from taskq.conditions.machine import disk_free, on_power
    from taskq.conditions.network import online, unmetered

__all__ = ["Condition", "condition", "disk_free", "on_power", "online", "unmetered"]

_HOMES = {
    "Condition": "base",
    "condition": "base",
    "disk_free": "machine",
    "on_power": "machine",
    "online": "network",
    "unmetered": "network",
}


if not TYPE_CHECKING:  # or the type checker would take every name for one of ours

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for, as ``taskq`` itself does."""
        if name not in _HOMES:
            raise AttributeError(f"module 'taskq.conditions' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"taskq.conditions.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__]
