"""What a batch of requests holds, found in one pass while the mailbox is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskq.core.model import Conflict
from taskq.log import codec
from taskq.log.requests import ClaimRequest, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskq.core.errors import TaskqError
    from taskq.core.model import Extras
    from taskq.log.enqueues import Item
    from taskq.log.requests import Bundle, Settlement

_ENQUEUE: Final = int(Op.ENQUEUE)
#: What compaction asks for: it needs both the agenda and the keys.
COMPACTION_OPS: Final = frozenset({Op.CARRY, Op.TALLY, Op.COMPACTED, Op.DROP})
#: Those on dead letters, on whole queues and on schedules.
MANY_OPS: Final = frozenset(
    {Op.REQUEUE, Op.PURGE, Op.PAUSE, Op.RESUME, Op.WITHDRAW, Op.TICK, Op.ENROL, Op.STEER}
)
#: What moments, window and the options' own heads take at most.
_OPTIONS_BYTES: Final = 64
#: A CANCELLED record, and what tells whose key is freed by it.
_FREES_BYTES: Final = 64
#: A TICKED record without its rule.
_TICKED_BYTES: Final = 320
#: (op, port, future, operand); see ``requests``
Request = tuple[int, Any, Any, Any]
#: (port, future, value or error); with no future, a call for the port's side
Answer = tuple[Any, Any, Any]


class Survey:
    """What a batch will need to be decided.

    Attributes:
        ops: the operations in it.
        keyed: whether any enqueue has a key.
        replaces: whether any may take its key from another job.
        size: about how many bytes it adds to the log.
    """

    __slots__ = ("keyed", "ops", "replaces", "size")

    def __init__(self) -> None:
        self.ops: set[int] = set()
        self.keyed = self.replaces = False
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
            if extras is not None:
                self.size += _extras_size(extras)
                self._look(extras)
            return
        self.size += _size(request)
        if op == Op.ENQUEUE_MANY:
            self._look_at(operand)
        elif op in COMPACTION_OPS or (op == Op.ADOPT and operand.is_keyed):
            self.keyed = True
        elif op == Op.REQUEUE:
            self.keyed = self.keyed or any(letter.has_options for letter in operand)
        elif op in (Op.SETTLE, Op.SETTLE_SOON):
            for item in operand if op == Op.SETTLE else operand[0]:
                if item.children:
                    self._look_at(item.children)
        elif op in (Op.TRANSACT, Op.TICK):
            self._look_at(operand.items)

    def _look_at(self, items: Iterable[Item]) -> None:
        for _, _, extras in items:
            if extras is not None:
                self._look(extras)

    def _look(self, extras: Extras) -> None:
        if extras.key is not None:
            self.keyed = True
            if extras.on_conflict is Conflict.REPLACE:
                self.replaces = True

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
    size = _SIZES.get(op)
    return codec.BACK.size if size is None else size(operand)


def bundle_size(bundle: Bundle) -> int:
    """About how many bytes a transaction adds to the log."""
    size = sum(map(_settlement_size, bundle.settlements)) + sum(map(_enqueue_size, bundle.items))
    # Each may free a key, or take one over from a job that is cancelled for it.
    return size + _FREES_BYTES * sum(map(len, bundle))


def _settlement_size(item: Settlement) -> int:
    return len(item.body or b"") + codec.BACK.size + sum(map(_enqueue_size, item.children))


def _enqueue_size(item: Item) -> int:
    spec, body, extras = item
    return len(body) + len(spec.tail) + (_extras_size(extras) if extras is not None else 0)


def _extras_size(extras: Extras) -> int:
    headers = sum(len(name) + len(value) for name, value in extras.headers.items())
    flow = extras.flow.size if extras.flow is not None else 0
    keys = len(extras.key or b"") + len(extras.concurrency_key)
    return keys + headers + _OPTIONS_BYTES + flow


#: Bytes that an operand adds to the log, of those operations that are no single small record.
_SIZES: Final[dict[int, Callable[[Any], int]]] = {
    Op.ENQUEUE_MANY: lambda items: sum(map(_enqueue_size, items)),
    Op.SETTLE: lambda items: sum(map(_settlement_size, items)),
    Op.SETTLE_SOON: lambda operand: sum(map(_settlement_size, operand[0])),
    Op.TRANSACT: bundle_size,
    Op.REQUEUE: lambda letters: sum(letter.size for letter in letters),
    Op.ADOPT: lambda piece: piece.size,
    Op.TICK: lambda turn: _TICKED_BYTES + sum(map(_enqueue_size, turn.items)),
    Op.ENROL: lambda many: sum(len(one.rule) + len(one.details) + _TICKED_BYTES for one in many),
    Op.PURGE: lambda jobs: codec.BACK.size * len(jobs),
    Op.WITHDRAW: lambda withdrawal: codec.BACK.size * len(withdrawal.jobs),
    Op.CARRY: lambda items: sum(
        len(item.born) + len(item.body or b"") + codec.CARRIED.size for item in items
    ),
}


def parted(requests: list[Request]) -> list[Request]:
    """The same, with settlements that nobody waits for on their own."""
    parts: list[Request] = []
    for request in requests:
        op, port, future, operand = request
        if op == Op.SETTLE_SOON:
            items, on_error = operand
            parts += [(op, port, future, ([item], on_error)) for item in items]
        else:
            parts.append(request)
    return parts


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
