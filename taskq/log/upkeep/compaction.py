"""Remove the oldest segment from the log, after rewriting its needed records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

from taskq.core import errors, kinds, model
from taskq.core.folds import agenda, dedup, jobtable
from taskq.log.decide.steps import Again
from taskq.log.format import codec, frames, notes, options
from taskq.log.format.carried import decode_carried, key_hash_of
from taskq.log.machine.threads import Pending
from taskq.log.requests import TALLIES_MAX, Answer, Floor, Op, Request, Rewrite
from taskq.log.segments.segments import OFFSET_BITS
from taskq.log.upkeep.retention import Needed, Retained, extent

if TYPE_CHECKING:
    from taskq.log.commit import committer

Steps = Generator["InnerRequest | None", None, None]


class InnerRequest(Pending[Any]):
    """A request and its answer, which is in ``value`` after ``wait``."""

    __slots__ = ("request", "value")

    def __init__(self, op: Op, port: InnerPort, operand: object) -> None:
        super().__init__()
        self.request: Request = (int(op), port, self, operand)

    def wait(self) -> Iterator[InnerRequest | None]:
        """Yield the request to be sent, and wait for its answer.

        Raises:
            TaskqError: the request failed.
        """
        yield self
        while not self.done():
            yield None
        self.value: Any = self.result()


class InnerPort:
    """The port of upkeep's own requests."""

    def make(self, op: Op, operand: object) -> InnerRequest:
        return InnerRequest(op, self, operand)

    def deliver(self, answers: list[Answer]) -> None:
        for _, inner, value in answers:
            if isinstance(value, Exception):
                inner.set_exception(value)
            else:
                inner.set_result(value)


#: Most jobs and bytes that one batch carries, so that the lock is held for milliseconds.
_ITEMS_MAX: Final = 256
_ITEMS_BYTES_MAX: Final = 128 * 1024
#: Rows of a table that are scanned in one step.
_ROWS: Final = 2_048
#: Few jobs change while they are rewritten. After this number of passes other work comes first.
_PASSES_MAX: Final = 8
#: Approximate bytes of a job of which only the key is needed.
_KEY_BYTES: Final = 256


