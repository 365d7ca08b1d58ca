"""State for the decisions of one process, the frame of their records, and a batch's needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskq.core import controls
from taskq.core.errors import TaskqError
from taskq.core.model import SIGNAL_BYTES_MAX, Conflict, Extras
from taskq.log import requests
from taskq.log.format import codec
from taskq.log.format.codec import FRAME_HEADER_SIZE
from taskq.log.requests import Op, Plain, Rewrite

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.core.folds.dedup import Dedup
    from taskq.core.parsing import Tag
    from taskq.log.decide.steps import Again, NewStep
    from taskq.log.journal.journal import Journal
    from taskq.log.segments.segments import SegmentFiles
    from taskq.log.state.facets import Facets

Item = TypeVar("Item")
Answer = TypeVar("Answer")
#: Most bytes of recent records in memory; others are read from their segment.
RECENT_BYTES_MAX: Final = 4 * 1024 * 1024


class Batch:
    """The records of the next frame, and their locations.

    Attributes:
        lsn: of the next record.
        size: bytes so far.
        payload_size: payload bytes of jobs among them.
        where: location of the frame's first body byte; the next record is at ``where + size``.
        interest: bits of the sleeping processes to wake for it.
        features: features that a reader of it must know; see ``identity``.
    """

    __slots__ = (
        "epoch", "features", "first_lsn", "interest", "lsn", "parts", "payload_size", "size",
        "time_ns", "where",
    )  # fmt: skip

    def __init__(self, journal: Journal, time_ns: int) -> None:
        self.parts: list[bytes] = []
        self.lsn: int = journal.next_lsn
        self.first_lsn: int = self.lsn
        self.epoch: int = journal.epoch
        self.time_ns: int = time_ns
        self.size: int = 0
        self.payload_size: int = 0
        self.where: int = journal.base + journal.offset + FRAME_HEADER_SIZE
        self.interest: int = 0
        self.features: tuple[str, ...] = ()

    def add(self, record: bytes) -> int:
        lsn = self.lsn
        self.parts.append(record)
        self.size += len(record)
        self.lsn = lsn + 1
        return lsn

    @property
    def count(self) -> int:
        return self.lsn - self.first_lsn


def each(
    act: Callable[[Batch, Item], Answer], batch: Batch, items: Iterable[Item]
) -> list[Answer | TaskqError]:
    """Return the answer of ``act`` for each item, or its error."""
    answers: list[Answer | TaskqError] = []
    for item in items:
        try:
            answers.append(act(batch, item))
        except TaskqError as error:
            answers.append(error)
    return answers


class Recent:
    """Records by job: all records of the present batch, which are in no file yet, and earlier ones.

    Attributes:
        records: job -> enqueue record.
        size: upper bound of their bytes.
    """

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self.records: dict[int, bytes] = {}
        self.size: int = 0

    def add(self, job: int, record: bytes) -> None:
        self.records[job] = record
        self.size += len(record)

    def record(self, job: int, location: int) -> bytes:
        record = self.records.get(job)
        return record if record is not None else self._files.record(location, job)

    def trim(self) -> None:
        """Start anew between two batches if there are too many bytes."""
        if self.size <= RECENT_BYTES_MAX:
            return
        # Claims may have removed some records: count the rest.
        self.size = sum(map(len, self.records.values()))
        if self.size > RECENT_BYTES_MAX // 2:
            self.clear()

    def clear(self) -> None:
        self.records.clear()
        self.size = 0


class Context:
    """State that all deciders of one process share.

    Attributes:
        journal: the log, whose writer lock is held while anything is decided.
        facets: the folds that the batch needs, caught up.
        recent: enqueue records at hand.
        owner: this process.
        tag: prefix of every job id of the log.
    """

    def __init__(self, journal: Journal, facets: Facets, owner: int) -> None:
        self.journal = journal
        self.facets = facets
        self.recent: Recent = Recent(journal.files)
        self.owner = owner
        self.tag: Tag = journal.tag
        self._edits: tuple[object, ...] = ()

    def caught_up(self) -> None:
        """Drop records if there are too many, or if other processes may have edited the jobs.

        It runs before the batch adds records of its own.
        """
        agenda, dedup = self.facets.agenda, self.facets.dedup
        edits = agenda, dedup, agenda and agenda.edits, dedup and dedup.edits
        if edits != self._edits:
            self._edits = edits
            self.recent.clear()
        self.recent.trim()

    @property
    def agenda(self) -> Agenda:
        """Agenda, which is built for every operation with ``Trait.AGENDA``."""
        agenda = self.facets.agenda
        assert agenda is not None
        return agenda

    @property
    def dedup(self) -> Dedup:
        dedup = self.facets.dedup
        assert dedup is not None
        return dedup


#: Most bytes of moments, window and the heads of options.
_OPTIONS_BYTES: Final = 64
#: A CANCELLED record, and the option with the job whose key it frees.
_FREES_BYTES: Final = 64
#: A TICKED record without its rule.
_TICKED_BYTES: Final = 320
#: An ACTED record without its text.
_ACT_BYTES: Final = codec.BACK.size
#: An INGESTED record without its name and position.
_MOVED_BYTES: Final = 48
#: A step or signal without its value, at most.
_STEP_BYTES: Final = 640


def bundle_size(bundle: requests.Bundle) -> int:
    size = sum(map(_settlement_size, bundle.settlements)) + sum(map(_enqueue_size, bundle.items))
    # Each may free a key, or take one over from a job that is then cancelled.
    return size + _FREES_BYTES * sum(map(len, bundle))


def _plain_size(jobs: Plain) -> int:
    return sum(map(len, jobs.bodies)) + len(jobs.spec.tail) * len(jobs.bodies)


def _jobs_size(jobs: list[requests.Item] | Plain) -> int:
    return _plain_size(jobs) if isinstance(jobs, Plain) else sum(map(_enqueue_size, jobs))


def _enqueue_size(item: requests.Item) -> int:
    spec, body, extras = item
    return len(body) + len(spec.tail) + (extras_size(extras) if extras is not None else 0)


def extras_size(extras: Extras) -> int:
    headers = sum(len(name) + len(value) for name, value in extras.headers.items())
    flow = extras.flow.size if extras.flow is not None else 0
    keys = len(extras.key or b"") + len(extras.concurrency_key)
    return keys + headers + _OPTIONS_BYTES + flow


def _settlement_size(item: requests.Settlement) -> int:
    own = len(item.body or b"") + len(item.lines) + codec.BACK.size
    return own + sum(map(_enqueue_size, item.children))


def _carried_size(item: Rewrite | Again) -> int:
    if not isinstance(item, Rewrite):
        return len(item.record)
    attempts = len(item.history) + len(item.lines)
    return len(item.born) + len(item.body or b"") + attempts + codec.WHOLE.size


def _step_size(step: NewStep) -> int:
    taken = SIGNAL_BYTES_MAX * (not step.body)
    return len(step.body) + taken + _STEP_BYTES + sum(map(_enqueue_size, step.items))


#: Sizes of operations with more than one small record; ``BatchNeeds`` counts plain enqueues itself.
_SIZES: Final[dict[int, Callable[[Any], int]]] = {
    Op.ENQUEUE_MANY: _jobs_size,
    Op.INGEST: lambda asked: _jobs_size(asked.items) + sum(map(len, asked.move[:2])) + _MOVED_BYTES,
    Op.SETTLE: lambda items: sum(map(_settlement_size, items)),
    Op.SETTLE_PARENTS: lambda items: sum(map(_settlement_size, items)),
    Op.SETTLE_NOWAIT: lambda operand: sum(map(_settlement_size, operand[0])),
    Op.SUCCEED_NOWAIT: lambda operand: codec.JOB.size * len(operand[0]),
    Op.TRANSACT: bundle_size,
    Op.REQUEUE: lambda letters: sum(letter.size for letter in letters),
    Op.TICK: lambda turn: _TICKED_BYTES + sum(map(_enqueue_size, turn.items)),
    Op.ENROL: lambda many: sum(len(rule.rule) + len(rule.details) + _TICKED_BYTES for rule in many),
    Op.CONTROL: lambda change: len(change.name) + controls.VALUE_BYTES_MAX + _MOVED_BYTES,
    Op.PURGE: lambda jobs: codec.BACK.size * len(jobs),
    Op.EDIT: lambda edit: _carried_size(edit.item) + codec.WHOLE.size,
    Op.WITHDRAW: lambda withdrawal: codec.BACK.size * len(withdrawal.jobs),
    Op.CARRY: lambda items: sum(map(_carried_size, items)),
    Op.STEP: _step_size,
    Op.ASK: _step_size,
    Op.ACT: lambda act: (len(act.text.encode()) + _ACT_BYTES) * max(len(act.jobs), 1),
    Op.WAIT: lambda begun: len(begun[1]) + codec.BACK.size,
    Op.ROOM: lambda size: size,
    Op.FORK: lambda fork: (
        _enqueue_size(fork.item) + sum(len(step.body) + _STEP_BYTES for step in fork.steps)
    ),
    Op.SIGNAL: lambda signal: len(signal.body) + _STEP_BYTES + 2 * codec.BACK.size,
}
_ENQUEUE: Final = int(Op.ENQUEUE)
_ENQUEUE_RUN: Final = int(Op.ENQUEUE_RUN)
#: Most batches have only these operations: only their size matters.
_PLAIN: Final = frozenset(map(int, (Op.SUCCEED_NOWAIT, Op.CLAIM)))
_NEEDS_AGENDA: Final = requests.ops_that(requests.Trait.AGENDA)
_NEEDS_KEYS: Final = requests.ops_that(requests.Trait.KEYS)


class BatchNeeds:
    """Folds and bytes that a batch needs before it is decided.

    Attributes:
        ops: the operations in it.
        keyed: whether any enqueue has a key.
        agenda: whether its decisions need the agenda.
        size: approximate bytes that it adds to the log.
    """

    __slots__ = ("agenda", "keyed", "ops", "size")

    def __init__(self) -> None:
        self.ops: set[int] = set()
        self.agenda: bool = False
        self.keyed: bool = False
        self.size: int = 0

    def add(self, request: requests.Request) -> None:
        op, _, _, operand = request
        self.ops.add(op)
        if op == _ENQUEUE_RUN:
            self.size += operand.size
            for extras in operand.extras:
                self.size += extras_size(extras)
                self._look(extras)
            return
        if op == _ENQUEUE:
            spec, body, extras = operand
            self.size += len(body) + len(spec.tail)
            if extras is not None:
                self.size += extras_size(extras)
                self._look(extras)
            return
        if op in _NEEDS_AGENDA:
            self.agenda = True
        size = _SIZES.get(op)
        self.size += codec.BACK.size if size is None else size(operand)
        if op not in _PLAIN:
            self._look_into(op, operand)

    def _look_into(self, op: int, operand: Any) -> None:
        if op == Op.ENQUEUE_MANY:
            self._look_at(() if isinstance(operand, Plain) else operand)
        elif op == Op.INGEST:
            self._look_at(() if isinstance(operand.items, Plain) else operand.items)
        elif op in _NEEDS_KEYS:
            self.keyed = True
        elif op == Op.REQUEUE:
            self.keyed = self.keyed or any(letter.has_options for letter in operand)
        elif op in (Op.SETTLE, Op.SETTLE_PARENTS, Op.SETTLE_NOWAIT):
            for item in operand[0] if op == Op.SETTLE_NOWAIT else operand:
                if item.children:
                    self._look_at(item.children)
        elif op in (Op.TRANSACT, Op.TICK):
            self._look_at(operand.items)

    def _look_at(self, items: Iterable[requests.Item]) -> None:
        for _, _, extras in items:
            if extras is not None:
                self._look(extras)

    def _look(self, extras: Extras) -> None:
        if extras.key is not None:
            self.keyed = True
            if extras.on_conflict is Conflict.REPLACE:
                self.agenda = True  # it may take its key from another job

    @classmethod
    def of(cls, requests: list[requests.Request]) -> BatchNeeds:
        needs = cls()
        for request in requests:
            needs.add(request)
        return needs
