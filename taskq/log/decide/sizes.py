"""About how many bytes a request adds to the log, told before it is decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from taskq.core.model import SIGNAL_BYTES_MAX, Extras
from taskq.log.format import codec
from taskq.log.requests import Bundle, Item, Op, Plain, Rewrite, Settlement

if TYPE_CHECKING:
    from taskq.log.decide.steps import Again, NewStep

#: Most bytes of moments, window and the options' own heads.
_OPTIONS_BYTES: Final = 64
#: A CANCELLED record, and the option that names the job whose key it frees.
_FREES_BYTES: Final = 64
#: A TICKED record without its rule.
_TICKED_BYTES: Final = 320
#: A step or signal without its value, at most.
_STEP_BYTES: Final = 640


def request_size(op: int, operand: Any) -> int:
    """Return bytes of the records of a request that is no enqueue of one job."""
    size = _SIZES.get(op)
    return codec.BACK.size if size is None else size(operand)


def bundle_size(bundle: Bundle) -> int:
    """Return bytes of a transaction's records."""
    size = sum(map(_settlement_size, bundle.settlements)) + sum(map(_enqueue_size, bundle.items))
    # Each may free a key, or take one over from a job that is cancelled for it.
    return size + _FREES_BYTES * sum(map(len, bundle))


def _plain_size(jobs: Plain) -> int:
    return sum(map(len, jobs.bodies)) + len(jobs.spec.tail) * len(jobs.bodies)


def _enqueue_size(item: Item) -> int:
    spec, body, extras = item
    return len(body) + len(spec.tail) + (extras_size(extras) if extras is not None else 0)


def extras_size(extras: Extras) -> int:
    """Return bytes of a new job's options."""
    headers = sum(len(name) + len(value) for name, value in extras.headers.items())
    flow = extras.flow.size if extras.flow is not None else 0
    keys = len(extras.key or b"") + len(extras.concurrency_key)
    return keys + headers + _OPTIONS_BYTES + flow


def _settlement_size(item: Settlement) -> int:
    own = len(item.body or b"") + len(item.lines) + codec.BACK.size
    return own + sum(map(_enqueue_size, item.children))


def _carried_size(item: Rewrite | Again) -> int:
    if not isinstance(item, Rewrite):
        return len(item.record)
    return len(item.born) + len(item.body or b"") + len(item.lines) + codec.WHOLE.size


def _step_size(step: NewStep) -> int:
    taken = SIGNAL_BYTES_MAX * (not step.body)
    return len(step.body) + taken + _STEP_BYTES + sum(map(_enqueue_size, step.items))


#: Operations with more than one small record; ``BatchNeeds`` counts plain enqueues itself.
_SIZES: Final[dict[int, Callable[[Any], int]]] = {
    Op.ENQUEUE_MANY: lambda items: (
        _plain_size(items) if isinstance(items, Plain) else sum(map(_enqueue_size, items))
    ),
    Op.SETTLE: lambda items: sum(map(_settlement_size, items)),
    Op.SETTLE_PARENTS: lambda items: sum(map(_settlement_size, items)),
    Op.SETTLE_SOON: lambda operand: sum(map(_settlement_size, operand[0])),
    Op.SUCCEED_SOON: lambda operand: codec.JOB.size * len(operand[0]),
    Op.SETTLE_FOR: lambda items: sum(
        len(item.body or b"") + 2 * codec.BACK.size + _FREES_BYTES for item in items
    ),
    Op.TRANSACT: bundle_size,
    Op.REQUEUE: lambda letters: sum(letter.size for letter in letters),
    Op.ADOPT: lambda piece: piece.size,
    Op.TICK: lambda turn: _TICKED_BYTES + sum(map(_enqueue_size, turn.items)),
    Op.ENROL: lambda many: sum(len(rule.rule) + len(rule.details) + _TICKED_BYTES for rule in many),
    Op.PURGE: lambda jobs: codec.BACK.size * len(jobs),
    Op.EDIT: lambda edit: len(edit.item.born) + len(edit.item.history) + 2 * codec.WHOLE.size,
    Op.WITHDRAW: lambda withdrawal: codec.BACK.size * len(withdrawal.jobs),
    Op.CARRY: lambda items: sum(map(_carried_size, items)),
    Op.STEP: _step_size,
    Op.ASK: _step_size,
    Op.WAIT: lambda begun: len(begun[1]) + codec.BACK.size,
    Op.ROOM: lambda size: size,
    Op.FORK: lambda fork: (
        _enqueue_size(fork.item) + sum(len(step.body) + _STEP_BYTES for step in fork.steps)
    ),
    Op.SIGNAL: lambda signal: len(signal.body) + _STEP_BYTES + 2 * codec.BACK.size,
}
