"""What a batch of requests holds, found in one pass while the mailbox is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskq.log import codec
from taskq.log.requests import ClaimRequest, Op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq.core.errors import TaskqError

_ENQUEUE: Final = int(Op.ENQUEUE)
#: (op, port, future, operand); see ``requests``
Request = tuple[int, Any, Any, Any]
#: (port, future, value or error); with no future, a call for the port's side
Answer = tuple[Any, Any, Any]


class Survey:
    """The operations of a batch, whether any enqueue has a key, and about how many bytes."""

    __slots__ = ("keyed", "ops", "size")

    def __init__(self) -> None:
        self.ops: set[int] = set()
        self.keyed = False
        self.size = 0

    def add_plain(self, size: int) -> None:
        """Count plain enqueues in, of ``size`` bytes together."""
        self.ops.add(_ENQUEUE)
        self.size += size

    def add(self, request: Request) -> None:
        """Count a request in."""
        op, _, _, operand = request
        self.ops.add(op)
        if op == _ENQUEUE:
            spec, body, extras = operand
            self.size += len(body) + len(spec.tail)
            if extras is not None and extras.key is not None:
                self.keyed = True
            return
        self.size += _size(request)
        if op == Op.ENQUEUE_MANY:
            self.keyed = self.keyed or any(one and one.key is not None for _, _, one in operand)
        elif op in (Op.SETTLE, Op.SETTLE_SOON):
            items = operand if op == Op.SETTLE else operand[0]
            self.keyed = self.keyed or any(
                extras and extras.key is not None
                for item in items
                for _, _, extras in item.children
            )

    @classmethod
    def of(cls, requests: list[Request]) -> Survey:
        """The survey of a list."""
        survey = cls()
        for request in requests:
            survey.add(request)
        return survey


def _size(request: Request) -> int:
    """About how many bytes a request adds to the log."""
    op, _, _, operand = request
    if op == _ENQUEUE:
        return len(operand[1]) + len(operand[0].tail)
    if op == Op.ENQUEUE_MANY:
        return sum(len(body) + len(spec.tail) for spec, body, _ in operand)
    if op in (Op.SETTLE, Op.SETTLE_SOON):
        items = operand if op == Op.SETTLE else operand[0]
        return sum(len(item.body or b"") + codec.BACK.size for item in items)
    return codec.BACK.size


def claims(waiting: Iterable[tuple[ClaimRequest, Any, Any]]) -> list[Request]:
    """Claims that wait, as the requests that they came as."""
    return [(int(Op.CLAIM), port, future, operand) for operand, port, future in waiting]


def refusals(requests: Iterable[Request], error: TaskqError) -> list[Answer]:
    """The same error for each of them."""
    answers: list[Answer] = []
    for op, port, future, operand in requests:
        if op == Op.SETTLE_SOON:
            items, on_error = operand
            answers += [(port, None, (on_error, item, error)) for item in items]
        else:
            answers.append((port, future, error))
    return answers
