"""What the tasks of a worker are held by: groups, and spans that somebody may end.

asyncio's own, which a start has loaded anyway: anyio takes 16 ms, and brings OpenSSL along. They
cancel a task once, so whoever cleans up then may await; ``finished`` is for what must not be cut.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

T = TypeVar("T")


class Status(Protocol):
    """What a service tells its starter by."""

    def started(self) -> None:
        """Say that it works now."""
        ...


class Begun:
    """The starter's end of it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def started(self) -> None:
        """Let whoever waits go on."""
        if not self.answer.done():
            self.answer.set_result(None)


class Group(asyncio.TaskGroup):
    """Tasks that end before the block is left, and that may be told to."""

    def __init__(self) -> None:
        super().__init__()
        self._own: set[asyncio.Task[Any]] = set()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not GeneratorExit:  # or their loop is gone, and can end none of them
            await super().__aexit__(kind, error, trace)

    def start_soon(
        self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str | None = None
    ) -> asyncio.Task[None]:
        """Run this beside."""
        task = self.create_task(work(*args), name=name)
        self._own.add(task)
        task.add_done_callback(self._own.discard)
        return task

    async def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run this beside, and return once it says that it works; raises what kept it from that."""
        begun = Begun()

        async def run() -> None:
            try:
                await work(*args, task_status=begun)
            except BaseException as error:
                if begun.answer.done() or isinstance(error, asyncio.CancelledError):
                    raise
                begun.answer.set_exception(error)
            finally:
                begun.started()

        task = self.start_soon(run, name=getattr(work, "__qualname__", None))
        try:
            await begun.answer
        except asyncio.CancelledError:
            task.cancel()
            raise

    def cancel(self) -> None:
        """Cancel them; the block ends when they have."""
        for task in self._own:
            task.cancel()


class Scope:
    """A block that ends when its time is over, or somebody cancels it; then it goes on behind it.

    Args:
        seconds: how long; None for ever.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self._is_cancelled = False

    async def __aenter__(self) -> Self:
        timeout = asyncio.timeout(0 if self._is_cancelled else self._seconds)
        self._timeout = await timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        timeout, self._timeout = self._timeout, None
        assert timeout is not None
        try:
            await timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            return True
        return False

    def cancel(self) -> None:
        """End it now; legal before it began, and afterwards."""
        self._is_cancelled = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())


async def sleep_forever() -> None:
    """Wait to be cancelled."""
    await asyncio.get_running_loop().create_future()


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return what comes of the work; a cancellation meanwhile is raised when it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # whoever was cancelled has no use for it
        raise
