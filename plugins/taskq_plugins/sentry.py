"""Sentry: report each failed attempt of a job as an event with the job's id, task and attempt.

::

    import sentry_sdk
    from taskq_plugins.sentry import report_to_sentry

    sentry_sdk.init(dsn="https://…")
    report_to_sentry(app)

Arguments of jobs are not sent, since they may hold secrets. The worker reports the jobs of its
child processes. The SDK is imported as a worker starts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from taskq import DeadLetter, Discard, JobContext, Retry, Snooze, TaskQ
from taskq.errors import UsageError

#: Causes of death without a report by an attempt: a killed process, or a claim not extended.
_UNSEEN: Final = frozenset({"worker lost", "lease over"})
#: Latest errors, kept until a job's death shows that its attempts are over. Each keeps its stack.
_KEPT_MAX: Final = 100


def report_to_sentry(app: TaskQ, *, retries: bool = True) -> None:
    """Report failed attempts in workers of the app. Call it before they start.

    ``Retry``, ``Snooze`` and ``Discard`` are choices of the task, not failures.

    Args:
        app: the app with the jobs.
        retries: whether failures before a retry are reported, too. If not, only the last attempt
            is, when the attempts ran out or the retry policy gave up.
    """
    kept: dict[str, Exception] = {}

    async def sentry(job: JobContext) -> AsyncIterator[None]:
        import sentry_sdk  # noqa: PLC0415 - an app that only enqueues need not have it

        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(job.task)
            scope.set_tag("taskq.task", job.task)
            scope.set_tag("taskq.queue", job.queue)
            scope.set_context("taskq", {
                "job_id": job.id, "attempt": job.attempt, "attempts_max": job.attempts_max,
            })  # fmt: skip
            kept.pop(job.id, None)
            try:
                yield
            except (Retry, Snooze, Discard):
                raise
            except Exception as error:
                if retries or 0 < job.attempts_max <= job.attempt:
                    sentry_sdk.capture_exception(error)
                else:
                    kept[job.id] = error
                    if len(kept) > _KEPT_MAX:
                        kept.pop(next(iter(kept)), None)
                raise

    def lost(letter: DeadLetter) -> None:
        error = kept.pop(letter.job_id, None)
        if error is None and letter.cause not in _UNSEEN:
            return
        import sentry_sdk  # noqa: PLC0415 - as above

        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("taskq.task", letter.task)
            scope.set_tag("taskq.queue", letter.queue)
            scope.set_context("taskq", {"job_id": letter.job_id, "attempt": letter.attempt})
            if error is not None:
                sentry_sdk.capture_exception(error)
                return
            first = letter.reason.partition("\n")[0]
            sentry_sdk.capture_message(f"{letter.task} is dead: {first}", level="error")

    app.lifespan(_sdk)
    app.middleware(sentry)
    app.on_dead(lost)


async def _sdk() -> AsyncIterator[None]:
    try:
        import sentry_sdk  # noqa: F401, PLC0415 - now, as each job would fail
    except ImportError as error:
        raise UsageError(f"Sentry needs its SDK ({error}): pip install sentry-sdk") from None
    yield
