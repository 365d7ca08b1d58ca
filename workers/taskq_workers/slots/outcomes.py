"""Turn the result or error of a task into one settlement for each delivery."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from time import monotonic
from types import CoroutineType
from typing import Any, Final

from taskq import Delivery, Discard, JobContext, Retry, Snooze, Task, TaskQ, engine, errors, retry
from taskq.engine import Cause, Settlement, kinds
from taskq.errors import (
    CompressionUnavailable,
    InvalidCall,
    InvalidStep,
    LogDamaged,
    PayloadTooLarge,
)
from taskq.hooks import encode_reason, off_loop
from taskq.retry import Die
from taskq.values import SECOND_NS, failures, find_error, is_a, members, spoken, wish_in
from taskq_workers.runs import reasons
from taskq_workers.runs.executors import NoThread
from taskq_workers.runs.reasons import with_note

_log: Final = logging.getLogger("taskq.worker")

#: Errors of the log or the system, not of the task: they use up no attempt.
ENGINE_ERRORS: Final = (
    NoThread,
    errors.AppendFailed,
    errors.LogLocked,
    errors.LogFailed,
    errors.LogClosed,
    errors.OutcomeUnknown,
)
#: Delay of a job after such an error.
AGAIN_SECONDS: Final = 5
#: Delay of a job whose package this worker lacks, until any worker may claim it.
ELSEWHERE_SECONDS: Final = 60
#: Delay of a job with arguments that do not fit, before any worker may claim it: the first and the
#: longest, each twice the one before. A worker gives the job back for ten minutes.
_MISFIT_NS: Final = 5 * SECOND_NS
_MISFIT_MAX_NS: Final = 60 * SECOND_NS
OVERLAP_SECONDS: Final = 600.0
_MISFITS_MAX: Final = 10_000


def settle_failure(task: Task[..., Any], delivery: Delivery, error: BaseException) -> Settlement:
    """Return the settlement of a job whose function raised.

    ``Retry``, ``Snooze`` and ``Discard`` are obeyed. An error of the log uses up no attempt. Both
    are also found in groups and as causes. Any other error is settled by the task's retry policy,
    whose ``decide`` may return such a decision. A call that its function refused (TypeError) is
    rejected, since it would be refused each time.
    """
    wish = wish_in(error)
    if wish is not None:
        return _granted(task, delivery, error, wish)
    if find_error(error, *ENGINE_ERRORS) is not None:
        _log.warning(
            "job %s begins again, which is not its fault: %s",
            delivery.job_id, reasons.summary(error),
        )  # fmt: skip
        return _snooze(task, delivery, Snooze(AGAIN_SECONDS), reasons.summary(error))
    reason = reasons.describe(error)
    if _is_invalid(error) or (is_a(error, TypeError) and reasons.raised_by_call(error)):
        return reject(delivery, reason)
    wish = _asked(task, delivery, error)
    if isinstance(wish, Snooze):
        return _snooze(task, delivery, wish, reason)
    if isinstance(wish, Discard):
        note = f"discarded: {wish.reason}" if wish.reason else "discarded"
        return reject(delivery, reasons.with_note(reason, note))
    return _by_policy(task, delivery, error if wish is None else wish, encode_reason(reason))


def _granted(
    task: Task[..., Any], delivery: Delivery, error: BaseException, wish: Retry | Snooze | Discard
) -> Settlement:
    is_alone = members(error) == (wish,)
    if is_a(wish, Retry):
        return _by_policy(task, delivery, wish, encode_reason(reasons.describe(error)))
    if isinstance(wish, Snooze):
        return _snooze(task, delivery, wish, "" if is_alone else reasons.describe(error))
    head = reasons.summary(wish)
    return reject(delivery, head if is_alone else reasons.describe(error, head))


def _by_policy(
    task: Task[..., Any], delivery: Delivery, error: BaseException, body: bytes
) -> Settlement:
    decision = _decide(task, delivery, error)
    if isinstance(decision, Die):
        cause = Cause.EXHAUSTED if decision.exhausted else Cause.REJECTED
        return Settlement(kinds.DEATH, delivery, body, 0, cause)
    return Settlement(kinds.RETRY, delivery, body, decision.delay_ns)


def _is_invalid(error: BaseException) -> bool:
    """Return whether an error, alone or in a group, is a step that is invalid in any attempt."""
    return any(is_a(item, InvalidStep) for item in failures(error))


def settle_unreadable(delivery: Delivery, error: BaseException) -> Settlement | None:
    """Return the settlement of a job with unreadable arguments; None: its policy decides.

    Damaged arguments stay damaged: the job is dead. If they do not fit the current function, it
    is dead, too, unless ``Overlap`` finds a worker of another version. A job that only this process
    cannot decompress waits for another worker, and uses up no attempt.
    """
    if is_a(error, CompressionUnavailable):
        reason = encode_reason(reasons.summary(error))
        return Settlement(kinds.RELEASE, delivery, reason, ELSEWHERE_SECONDS * SECOND_NS)
    if is_a(error, InvalidCall):
        body = encode_reason(reasons.describe(error))
        # The delay marks it for ``Overlap``, also when it comes from a child process.
        return Settlement(kinds.DEATH, delivery, body, 1, Cause.REJECTED)
    if is_a(error, (PayloadTooLarge, LogDamaged)):
        return reject(delivery, reasons.summary(error))
    return None


class Overlap:
    """Gives back jobs whose arguments do not fit this version of their task, but may fit another.

    Two versions run side by side during a deployment. For ten minutes a job is given back while
    another worker of its queue knows its task; then it is dead.
    """

    def __init__(self) -> None:
        #: by log and number of a job: when it was first claimed here, and how often
        self._met: dict[tuple[str, int], tuple[float, int]] = {}

    async def judge(self, app: TaskQ, death: Settlement) -> Settlement:
        delivery = death.delivery
        job = delivery.tag, delivery.job
        since, times = self._met.get(job, (monotonic(), 0))
        self._met[job] = since, times + 1
        if len(self._met) > _MISFITS_MAX:
            del self._met[next(iter(self._met))]
        if monotonic() - since < OVERLAP_SECONDS:
            workers = await off_loop(app.store().live_workers)
            servings = [serving for worker in workers for serving in worker.serves]
            if sum(each.takes(delivery.queue, delivery.task) for each in servings) > 1:
                delay_ns = min(_MISFIT_NS << min(times, 8), _MISFIT_MAX_NS)
                return Settlement(kinds.RELEASE, delivery, death.body, delay_ns)
        self._met.pop(job, None)
        return death


def settle_suspended(
    job: JobContext | None, delivery: Delivery, error: BaseException
) -> Settlement | None:
    """Return the release of a job whose run ended in order to wait; None after any other end.

    A run that a failed log has ended is given back without using up its attempt. A step that
    cannot wait is invalid and kills the job.
    """
    steps = getattr(job, "durable", None)
    if steps is None:
        return None
    if steps.broken is not None:
        return reject(delivery, reasons.describe(steps.broken))
    waits = steps.waits_after(error)
    if waits is None:
        return None
    if not waits:
        return release(delivery)
    return Settlement(kinds.RELEASE, delivery, waits, 0, Cause.WAITS)


async def unwind_steps(job: JobContext | None, settlement: Settlement) -> Settlement:
    """Undo the steps of a job first, if needed; return its settlement."""
    steps = getattr(job, "durable", None)
    is_end = settlement.kind in (kinds.DEATH, kinds.CANCEL)
    if steps is None or not steps.unwinds(is_end=is_end):
        return settlement
    reason = (settlement.body or b"").decode("utf-8", "replace") if is_end else ""
    ended = await steps.undo(int(settlement.kind), int(settlement.cause), reason)
    delivery = settlement.delivery
    if not ended.kind:
        if not ended.body:  # the log failed
            return release(delivery)
        return Settlement(kinds.RELEASE, delivery, ended.body, 0, Cause.WAITS)
    return Settlement(ended.kind, delivery, encode_reason(ended.body), 0, Cause(ended.cause))


def settle_bad_result(
    task: Task[..., Any], delivery: Delivery, value: object, error: BaseException
) -> Settlement:
    """Settle a job as dead if its result cannot be stored: another attempt would not help.

    A lack of memory is not the result's fault, and is retried.
    """
    if is_a(error, MemoryError):
        return settle_failure(task, delivery, error)
    if is_a(value, Awaitable):
        if is_a(value, CoroutineType):
            value.close()
        return reject(
            delivery,
            f"{task.name} returned a {type(value).__name__} and is no async function: "
            f"declare it with async def, or wait for the value within it",
        )
    return reject(delivery, f"the result cannot be kept: {reasons.summary(error)}")


def settle_slot_error(delivery: Delivery, error: BaseException) -> Settlement:
    """Retry a job whose slot or policy failed: it uses up an attempt, since it may have run."""
    body = encode_reason(reasons.describe(error))
    if 0 < delivery.attempts_max <= delivery.attempt:
        return Settlement(kinds.DEATH, delivery, body, 0, Cause.EXHAUSTED)
    return Settlement(kinds.RETRY, delivery, body, AGAIN_SECONDS * SECOND_NS)


def reject(delivery: Delivery, reason: str) -> Settlement:
    return Settlement(kinds.DEATH, delivery, encode_reason(reason), 0, Cause.REJECTED)


def release(delivery: Delivery) -> Settlement:
    """Give back a job that this worker did not finish, without using up its attempt."""
    return Settlement(kinds.RELEASE, delivery, None, 0, Cause.DRAIN)


def _snooze(task: Task[..., Any], delivery: Delivery, wish: Snooze, reason: str = "") -> Settlement:
    body = encode_reason(reason) if reason else None
    delay_ns = task.retry.bounded_ns(wish.delay_ns)
    return Settlement(kinds.RELEASE, delivery, body, delay_ns, Cause.SNOOZE)


def _asked(
    task: Task[..., Any], delivery: Delivery, error: BaseException
) -> Retry | Snooze | Discard | None:
    """Return the decision of the policy's ``decide`` about an error."""
    try:
        return task.retry.wish(error, delivery.attempt)
    except BaseException:  # noqa: BLE001 - it is the user's code
        # The job's own error matters more, and the rest of the policy settles it.
        _log.exception("decide of %s failed on job %s: as without it", task.name, delivery.job_id)
        return None


