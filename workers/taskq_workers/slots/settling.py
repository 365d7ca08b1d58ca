"""Send outcomes to the log: they are collected, and sent once in each turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from taskq import Delivery, JobContext, Task, engine, hooks
from taskq.engine import Settlement, kinds
from taskq.errors import AppendFailed, DuplicateKey, StaleDelivery, TaskqError, UsageError
from taskq.values import PAYLOAD_BYTES_MAX
from taskq_workers.runs.joblogs import with_lines
from taskq_workers.slots.feed import PASSING, Pause
from taskq_workers.slots.outcomes import (
    reject,
    release,
    settle_bad_result,
    settle_failure,
    unwind_steps,
)
from taskq_workers.slots.shipping import RemoteOutcome, settlement_of

Settled: TypeAlias = TaskqError | list[int | engine.Duplicate] | None


_log: Final = logging.getLogger("taskq.worker")

#: Number of outcomes that are sent at once, before the turn of the loop ends.
OUTCOMES_MAX: Final = 256
_SUCCESS: Final = kinds.SUCCESS


def as_settlement(outcome: Settlement | Delivery) -> Settlement:
    return outcome if isinstance(outcome, Settlement) else Settlement(_SUCCESS, outcome)


class Settler:
    """Collects outcomes and sends them to the log.

    Attributes:
        outcomes: outcomes of this turn of the loop; a delivery means a plain success, without a
            result and with no tie to another job. A slot appends, then calls ``flush_soon`` if
            ``scheduled`` is false, or ``flush`` if there are ``OUTCOMES_MAX`` of them.
        refused: number of outcomes to send again.
        parents: jobs with a success in ``outcomes`` that enqueues children.
        ended: number of outcomes in the log, by kind.
        observers: called with all outcomes when they are sent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        port: engine.LoopPort,
        flushed: Callable[[int], None],
        fail: Callable[[TaskqError, Delivery], None],
    ) -> None:
        self.outcomes: list[Settlement | Delivery] = []
        self.scheduled = False
        self.refused = 0
        self.parents: dict[Delivery, JobContext] = {}
        self.ended: Counter[engine.Kind] = Counter()
        self.observers: set[Callable[[list[Settlement]], None]] = set()
        self._loop = loop
        self._port = port
        self._flushed = flushed
        self._fail = fail
        self._again: list[Settlement] = []
        self._pause = Pause(loop.time)

    def add(self, settlement: Settlement) -> None:
        """Send one outcome at the end of this turn of the loop."""
        self.outcomes.append(settlement)
        self.flush_soon()

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Release deliveries that no slot has begun, without using up their attempts."""
        released = [release(delivery) for delivery in deliveries]
        # These deliveries never began, so they are not counted.
        self.ended[kinds.RELEASE] -= len(released)
        self.outcomes += released
        self.flush_soon()

    def flush_soon(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def flush(self) -> None:
        """Send the collected outcomes; a log that was closed meanwhile stops the worker."""
        if not self.outcomes:
            return
        # The list object stays the same, because slots keep its append method.
        outcomes = self.outcomes[:]
        self.outcomes.clear()
        parents, self.parents = self.parents, {}
        successes: list[Delivery] = []
        items: list[Settlement] = []
        if self.observers:
            items = [as_settlement(outcome) for outcome in outcomes]
            self._notify(items)
        else:
            for outcome in outcomes:
                if isinstance(outcome, Delivery):
                    successes.append(outcome)
                else:
                    items.append(outcome)
        self._count(items)
        self.ended[_SUCCESS] += len(successes)
        try:
            if successes:
                self._port.succeed_soon(successes, self._on_error)
            if parents:
                items = self._settle_parents(items, parents)
            for part in _parts(items):
                self._port.settle_soon(part, self._on_error)
        except TaskqError as error:
            for outcome in [*map(as_settlement, successes), *items]:
                self._on_error(outcome, error)
        self._flushed(len(outcomes))

    async def settle_all(self) -> None:
        """Send all outcomes and wait until the log has them; refused ones are sent again once."""
        self.flush()
        await self._settle_what_is_left()
        # Earlier outcomes have been answered now, some of them with errors.
        await self._settle_what_is_left()

    def surrender(self) -> list[Settlement]:
        items = [*map(as_settlement, self.outcomes), *self._again]
        self.outcomes.clear()
        self._again = []
        self.refused = 0
        return items

    async def _settle_what_is_left(self) -> None:
        items = self.surrender()
        self._count(items)
        for part in _parts(items):
            for settlement, answer in zip(part, await self._port.settle(part), strict=True):
                if isinstance(answer, TaskqError):
                    self.ended[settlement.kind] -= 1
                    self._report(settlement, answer)

    def _notify(self, items: list[Settlement]) -> None:
        for observer in self.observers:
            observer(items)

    def _count(self, items: list[Settlement]) -> None:
        # Only exceptions are counted: a counter of all would cost a job as much as its list entry.
        others = [item[0] for item in items if item[0] is not _SUCCESS]
        self.ended[_SUCCESS] += len(items) - len(others)
        if others:
            self.ended.update(others)

    def _flush_scheduled(self) -> None:
        self.scheduled = False
        self.flush()

    def _settle_parents(
        self, items: list[Settlement], parents: dict[Delivery, JobContext]
    ) -> list[Settlement]:
        """Send successes with children, whose ids are answered; return the other outcomes."""
        others = []
        for settlement in items:
            job = parents.get(settlement.delivery)
            if job is None:
                others.append(settlement)
            else:
                future = self._port.settle([settlement])
                future.add_done_callback(partial(self._on_settled, settlement, job))
        return others

    def _on_settled(
        self, settlement: Settlement, job: JobContext, done: asyncio.Future[list[Settled]]
    ) -> None:
        if done.cancelled():
            return
        error = done.exception()
        answer = error if isinstance(error, TaskqError) else done.result()[0]
        if isinstance(answer, DuplicateKey):
            # A child was refused, and so its parent's success: this attempt has failed.
            self.ended[settlement.kind] -= 1
            task = job.app.tasks[settlement.delivery.task]
            self.add(settle_failure(task, settlement.delivery, answer))
        elif isinstance(answer, TaskqError):
            self._on_error(settlement, answer)
        elif answer is not None:
            job.resolve(answer)

    def _on_error(self, settlement: Settlement, error: TaskqError) -> None:
        self.ended[settlement.kind] -= 1
        if isinstance(error, UsageError) and settlement.kind is not kinds.DEATH:
            # Its result or its children do not fit the log, in any attempt.
            self.add(reject(settlement.delivery, f"{type(error).__name__}: {error}"))
        elif isinstance(error, PASSING):
            self._retry_later(settlement, error)
        else:
            self._report(settlement, error)
            if not isinstance(error, StaleDelivery | UsageError):
                self._fail(error, settlement.delivery)

    def _report(self, settlement: Settlement, error: TaskqError) -> None:
        _log.warning(
            "job %s: its outcome (%s) was not kept: %s",
            settlement.delivery.job_id,
            settlement.kind.name.lower(),
            error,
        )

    def _retry_later(self, settlement: Settlement, error: TaskqError) -> None:
        if not self._again:
            seconds = self._pause.next()
            _log.warning("outcomes wait %.1f s, because the log refused them: %s", seconds, error)
            self._loop.call_later(seconds, self._retry)
        self._again.append(settlement)
        self.refused += 1

    def _retry(self) -> None:
        items, self._again = self._again, []
        self.refused -= len(items)
        self.outcomes += items
        self.flush()


def _parts(items: list[Settlement]) -> Iterator[list[Settlement]]:
    """Split outcomes into requests: a frame has room for a few of the largest results."""
    start = size = 0
    for number, (_, _, body, _, _, children, _, lines) in enumerate(items):
        own = len(body or b"") + len(lines) + sum(len(child[1]) for child in children)
        if size + own > PAYLOAD_BYTES_MAX and number > start:
            yield items[start:number]
            start, size = number, 0
        size += own
    if items:
        yield items[start:]


T = TypeVar("T")


async def settle_success(
    connection: hooks.Connection,
    task: Task[..., Any],
    delivery: Delivery,
    job: JobContext,
    value: object,
) -> Settlement:
    """Return the success of a job that ran, its result stored as task, queue and log are set.

    ``value`` is its return value, or its outcome in a child process. Waits as long as the disk
    refuses a file; the job's slot is taken until then.
    """
    settlement = await _settled(connection, task, delivery, job, value)
    return with_lines(settlement, job) if task.keep_log else settlement


async def _settled(
    connection: hooks.Connection,
    task: Task[..., Any],
    delivery: Delivery,
    job: JobContext,
    value: object,
) -> Settlement:
    if type(value) is RemoteOutcome:
        if value.kind != kinds.SUCCESS:
            return settlement_of(value, delivery)
        # Jobs enqueued here by middleware come first: it waits for their ids.
        children = [connection.packer.loose(pending.call) for pending, *_ in job.children or ()]
        return await store_success(
            connection, task, delivery, value.body, [*children, *value.children]
        )
    steps = getattr(job, "durable", None)
    problem = None if steps is None else steps.problem()
    if problem is not None:
        return await unwind_steps(job, settle_failure(task, delivery, problem))
    try:
        body = task.encode_result(value)
    except BaseException as error:  # noqa: BLE001 - a result may raise what it likes when read
        return settle_bad_result(task, delivery, value, error)
    loose = [connection.packer.loose(pending.call) for pending, *_ in job.children or ()]
    return await store_success(connection, task, delivery, body, loose)


async def store_success(
    connection: hooks.Connection,
    task: Task[..., Any],
    delivery: Delivery,
    body: bytes | None,
    children: list[hooks.Loose],
) -> Settlement:
    """Return the success of a job with an encoded result; waits as ``settle_success`` does."""
    flags = 0
    if body is not None:
        given, what = body, f"the result of job {delivery.job_id}"
        packing = task.result_packing(delivery.queue)
        body, flags = await _kept(lambda: connection.packer.result(given, packing, what))
    items: list[engine.Item] = []
    if children:
        items = await _kept(lambda: connection.packer.items(children))
    return Settlement(kinds.SUCCESS, delivery, body, children=tuple(items), flags=flags)


async def _kept(store: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``store``, retried until the disk accepts the file."""
    pause = Pause(asyncio.get_running_loop().time)
    while True:
        try:
            return await store()
        except AppendFailed as error:
            seconds = pause.next()
            _log.warning("a result waits %.1f s, because the disk refused it: %s", seconds, error)
            await asyncio.sleep(seconds)
