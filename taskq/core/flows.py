"""Flows: jobs that wait for other jobs, with a count of open inputs for each."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from taskq.core.errors import FormatError
from taskq.core.values import NamedTuple, dataclass

#: Ended jobs of flows whose locations are kept, the latest first.
ENDED_MAX: Final = 16_384
#: Held jobs that may wait for one job: an option has at most 64 KiB.
UNLOCKS_MAX: Final = 4_096
#: Bit above a job's number, on the record that ends its input: the job is cancelled for that.
DOOM_BIT: Final = 1 << 63
_COUNT_MASK: Final = 2**32 - 1
_POLICY_SHIFT: Final = 32
_POLICY_MASK: Final = 0xFF
_DOOMED: Final = 1 << 40
_OPTION_BYTES: Final = 3


class Policy(enum.IntEnum):
    """Policy for a held job when one of its inputs fails."""

    #: it is cancelled, and so are the jobs that wait for it
    CANCEL = 0
    #: the input counts as done, with a ``Failed`` as its result
    RUN = 1
    #: it stays held while the input is a dead letter, which may be requeued and succeed
    WAIT = 2


class FlowPart(NamedTuple):
    """Relations of a job to the other jobs of its flow, by their places in the flow.

    Attributes:
        place: of the job itself; jobs are enqueued in the order of their places.
        inputs: runs of (first place, count) of its inputs, in the order of their results.
        policy: what happens to it when an input fails.
        shape: how their results nest; empty if it takes none (see ``taskq.log.format.flows``).
        unlocks: places of the jobs that wait for it.
        jobs, ends, result: set on the flow's first job: its number of jobs, the number of leading
            jobs whose results make up its result, and that result's shape.
        parent: the job that enqueued this one within its run and waits for it.
    """

    place: int = 0
    inputs: tuple[tuple[int, int], ...] = ()
    policy: Policy = Policy.CANCEL
    shape: bytes = b""
    unlocks: tuple[int, ...] = ()
    jobs: int = 0
    ends: int = 0
    result: bytes = b""
    parent: int = 0

    @property
    def needs(self) -> int:
        return sum(count for _, count in self.inputs)

    @property
    def size(self) -> int:
        numbers = 12 * len(self.inputs) + 8 * len(self.unlocks) + 24
        return numbers + len(self.shape) + len(self.result) + 5 * _OPTION_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInputs:
    """Count of inputs that a held job waits for, and (id, state) of some of them."""

    count: int
    total: int
    named: tuple[tuple[str, str], ...] = ()


def needs_of(count: int, policy: int, *, doomed: bool = False) -> int:
    needs = count & _COUNT_MASK | (policy & _POLICY_MASK) << _POLICY_SHIFT
    return needs | _DOOMED if doomed else needs


class Flows:
    """The held jobs.

    All jobs of a flow enter the log in one transaction. A job with inputs is *held*: scheduled
    without a due time, with a count of its inputs. The record that ends an input lists the held
    jobs that it advances or cancels, so a fold needs nothing else. The next work (``todo``) follows
    from the counts alone, so another process does it if the writer of the last input has died.

    Attributes:
        held: job -> count of open inputs, policy and doom, packed in one number.
        todo: held jobs to release or to cancel.
        ended: job of a flow -> location of the record that ended it; the latest ones.
    """

    __slots__ = ("ended", "held", "todo")

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.todo: dict[int, None] = {}
        self.ended: dict[int, int] = {}

    def hold(self, job: int, needs: int) -> None:
        self.held[job] = needs
        if needs & _DOOMED or not needs & _COUNT_MASK:
            self.todo[job] = None

    def drop(self, job: int) -> bool:
        self.todo.pop(job, None)
        return self.held.pop(job, None) is not None

    def remaining(self, job: int) -> tuple[int, int, bool] | None:
        """Return (open inputs, policy, whether it is to be cancelled); None if it is not held."""
        value = self.held.get(job)
        if value is None:
            return None
        return value & _COUNT_MASK, value >> _POLICY_SHIFT & _POLICY_MASK, bool(value & _DOOMED)

    def apply_end(
        self,
        job: int,
        location: int,
        dependents: Iterable[int],
        left_of: Callable[[int, int], int],
    ) -> None:
        """End a job of a flow by the record at ``location``, which lists its dependents.

        ``left_of(dependent, job)`` returns how many inputs besides ``job`` a dependent with a count
        of 0 still lacks.
        """
        for dependent in dependents:
            number = dependent & ~DOOM_BIT
            value = self.held.get(number)
            if value is None:
                continue
            if dependent & DOOM_BIT:
                self.held[number] = value | _DOOMED
                self.todo[number] = None
            elif value & _COUNT_MASK:
                value -= 1
                if not value & _COUNT_MASK:
                    value |= left_of(number, job)
                self.held[number] = value
                if not value & _COUNT_MASK:
                    self.todo[number] = None
        if len(self.ended) >= ENDED_MAX:
            for old in list(self.ended)[: ENDED_MAX // 2]:
                del self.ended[old]
        self.ended[job] = location

    def apply_again(self, job: int, dependents: Iterable[int]) -> None:
        """Make the dependents of a requeued dead letter wait for it again; it counted as done."""
        self.ended.pop(job, None)
        for dependent in dependents:
            value = self.held.get(dependent)
            if value is not None:
                self.held[dependent] = value + 1
                if not value & _DOOMED:
                    self.todo.pop(dependent, None)

    def thaw(self, jobs: Iterable[int], values: Iterable[int]) -> None:
        self.held = dict(zip(jobs, values, strict=True))
        self.todo = {
            job: None
            for job, value in self.held.items()
            if value & _DOOMED or not value & _COUNT_MASK
        }


# How the results of many jobs nest: a single value, a list of them, lists of lists.
#
# A shape is a sequence of byte codes that consume results from one list. ``1`` and a count u32 take
# ``count`` single values, ``4`` and a count u32 skip results. ``2`` opens a list, ``3`` closes it.
# One value is ``1 1``; ten of a group are ``2 1 10 3``.

T = TypeVar("T")

#: Deepest nesting of lists.
DEPTH_MAX: Final = 32
_VALUES: Final = 1
_OPEN: Final = 2
_CLOSE: Final = 3
_SKIP: Final = 4
_RUN: Final = struct.Struct("<BI")
ONE: Final = _RUN.pack(_VALUES, 1)


def list_of(shapes: Iterable[bytes]) -> bytes:
    parts: list[bytes] = [bytes((_OPEN,))]
    single = 0
    for shape in shapes:
        if shape == ONE:
            single += 1
            continue
        if single:
            parts.append(_RUN.pack(_VALUES, single))
            single = 0
        parts.append(shape)
    if single:
        parts.append(_RUN.pack(_VALUES, single))
    return b"".join((*parts, bytes((_CLOSE,))))


def skipping(count: int) -> bytes:
    """Return the shape that skips ``count`` results."""
    return _RUN.pack(_SKIP, count)


def depth(shape: bytes) -> int:
    deepest = level = 0
    for token, _ in _tokens(shape):
        level += (token == _OPEN) - (token == _CLOSE)
        deepest = max(deepest, level)
    return deepest


def nested(shape: bytes, values: Iterable[T]) -> Any:
    left = iter(values)
    root: list[Any] = []
    stack = [root]
    for token, count in _tokens(shape):
        if token == _OPEN and len(stack) <= DEPTH_MAX:
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
        elif token == _CLOSE and len(stack) > 1:
            stack.pop()
        elif token in (_VALUES, _SKIP):
            some = list(islice(left, count))
            if len(some) != count:
                raise FormatError("a flow's shape is of more jobs than there are")
            if token == _VALUES:
                stack[-1] += some
        else:
            raise FormatError("a flow's shape does not read back")
    if len(root) != 1 or len(stack) != 1 or any(True for _ in left):
        raise FormatError("a flow's shape does not fit its jobs")
    return root[0]


def _tokens(shape: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(shape):
        token, count = shape[at], 0
        if token in (_VALUES, _SKIP) and at + _RUN.size <= len(shape):
            count = _RUN.unpack_from(shape, at)[1]
            at += _RUN.size
        elif token in (_OPEN, _CLOSE):
            at += 1
        else:
            raise FormatError("a flow's shape does not read back")
        yield token, count
