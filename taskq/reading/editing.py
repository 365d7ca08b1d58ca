"""Editing a job that waits: what is asked for, and asking until it stands still."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from taskq.core import durations, errors, model, parsing
from taskq.log.read.selection import waiting_job
from taskq.log.requests import Edit, Rewrite

if TYPE_CHECKING:
    from taskq.connection.connection import Connection

#: How often a job is looked at anew that others change meanwhile.
_LOOKS_MAX: Final = 100


def wanted(
    *,
    run_now: bool,
    delay: durations.Duration | None,
    eta: datetime | None,
    priority: int | None,
    queue: str | None,
) -> Callable[[Rewrite], Edit]:
    """Return the edit for these arguments.

    Raises:
        UsageError: an argument is wrong, several set the due time, or all are empty.
    """
    dues: list[tuple[int, bool]] = [(0, False)] if run_now else []
    if delay is not None:
        dues.append((durations.nanoseconds(delay, "delay"), False))
    if eta is not None:
        dues.append((durations.moment_ns(eta, "eta"), True))
    if len(dues) > 1:
        raise errors.UsageError("give one of run_now, delay and eta: a job has one due time")
    if priority is not None:
        priority = parsing.whole(priority, "priority")
        if not 0 <= priority <= model.PRIORITY_MAX:
            raise errors.UsageError(
                f"priority is {priority}, it must be 0 (last) to {model.PRIORITY_MAX} (first)"
            )
    name = None if queue is None else parsing.check_name("queue name", queue)
    if priority is None and name is None and not dues:
        raise errors.UsageError(
            "edit() takes run_now, delay, eta, priority or queue: give at least one"
        )
    return partial(Edit, priority=priority, queue=name, due=dues[0] if dues else None)


async def edit_job(connection: Connection, lsn: int, wish: Callable[[Rewrite], Edit]) -> bool:
    """Let a waiting job wait so; False if it does. Raises what ``LogHolder.edit`` does."""
    for _ in range(_LOOKS_MAX):
        port = await connection.port()
        item: Rewrite = await port.look(partial(waiting_job, job=lsn))
        port = await connection.port()
        changed = await port.edit(wish(item))
        if changed is not None:
            return changed
    raise errors.LogError(
        f"job {connection.tag.id(lsn)} in {connection.path} changed whenever it was to be edited: "
        f"try again"
    )
