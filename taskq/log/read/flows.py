"""States and results of a job's inputs, and the steps of a durable job.

Each function runs on the storage thread, so it takes a few milliseconds at most and returns a part
at a time. The fold keeps the locations of recent ends; older ones come from the indexes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core import errors, kinds, model, parsing, records
from taskq.core.flows import HeldInputs
from taskq.core.folds.steps import Wait
from taskq.core.values import NamedTuple
from taskq.log.format import codec, flows
from taskq.log.state.job_history import Story, find_end, job_view, read_job, read_outcome

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import LogView

#: Most jobs in one request for ends: up to 0.4 ms each, if an index is needed.
ENDS_MAX: Final = 64
#: Most jobs in one request for states.
STATES_MAX: Final = 8_192
#: Most unfinished inputs in an explanation.
_NAMED_MAX: Final = 5
#: Inputs of a cancelled job that are checked for a failure.
_LOOKED_AT_MAX: Final = 16
_FAILED: Final = model.SETTLED_STATES - {kinds.after(model.State.RUNNING, kinds.SUCCESS)}


class InputEnd(NamedTuple):
    """State of a job: settled with a result or reason, not settled, or gone."""

    job: int
    #: ABSENT: the log no longer knows the job
    state: model.State
    body: bytes | None = None
    flags: int = 0
    #: location of its last record
    location: int = 0


def look_at_ties(sight: LogView, job: int) -> flows.Takes | None:
    story = read_job(sight.journal, job)
    return None if story is None else story.ties


def awaited(tag: parsing.Tag, ties: flows.Takes, agenda: Agenda, job: int) -> HeldInputs | None:
    held = agenda.flows.remaining(job)
    if held is None:
        return None
    left: list[tuple[str, str]] = []
    for needed in ties.inputs:
        state = agenda.table.state(needed)
        if state is model.State.ABSENT and agenda.dead.find(needed) is None:
            continue
        left.append((tag.id(needed), state.name.lower() if state else "dead"))
        if len(left) >= _NAMED_MAX:
            break
    return HeldInputs(count=held[0], total=len(ties.inputs), named=tuple(left))


def failed_inputs(journal: Journal, story: Story) -> tuple[tuple[str, str], ...] | None:
    """Return (id, state) of failed inputs that cancelled a job; None for another cause.

    Only the first inputs are checked, and none after compaction has moved the job.
    """
    if story.end is None or story.end.cause != str(records.Cause.UPSTREAM):
        return None
    views = [job_view(journal, needed, 0) for needed in story.ties.inputs[:_LOOKED_AT_MAX]]
    failed = [view for view in views if view is not None and view.state in _FAILED]
    return tuple((view.job_id, view.state.name.lower()) for view in failed[:_NAMED_MAX])


def look_at_states(sight: LogView, first: int, count: int) -> list[model.State]:
    agenda = sight.facets.need_agenda()
    return [agenda.table.state(job) for job in range(first, first + min(count, STATES_MAX))]


def look_at_ends(sight: LogView, jobs: list[int]) -> list[InputEnd]:
    agenda = sight.facets.need_agenda()
    ends: list[InputEnd] = []
    for job in jobs[:ENDS_MAX]:
        state = agenda.table.state(job)
        if state is not model.State.ABSENT:
            ends.append(InputEnd(job, state))
            continue
        ends.append(_end(sight, job))
    return ends


def _end(sight: LogView, job: int) -> InputEnd:
    journal, facets = sight.journal, sight.facets
    agenda = facets.need_agenda()
    location = agenda.flows.ended.get(job)
    if location is not None and agenda.dead.find(job) is None:
        try:
            if _is_end_of(journal.files.unchecked_record(location), job):
                return InputEnd(job, *read_outcome(journal, location), location)
        except (errors.LogError, IndexError):
            pass  # compaction removed the segment: the record was rewritten
    try:
        end = find_end(journal, job)
        if end is not None:
            return InputEnd(job, *read_outcome(journal, end), end)
    except errors.JobNotFound:
        pass
    return InputEnd(job, model.State.ABSENT)


def _is_end_of(record: bytes, job: int) -> bool:
    if len(record) < codec.JOB.size or record[codec.KIND_AT] not in kinds.ENDS:
        return False
    return int.from_bytes(record[codec.JOB_AT : codec.JOB_AT + 8], "little") == job


#: Most steps, and most bytes of them, in one read: some 5 ms of work.
READ_MAX: Final = 1_000
READ_BYTES_MAX: Final = 256 * 1024
#: Largest record of a step that is read with its body; a larger one counts as this size.
_WHOLE_BYTES_MAX: Final = 16 * 1024
#: Most bytes of signals in one read.
SIGNALS_BYTES_MAX: Final = 1 << 20


class StepsSeen(NamedTuple):
    """Some steps of a job, and all waits that it has begun."""

    steps: tuple[flows.Stepped, ...]
    #: places of steps with a large body, which ``look_at_body`` reads
    large: frozenset[int]
    waits: tuple[Wait, ...]
    #: place at which the next read begins; 0: no more steps
    next_place: int
    #: the log's time
    time_ns: int


def look_at_steps(sight: LogView, job: int, place: int = 0) -> StepsSeen:
    agenda, files = sight.facets.need_agenda(), sight.journal.files
    places = agenda.steps.places.get(job, ())
    steps: list[flows.Stepped] = []
    large: set[int] = set()
    size, end = 0, place
    while end < len(places) and end < place + READ_MAX and size < READ_BYTES_MAX:
        location, end = places[end], end + 1
        if not location:
            continue
        record = files.unchecked_record(location, _WHOLE_BYTES_MAX)
        step = flows.decode_step(record)
        if codec.LENGTH.unpack_from(record)[0] > len(record):
            step = step._replace(body=b"")
            large.add(step.place)
        steps.append(step)
        size += len(record)
    waits = tuple(agenda.steps.reached(job, agenda.times.shift_ns))
    time_ns = sight.journal.log_time()[0]
    next_place = end if end < len(places) else 0
    return StepsSeen(tuple(steps), frozenset(large), waits, next_place, time_ns)


def look_at_body(sight: LogView, job: int, place: int) -> bytes:
    """Return the stored body of a step."""
    places = sight.facets.need_agenda().steps.places.get(job, ())
    if place >= len(places):
        raise errors.JobNotFound(f"job {sight.journal.tag.id(job)} has no step {place} any more")
    return flows.decode_step(sight.journal.files.unchecked_record(places[place])).body


class StoredSignal(NamedTuple):
    """A signal of a job that no step has taken."""

    number: int
    location: int
    body: bytes
    flags: int


def look_at_signals(sight: LogView, job: int, name: bytes, after: int = 0) -> list[StoredSignal]:
    """Return some signals of this name after the record ``after``, the oldest first."""
    files, stored, size = sight.journal.files, list[StoredSignal](), 0
    for signal in sight.facets.need_agenda().steps.signals.get(job, ()):
        if signal.name == name and signal.number > after:
            sent = flows.decode_step(files.unchecked_record(signal.location))
            stored.append(StoredSignal(signal.number, signal.location, sent.body, sent.flags))
            size += len(sent.body)
            if size > SIGNALS_BYTES_MAX:
                break
    return stored
