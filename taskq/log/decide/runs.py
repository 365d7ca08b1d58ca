"""Plain jobs that many callers enqueue at once: one request, one answer.

Most batches are the jobs of one task, from callers of one event loop who each await their answer.
Taken as columns they cost a tenth of single requests, so they stay together from the mailbox to the
answers, and part only where one of them may harm the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from typing import Any, Final

from taskq import _native as native
from taskq.core.records import PACKED
from taskq.log.requests import EnqueueSpec, Item, Plain

#: About what a record takes besides its payload.
_RECORD_BYTES: Final = 48
#: Fields of a job in a line: spec, body and future, one after the other.
LINE_WIDTH: Final = 3


class Run:
    """Jobs without options, and their callers' futures; behaves like a future itself.

    Attributes:
        specs, bodies, futures: one of each for each job.
        size: about how many bytes they add to the log.
    """

    __slots__ = ("bodies", "futures", "size", "specs")

    def __init__(self, specs: list[EnqueueSpec], bodies: list[bytes], futures: list[Any]) -> None:
        self.specs = specs
        self.bodies = bodies
        self.futures = futures
        self.size = sum(map(len, bodies)) + _RECORD_BYTES * len(bodies)

    def drop_withdrawn(self) -> None:
        """Leave out the jobs whose callers gave up in time."""
        gone = [future.done() for future in self.futures]
        if any(gone):
            left = [number for number, is_gone in enumerate(gone) if not is_gone]
            self.specs = [self.specs[number] for number in left]
            self.bodies = [self.bodies[number] for number in left]
            self.futures = [self.futures[number] for number in left]

    def by_spec(self) -> Iterator[tuple[EnqueueSpec, list[bytes]]]:
        """Yield the bodies of the jobs that stand side by side and have the same spec."""
        specs, bodies = self.specs, self.bodies
        start = 0
        while start < len(specs):
            spec, end = specs[start], len(specs)
            if start or specs.count(spec) != end:
                end = start + 1
                while end < len(specs) and specs[end] is spec:
                    end += 1
            yield spec, bodies[start:end]
            start = end

    def singles(self) -> Iterator[Run]:
        for spec, body, future in zip(self.specs, self.bodies, self.futures, strict=True):
            yield Run([spec], [body], [future])

    # -- as a future ------------------------------------------------------------------------------

    def done(self) -> bool:
        return all(future.done() for future in self.futures)

    def set_result(self, lsns: Iterable[int]) -> None:
        """Answer each caller with the lsn of its job; on the turn of a loop."""
        self._answer(zip(self.futures, lsns, strict=True))

    def set_exception(self, error: BaseException) -> None:
        self._answer(zip(self.futures, repeat(error)))

    def _answer(self, left: Iterator[tuple[Any, Any]]) -> None:
        try:
            if native.is_on:
                native.plain.answer_all(left)
            for future, value in left:
                if future.done():
                    continue
                if type(value) is int:
                    answer(future, value)
                else:
                    future.set_exception(value)
        except BaseException:
            # A task that was stepped here ends the program; the others get their answers still.
            self.futures[0].get_loop().call_soon(self._answer, left)
            raise


def together(items: list[Item] | Plain) -> list[Item] | Plain:
    if isinstance(items, Plain) or not items:
        return items
    specs, bodies, extras = zip(*items, strict=True)
    spec, count = specs[0], len(items)
    alike = specs.count(spec) == count and extras.count(None) == count
    return Plain(spec, list(bodies)) if alike and not spec.flags & PACKED else items


def answer(future: Any, lsn: int) -> None:
    """Answer a future, and step the task that awaits it right here, if one does.

    An asyncio future wakes its task through the loop: one more handle, made, queued and run in
    Python for every job. Answers come on a turn of the loop that belongs to no task, so the task
    can be stepped now. Its only callback must be that task's: then nobody else expects its turn
    first. The step runs the caller's code here, which may enqueue and await again before this
    returns.
    """
    try:
        waiting = future._callbacks
    except AttributeError:  # another kind: of a thread that has no loop
        waiting = None
    if waiting is None or len(waiting) != 1:
        future.set_result(lsn)
        return
    ((wake, context),) = waiting
    future.remove_done_callback(wake)
    future.set_result(lsn)
    context.run(wake, future)


def take(line: list[Any], room: int) -> Run:
    """Take the jobs at the head of a line, up to the first with which they exceed ``room`` bytes.

    A line is a list that its port's thread appends to; the caller that finds itself first in it
    sends a request for all. Another thread takes, and then looks at the line again: if there are
    more, nobody else asks for them.
    """
    if native.is_on:
        taken = native.plain.take(line, room, _RECORD_BYTES)
        if taken is not None:
            return Run(*taken)
    part = line[:]
    sizes = list(accumulate(len(body) + _RECORD_BYTES for body in part[1::LINE_WIDTH]))
    if sizes and sizes[-1] > room:
        part = part[: LINE_WIDTH * (1 + bisect_right(sizes, room))]
    del line[: len(part)]
    return Run(part[0::LINE_WIDTH], part[1::LINE_WIDTH], part[2::LINE_WIDTH])