def _decide(task: Task[..., Any], delivery: Delivery, error: BaseException) -> retry.Decision:
    from random import random  # noqa: PLC0415 - most jobs succeed

    return task.retry.decide(
        delivery.attempt,
        error,
        random(),  # noqa: S311 - jitter, no secret
        delivery.attempts_max,
    )


# The ``max_age`` of a retry policy: jobs that are too old for another attempt.


async def unless_too_old(
    port: engine.LoopPort, task: Task[..., Any], settlement: Settlement
) -> Settlement:
    """Return the settlement, or the job's death if its next attempt would be after ``max_age``.

    Only the log knows a job's age, so it is looked up, and only for tasks with a ``max_age``.
    """
    if not runs_again(settlement):
        return settlement
    delivery = settlement.delivery
    try:
        age = await port.age_ns(delivery.job)
    except BaseException:  # noqa: BLE001 - the attempt's own outcome must reach the log
        _log.warning("the age of job %s could not be read: it is tried again", delivery.job_id)
        return settlement
    if not task.retry.is_too_old(age, settlement.delay_ns):
        return settlement
    limit = spoken(round((task.retry.max_age_seconds or 0) * SECOND_NS))
    note = f"too old: enqueued {spoken(age)} ago, and max_age is {limit}"
    reason = with_note((settlement.body or b"").decode("utf-8", "replace"), note)
    return Settlement(kinds.DEATH, delivery, encode_reason(reason), 0, Cause.EXHAUSTED)


def runs_again(settlement: Settlement) -> bool:
    """Return whether the job will run again because its task asked for it."""
    if settlement.kind is kinds.RELEASE:
        return settlement.cause is Cause.SNOOZE
    return settlement.kind is kinds.RETRY
