"""Results, and jobs that join them, that are compressed or go to files before the log has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskq.engine import Settlement, kinds
from taskq.errors import AppendFailed
from taskq_workers.runs.joblogs import with_lines
from taskq_workers.slots.outcomes import settle_bad_result, settle_failure, unwound
from taskq_workers.slots.pace import Pause
from taskq_workers.slots.shipping import Ended, settlement_of

if TYPE_CHECKING:
    from taskq import Delivery, JobContext, Task
    from taskq.engine import Item
    from taskq.hooks import Connection, Loose

T = TypeVar("T")

_log: Final = logging.getLogger("taskq.worker")


async def settle_success(
    connection: Connection, task: Task[..., Any], delivery: Delivery, job: JobContext, value: object
) -> Settlement:
    """Return the success of a job that ran, its result stored as task, queue and log say.

    ``value`` is what it returned, or how it ended in a child process. Waits for as long as the disk
    refuses a file; the job's slot is taken until then.
    """
    settlement = await _settled(connection, task, delivery, job, value)
    return with_lines(settlement, job) if task.keep_log else settlement


async def _settled(
    connection: Connection, task: Task[..., Any], delivery: Delivery, job: JobContext, value: object
) -> Settlement:
    if type(value) is Ended:
        if value.kind != kinds.SUCCESS:
            return settlement_of(value, delivery)
        # What middleware has enqueued here comes first: it waits for the ids.
        children = [connection.packer.loose(pending.call) for pending, *_ in job.children or ()]
        return await stored_success(
            connection, task, delivery, value.body, [*children, *value.children]
        )
    steps = getattr(job, "durable", None)
    problem = None if steps is None else steps.problem()
    if problem is not None:
        return await unwound(job, settle_failure(task, delivery, problem))
    try:
        body = task.encode_result(value)
    except Exception as error:  # noqa: BLE001 - a result may raise what it likes when read
        return settle_bad_result(task, delivery, value, error)
    loose = [connection.packer.loose(pending.call) for pending, *_ in job.children or ()]
    return await stored_success(connection, task, delivery, body, loose)


async def stored_success(
    connection: Connection,
    task: Task[..., Any],
    delivery: Delivery,
    body: bytes | None,
    children: list[Loose],
) -> Settlement:
    """Return the success of a job with an encoded result; waits as ``settle_success`` does."""
    flags = 0
    if body is not None:
        given, what = body, f"the result of job {delivery.job_id}"
        packing = task.result_packing(delivery.queue)
        body, flags = await _kept(lambda: connection.packer.result(given, packing, what))
    items: list[Item] = []
    if children:
        items = await _kept(lambda: connection.packer.items(children))
    return Settlement(kinds.SUCCESS, delivery, body, children=tuple(items), flags=flags)


async def _kept(store: Callable[[], Awaitable[T]]) -> T:
    """Return what ``store`` gives, once the disk lets it."""
    pause = Pause(asyncio.get_running_loop().time)
    while True:
        try:
            return await store()
        except AppendFailed as error:
            seconds = pause.next()
            _log.warning("a result waits %.1f s, because the disk refused it: %s", seconds, error)
            await asyncio.sleep(seconds)