class Compaction:
    """Removal of a segment.

    Its steps take a millisecond each, so the storage thread can run them between batches. Decisions
    under the writer lock are ordinary requests (``decide.carry``), so their batches are bounded,
    too. A process that dies in between leaves an equivalent log: a job rewritten twice is one job,
    and the segment is removed only after a record on disk allows it.
    """

    def __init__(
        self,
        committer: committer.Committer,
        port: InnerPort,
        segment: int,
        retained: Retained,
    ) -> None:
        self._committer = committer
        self._journal = committer.journal
        self._files = committer.journal.files
        self._port = port
        self._segment = segment
        self._retained = retained
        self._low = self._files.base(segment)
        self._high = self._low + (1 << OFFSET_BITS)
        self._size, self._next = extent(self._journal, segment)
        #: bytes of needed records, as of the last pass
        self.needed_bytes: int = 0
        self._needed = 0
        self.carried: int = 0

    def steps(self, needed_bytes_max: int | None) -> Steps:
        """Carry needed records, and write that the segment may go; ``drop_steps`` removes it.

        Nothing is done if over ``needed_bytes_max`` bytes of it are needed.

        Raises:
            LogDamaged: the segment has unreadable bytes, which a person must decide about.
            TaskqError: the log could not be written.
        """
        self._refuse_beside_loss()
        self._refuse_last()
        for number in range(_PASSES_MAX):
            needed = yield from self._look()
            if not number:
                yield from self._measure(needed)
                if not self.pays(needed_bytes_max):
                    return
            missed = yield from self._carry(needed)
            if not missed:
                break
        else:
            return
        yield from self._finish()

    def _refuse_beside_loss(self) -> None:
        name = frames.segment_name(self._segment)
        for loss in self._journal.lost:
            if loss.segment == name:
                raise errors.LogDamaged(f"{self._journal.path}: {loss.explain(self._journal.path)}")

    def _refuse_last(self) -> None:
        self._journal.refresh()
        if self._journal.segment <= self._segment:
            raise errors.LogError(f"{self._journal.path}: the end of the log is not known here yet")

    def pays(self, needed_bytes_max: int | None) -> bool:
        """Return whether rewriting the needed records pays off, after they were measured.

        It does if they are a small part of the segment. It also does if they are a small part of
        the whole log: dense segments are rewritten once, which frees the segments between them. A
        log that is mostly needed would only be copied for ever. A disk without room for the records
        also prevents it.
        """
        if not self._committer.room.holds(self.needed_bytes):
            return False
        if needed_bytes_max is None or self.needed_bytes <= needed_bytes_max:
            return True
        agenda = self._agenda
        jobs = agenda.table.live + agenda.dead.live + self._dedup.size
        mean_bytes = self.needed_bytes / max(self._needed, 1)
        return jobs * mean_bytes < self._files.total_size() / 2

    def measure_steps(self) -> Iterator[None]:
        """Measure ``needed_bytes``, without writing."""
        yield from self._measure((yield from self._look()))

    def _look(self) -> Generator[None, None, Needed]:
        # Unfolded jobs of the segment would be lost.
        self._journal.refresh()
        self._committer.facets.catch_up()
        needed = Needed()
        yield from self._find(needed)
        yield from self._retained.find(self._segment, needed)
        needed.sort()
        return needed

    def _finish(self) -> Steps:
        tallied: agenda.Agenda | None = None
        while tallied is not self._agenda:  # a new fold numbers its lanes differently
            tallied = self._agenda
            for start in range(0, max(len(tallied.lanes), 1), TALLIES_MAX):
                inner = self._port.make(Op.TALLY, range(start, start + TALLIES_MAX))
                yield from inner.wait()
            for groups in notes.chunks_of(tallied):
                yield from self._port.make(Op.TALLY, groups).wait()
        floor = Floor(self._next)
        yield from self._port.make(Op.COMPACTED, floor).wait()

    @property
    def _agenda(self) -> agenda.Agenda:
        return self._committer.facets.need_agenda()

    @property
    def _dedup(self) -> dedup.Dedup:
        return self._committer.facets.need_dedup()

    def _find(self, needed: Needed) -> Iterator[None]:
        """Find unsettled jobs, dead letters and held keys with records in the segment."""
        low, high = self._low, self._high
        for is_dead in (False, True):
            job = 0
            while True:
                agenda = self._agenda
                table = agenda.dead if is_dead else agenda.table
                rows = table.rows(job, _ROWS)
                for job, location, meta in rows:
                    if low <= location < high:
                        needed.add(job, location - low, 0 if is_dead else meta)
                yield
                # Younger jobs began in younger segments.
                if len(rows) < _ROWS or job >= self._next:
                    break
                job += 1
        hashed = 0
        while hashed >= 0:
            held, hashed = self._dedup.rows(hashed, self._journal.time_ns)
            for job, location in held:
                if low <= location < high:
                    needed.add(job, location - low, 0)
            yield
        yield from self._find_moments(needed)
        yield from self._find_steps(needed)

    def _find_steps(self, needed: Needed) -> Iterator[None]:
        low, high = self._low, self._high
        for number, (location, job) in enumerate(self._agenda.steps.within(low, high)):
            if job:
                needed.steps.append((location - low, job, False))
            if not number % _ROWS:
                yield

    def _find_moments(self, needed: Needed) -> Iterator[None]:
        times = self._agenda.times
        wanted = needed.jobs() if needed.waits or needed.expires else set[int]()
        for moments, jobs, is_wall in times.blocks() if needed.waits else ():
            if not wanted.isdisjoint(jobs):
                pairs = zip(moments, jobs, strict=True)
                needed.dues |= {job: (at, is_wall) for at, job in pairs if job in wanted}
            yield
        for moments, jobs in times.expiry_blocks() if needed.expires else ():
            if not wanted.isdisjoint(jobs):
                pairs = zip(moments, jobs, strict=True)
                needed.expiries |= {job: at for at, job in pairs if job in wanted}
            yield

    def _measure(self, needed: Needed) -> Iterator[None]:
        self.needed_bytes = 0
        self._needed = len(needed)
        for frame in self._frames():
            for job, offset, is_alive in needed.between(frame.offset, frame.end):
                at = _place(frame, offset)
                size = codec.LENGTH.unpack_from(frame.data, at)[0]
                is_key_alone = not (is_alive or self._retained.keeps(job) or self._is_dead(job))
                self.needed_bytes += min(size, _KEY_BYTES) if is_key_alone else size
            self.needed_bytes += sum(len(item.record) for item in self._steps(frame, needed))
            yield

    def _is_dead(self, job: int) -> bool:
        return self._agenda.dead.find(job) is not None

    def _frames(self) -> Iterator[frames.Frame]:
        files, segment = self._files, self._segment
        scanner = files.scanner(segment, self._size, segment, sealed=True)
        for item in scanner.frames(codec.SEGMENT_HEADER.size):
            if isinstance(item, frames.Gap):
                raise errors.LogDamaged(
                    f"{files.file_path(segment)}: damaged at offset {item.offset}, so the segment "
                    f"is kept; see: {errors.command(files.path, 'verify')} and: "
                    f"{errors.command(files.path, 'repair')}"
                )
            yield item

    def _carry(self, needed: Needed) -> Generator[InnerRequest | None, None, int]:
        """Rewrite all needed records; return the number of jobs that changed meanwhile."""
        missed = size = 0
        items: list[Rewrite | Again] = []
        for frame in self._frames():
            for item in self._items(frame, needed):
                items.append(item)
                size += _size(item)
                if len(items) >= _ITEMS_MAX or size >= _ITEMS_BYTES_MAX:
                    missed += yield from self._send(items)
                    items, size = [], 0
            yield None
        if items:
            missed += yield from self._send(items)
        return missed

    def _items(self, frame: frames.Frame, needed: Needed) -> Iterator[Rewrite | Again]:
        for job, offset, is_alive in needed.between(frame.offset, frame.end):
            item = self._item(frame, needed, job, offset, is_alive=is_alive)
            if item is not None:
                yield item
        yield from self._steps(frame, needed)

    def _steps(self, frame: frames.Frame, needed: Needed) -> Iterator[Again]:
        first, end = (bisect_left(needed.steps, (at, 0)) for at in (frame.offset, frame.end))
        for offset, job, is_kept in needed.steps[first:end]:
            at = _place(frame, offset)
            record = frame.data[at : at + codec.LENGTH.unpack_from(frame.data, at)[0]]
            yield Again(job, self._low + offset, record, frame.header.time_ns, is_kept)

    def _send(self, items: list[Rewrite | Again]) -> Generator[InnerRequest | None, None, int]:
        inner = self._port.make(Op.CARRY, items)
        yield from inner.wait()
        missed = int(inner.value)
        self.carried += len(items) - missed
        return missed

    def _item(
        self, frame: frames.Frame, needed: Needed, job: int, offset: int, *, is_alive: bool
    ) -> Rewrite | None:
        at = _place(frame, offset)
        length = codec.LENGTH.unpack_from(frame.data, at)[0]
        record = frame.data[at : at + length]
        born, enqueued_ns, before = record, frame.header.time_ns, b""
        if record[codec.KIND_AT] in kinds.CARRYING:
            carried = decode_carried(record)
            born, enqueued_ns, before = carried.born, carried.enqueued_ns, carried.history
        location = self._low + offset
        item = self._live_item(needed, job, location, born, enqueued_ns, has_run=before != b"")
        if item is None and self._agenda.table.find(job) is None:
            item = self._settled_item(job, location, born, enqueued_ns, was_alive=is_alive)
        if item is None or item.state is model.State.ABSENT or item.history:
            return item
        return item._replace(history=before)

    def _live_item(
        self,
        needed: Needed,
        job: int,
        location: int,
        born: bytes,
        enqueued_ns: int,
        *,
        has_run: bool,
    ) -> Rewrite | None:
        table = self._agenda.table
        chunk = table.find(job)
        if chunk is None or chunk.locations[table.index] != location:
            return None
        meta = chunk.metas[table.index]
        attempt = (meta & jobtable.ATTEMPT_MASK) >> jobtable.ATTEMPT_SHIFT
        due_ns, is_wall = needed.dues.get(job, (0, False))
        # A returned job may have no attempt that counts.
        has_run = has_run or attempt > 0 or meta & jobtable.META_BACK != 0
        history, lines = self._retained.attempts(job) if has_run else (b"", b"")
        return Rewrite(
            job, location, model.State(meta & jobtable.STATE_MASK), born, enqueued_ns, attempt,
            due_ns, is_wall, needed.expiries.get(job, 0),
            history=history, lines=lines,
        )  # fmt: skip

    def _settled_item(
        self, job: int, location: int, born: bytes, enqueued_ns: int, *, was_alive: bool
    ) -> Rewrite | None:
        dead = self._agenda.dead
        chunk = dead.find(job)
        if chunk is not None:
            if chunk.locations[dead.index] != location:
                return None
            died_seconds = chunk.metas[dead.index]
            return self._retained.dead_item(job, location, born, enqueued_ns, died_seconds)
        if was_alive:
            self._retained.look_again(job, born, self._next)
        kept = self._retained.kept_item(job, location, born, enqueued_ns)
        if kept is not None:
            return kept
        # Only its key is needed, not its payload.
        until = self._dedup.until_ns(key_hash_of(born), job)
        if until <= self._journal.time_ns or until == dedup.UNTIL_SETTLED:
            return None
        return Rewrite(
            job, location, model.State.ABSENT, options.without_body(born, job), enqueued_ns
        )


def _size(item: Rewrite | Again) -> int:
    if isinstance(item, Again):
        return len(item.record)
    return len(item.born) + len(item.body or b"") + len(item.history) + len(item.lines)


def _place(frame: frames.Frame, offset: int) -> int:
    return frame.at + offset - frame.offset - codec.FRAME_HEADER_SIZE
