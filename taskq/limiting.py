"""The limits that a task declares, as the log wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.errors import UsageError
from taskq.core.parsing import whole
from taskq.core.rates import CONCURRENCY_MAX, Limit, rate_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskq.decorate import TaskChoices
    from taskq.tasks import Task


def limit_of(name: str, choices: TaskChoices) -> Limit | None:
    """What ``@task(concurrency=, rate=)`` says; None if it says nothing.

    Raises:
        UsageError: one of them is out of its range, or a key is given with none of the two.
    """
    concurrency = choices.get("concurrency")
    rate = choices.get("rate")
    if concurrency is not None:
        concurrency = whole(concurrency, f"{name}: concurrency")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise UsageError(
                f"{name}: concurrency is {concurrency}, it must be 1 to {CONCURRENCY_MAX}, or "
                f"left out for no limit"
            )
    if concurrency is None and rate is None:
        if choices.get("concurrency_key") is not None:
            raise UsageError(
                f"{name}: concurrency_key is given without concurrency or rate: add one of them"
            )
        return None
    return Limit(
        concurrency=concurrency or 0, rate=None if rate is None else rate_of(rate), scope=name
    )


def limits_of(tasks: Mapping[str, Task[..., object]]) -> dict[str, Limit] | None:
    """The limits of an app's tasks by all of their names; None if there is none."""
    return {name: task.limit for name, task in tasks.items() if task.limit is not None} or None
