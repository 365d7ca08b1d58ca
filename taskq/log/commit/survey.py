"""Needs of a batch of requests, found in one pass while the mailbox is taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from taskq.core.model import Conflict, Extras
from taskq.log.commit.answers import SOON
from taskq.log.decide.sizes import extras_size, request_size
from taskq.log.requests import Item, Op, Plain, Request, Trait, ops_that

_ENQUEUE: Final = int(Op.ENQUEUE)
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)
#: Most batches hold nothing else: their size is all there is to know.
_PLAIN: Final = frozenset(map(int, (Op.SUCCEED_SOON, Op.CLAIM)))
_NEEDS_KEYS: Final = ops_that(Trait.KEYS)


class BatchNeeds:
    """Needs of a batch before it can be decided.

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

    def add(self, request: Request) -> None:
        op, _, _, operand = request
        self.ops.add(op)
        if op == _ENQUEUE_RUN:
            self.size += operand.size
            return
        if op == _ENQUEUE:
            spec, body, extras = operand
            self.size += len(body) + len(spec.tail)
            if extras is not None:
                self.size += extras_size(extras)
                self._look(extras)
            return
        self.size += request_size(op, operand)
        if op not in _PLAIN:
            self._look_into(op, operand)

    def _look_into(self, op: int, operand: Any) -> None:
        if op == Op.ENQUEUE_MANY:
            self._look_at(() if isinstance(operand, Plain) else operand)
        elif op in _NEEDS_KEYS or (op == Op.ADOPT and operand.is_keyed):
            self.keyed = True
        elif op == Op.REQUEUE:
            self.keyed = self.keyed or any(letter.has_options for letter in operand)
        elif op in (Op.SETTLE, Op.SETTLE_PARENTS, Op.SETTLE_SOON):
            for item in operand[0] if op == Op.SETTLE_SOON else operand:
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
    def of(cls, requests: list[Request]) -> BatchNeeds:
        needs = cls()
        for request in requests:
            needs.add(request)
        return needs


def parted(requests: list[Request]) -> list[Request]:
    """The same, with each job of a run, and each settlement that nobody waits for, on its own."""
    parts: list[Request] = []
    for request in requests:
        op, port, future, operand = request
        if op in SOON:
            items, on_error = operand
            parts += [(op, port, future, ([item], on_error)) for item in items]
        elif op == Op.ENQUEUE_RUN:
            parts += [(op, port, single, single) for single in operand.singles()]
        else:
            parts.append(request)
    return parts
