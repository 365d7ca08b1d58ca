"""Conditions that must hold before a job runs, such as a network or free disk space.

::

    @app.task(requires=[online("api.example.com:443"), disk_free("1GB"), on_power(), unmetered()])
    async def upload(path: str) -> None: ...

While a condition does not hold, the jobs wait: nothing is written, and no attempt is used. Any
function without arguments that returns a bool is a condition as well, async or not. Equal
conditions share one probe in each worker process, and are probed only while jobs wait or run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.conditions.base import Condition, condition, disk_free, on_power
    from taskq.conditions.network import online, unmetered

__all__ = ["Condition", "condition", "disk_free", "on_power", "online", "unmetered"]

_HOMES: Final = {
    "taskq.conditions.base": "Condition condition disk_free on_power",
    "taskq.conditions.network": "online unmetered",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
