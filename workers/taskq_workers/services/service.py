"""What runs beside the jobs of a worker, each in the worker's task group until that cancels it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq.engine import Store


class Service(Protocol):
    """A part: a scheduler, the gates, a listener for cancels, a watch over the loop."""

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        """Do its work until it is cancelled.

        What it raises before it called ``task_status.started()`` keeps the worker from starting;
        what it raises later stops the worker, after its drain. It may end by itself.
        """
