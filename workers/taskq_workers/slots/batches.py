"""Batches: many jobs of a task in one call of its function, with a list of their arguments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final

from taskq import Discard, Task
from taskq.engine import kinds
from taskq_workers.slots.shipping import RemoteOutcome, error_of

if TYPE_CHECKING:
    from types import TracebackType

    from taskq_workers.slots.slots import Slots

#: A job of a batch changes this variable, so that its slot ends with it; see ``Slots.replace``.
_was_in_batch: Final[ContextVar[object]] = ContextVar("was_in_batch")


class _Gathering:
    """A batch, open or running; each member is its argument and a future of (value, error)."""

    def __init__(self) -> None:
        self.members: list[tuple[Any, asyncio.Future[Any]]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.call: asyncio.Task[None] | None = None


class Batcher:
    """Gathers the jobs of one task. Each job has its own slot, and waits there for the call.

    The call takes one place of the worker's concurrency, for any number of jobs.

    Args:
        task: the task of the jobs.
        call: calls the function with a list; in a child process, with the payloads of all jobs.
        host: the slots; a job that waits for its batch takes no place of the concurrency.
    """

    def __init__(
        self,
        task: Task[..., Any],
        call: Callable[..., Awaitable[Any]],
        host: Callable[[], Slots],
    ) -> None:
        self._task, self._call, self._host = task, call, host
        self._open: _Gathering | None = None
        self._is_draining = False

    def drain(self) -> None:
        """Run the gathered jobs now, since no further job will begin."""
        self._is_draining = True
        if self._open is not None:
            self._close(self._open)

    async def join(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the call of this job's batch, and return the job's own result."""
        _was_in_batch.set(object())
        host, loop = self._host(), asyncio.get_running_loop()
        batch = self._open
        if batch is None:
            batch = self._open = _Gathering()
            batch.timer = loop.call_later(self._task.within_seconds, self._close, batch)
        member = (*args, *kwargs.values())[0], loop.create_future()
        batch.members.append(member)
        host.park()
        if self._is_draining or len(batch.members) >= self._task.batch:
            self._close(batch)
        try:
            value, error, trace = await member[1]
        finally:
            try:
                self._leave(batch, member)
                if batch.call is not None and not batch.members and not batch.call.done():
                    # Cancelled with its last job, whose slot is busy until the call ends.
                    await asyncio.wait([batch.call])
            finally:
                host.unpark()
        if error is not None:
            raise error.with_traceback(trace)
        return value

    def _leave(self, batch: _Gathering, member: tuple[Any, asyncio.Future[Any]]) -> None:
        if member in batch.members:  # this job was cancelled
            batch.members.remove(member)
            if not batch.members:
                self._close(batch)

    def _close(self, batch: _Gathering) -> None:
        if self._open is batch:
            self._open = None
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.call is not None:
            batch.call.cancel()  # no job is left
        elif batch.members:
            # Outside a job's context: it belongs to no single job. Only a child process needs one.
            context = copy_context() if self._is_remote else self._host().context.copy()
            name = f"taskq-batch-{self._task.name}"
            run = self._run(batch)
            batch.call = asyncio.get_running_loop().create_task(run, name=name, context=context)

    @property
    def _is_remote(self) -> bool:
        return self._task.runs_in == "process"

    async def _run(self, batch: _Gathering) -> None:
        host = self._host()
        await host.take_place()
        try:
            # Members may have left before; from now on a leaving member's future is cancelled.
            members = list(batch.members)
            arguments = [value for value, _ in members]
            try:
                value = await self._call(pack(arguments) if self._is_remote else arguments)
                results = self._apart(value, len(members))
            except BaseException as error:  # noqa: BLE001 - it is that of each job
                trace: TracebackType | None = error.__traceback__
                results = [(None, error, trace)] * len(members)
        finally:
            host.give_place()
        batch.members.clear()
        for (_, future), result in zip(members, results, strict=True):
            if not future.done():
                future.set_result(result)

    def _apart(self, value: Any, count: int) -> list[tuple[Any, BaseException | None, Any]]:
        if type(value) is RemoteOutcome:
            if value.kind != kinds.SUCCESS:
                # Each job's own policy decides, unless the child could not begin the call.
                error = error_of(value) if value.kind != kinds.RELEASE else None
                return [(value if error is None else None, error, None)] * count
            import pickle  # noqa: PLC0415 - only for tasks in child processes

            bodies: list[bytes | None] = pickle.loads(value.body or b"")  # noqa: S301 - our child's
            return [(value._replace(body=body), None, None) for body in bodies]
        return [(each, None, None) for each in apart(self._task, value, count)]


def apart(task: Task[..., Any], value: Any, count: int) -> list[Any]:
    """Return the result of each job; a function may return None for all jobs.

    Raises:
        Discard: the number of results differs, which no other attempt would change.
    """
    if value is None:
        return [None] * count
    if isinstance(value, list | tuple) and len(value) == count:
        return list(value)
    size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    raise Discard(
        f"{task.name} got {count} jobs and returned a {type(value).__name__}{size}: return None, "
        f"or a list with the result of each"
    )


def pack(payloads: list[bytes]) -> bytes:
    """Return the payload of a call for all these jobs, for a child process."""
    return b"[" + b",".join(payloads) + b"]"


def unpack(task: Task[..., Any], payload: bytes) -> list[Any]:
    """Return the arguments in a payload of ``pack``."""
    arguments = []
    for each in json.loads(payload):
        args, kwargs = task.decode(json.dumps(each).encode())
        arguments.append((*args, *kwargs.values())[0])
    return arguments


def pack_results(task: Task[..., Any], value: Any, count: int) -> bytes:
    """Return the encoded result of each job, for the worker."""
    import pickle  # noqa: PLC0415 - only for tasks in child processes

    return pickle.dumps([task.encode_result(each) for each in apart(task, value, count)])
