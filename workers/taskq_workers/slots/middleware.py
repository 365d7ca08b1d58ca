"""The app's middleware: async context managers around each attempt of any task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from time import monotonic
from typing import Any, Final

from taskq import JobContext, Task, engine, hooks
from taskq.hooks import running_job
from taskq.limits import Deadline
from taskq_workers.runs.timeouts import left_after, set_deadline, too_long
from taskq_workers.slots.shipping import RemoteOutcome, error_of

_FAILED: Final = frozenset({engine.kinds.RETRY, engine.kinds.DEATH})
#: A success without a value, in the form of an outcome from elsewhere.
_NONE: Final = RemoteOutcome(0, engine.kinds.SUCCESS, None, 0, int(engine.Cause.CALLER), (), 0.0)
#: Time for middleware to clean up after a timeout; the same as for a cancelled job.
TIDY_SECONDS: Final = 0.5


class Surrounded:
    """Puts middleware around calls.

    A worker of an app without middleware calls its tasks directly, so its jobs pay nothing.

    The task's ``timeout`` includes it: middleware that hangs before or after its ``yield`` is
    cancelled, and the attempt has failed. After a job that used up its time, each middleware gets a
    moment to clean up.
    """

    def __init__(self, middleware: Sequence[hooks.Around], entered: hooks.Resources) -> None:
        self._all = [(around, around.resources(entered)) for around in middleware]

    def wrap(
        self, call: Callable[..., Awaitable[Any]], task: Task[..., Any]
    ) -> Callable[..., Awaitable[Any]]:
        hard = task.timeout

        async def surrounded(*args: Any, **kwargs: Any) -> Any:
            job = running_job.get()
            # The outcome if middleware swallows the error, valid for a task with any result.
            outcome: Any = _NONE
            value: Any = None
            afar: BaseException | None = None
            began = monotonic()
            set_deadline(hard)
            try:
                async with AsyncExitStack() as stack:
                    for around, resources in self._all:
                        manager = around.enter(job, resources)
                        if hard is not None:
                            manager = _InTime(manager, around.name, job, hard)
                        await stack.enter_async_context(manager)
                    job.spent_seconds = monotonic() - began
                    value = await call(*args, **kwargs)
                    afar = _error_afar(value)
                    outcome = _unless(afar, value)
            except BaseException as error:
                if error is afar:
                    return value  # it already contains the outcome of the error
                raise
            job.packs = job.packs or outcome is _NONE
            return outcome

        return surrounded


class _InTime:
    """Enters and leaves one middleware within the time of the attempt."""

    def __init__(
        self, manager: AbstractAsyncContextManager[Any], name: str, job: JobContext, hard: float
    ) -> None:
        self._manager = manager
        self._name = name
        self._job = job
        self._hard = hard

    async def __aenter__(self) -> Any:
        spent = self._hard - (self._job.ends_at - monotonic())
        return await self._within(self._manager.__aenter__(), left_after(spent, self._hard))

    async def __aexit__(self, *raised: object) -> bool | None:
        leaving: Any = self._manager.__aexit__(*raised)  # type: ignore[arg-type]
        is_forgotten: bool | None = await self._within(leaving, TIDY_SECONDS)
        return is_forgotten

    async def _within(self, step: Coroutine[Any, Any, Any], least: float) -> Any:
        limit = Deadline(max(self._job.ends_at - monotonic(), least))
        try:
            async with limit:
                return await step
        except TimeoutError as error:
            if limit.expired():
                raise too_long(self._hard, f": {self._name} stands still") from error
            raise


def _error_afar(value: Any) -> BaseException | None:
    """Return the job's exception from another process, if it failed there."""
    return error_of(value) if type(value) is RemoteOutcome and value.kind in _FAILED else None


def _unless(error: BaseException | None, value: Any) -> Any:
    if error is not None:
        raise error
    return value
