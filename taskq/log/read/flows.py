"""States and results of jobs that another job waits for, and the steps of a durable job.

Each function runs on the storage thread, so it takes a few milliseconds at most and callers ask for
a part at a time. The fold keeps the places of recent ends; older ones come from the indexes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobNotFound, LogError
from taskq.core.flows import HeldInputs
from taskq.core.folds.steps import Wait
from taskq.core.kinds import ENDS, SUCCESS, after
from taskq.core.model import SETTLED_STATES, State
from taskq.core.parsing import Tag
from taskq.core.records import Cause
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import JOB_AT, KIND_AT
from taskq.log.format.flows import Stepped, Takes, decode_step
from taskq.log.state.job_history import Story, find_end, job_view, read_job, read_outcome

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import LogView

#: Jobs that one look at ends may be asked for: up to 0.4 ms each, where an index is needed.
ENDS_MAX: Final = 64
#: Jobs that one look at states may be asked for.
STATES_MAX: Final = 8_192
#: Unfinished inputs that are named.
_NAMED_MAX: Final = 5
#: Inputs of a cancelled job that are checked for a failure.
_LOOKED_AT_MAX: Final = 16
_FAILED: Final = SETTLED_STATES - {after(State.RUNNING, SUCCESS)}


class InputEnd(NamedTuple):
    """State of a job: settled with a result or reason, not settled, or gone."""

    job: int
    #: ABSENT: nothing is known of it any more
    state: State
    body: bytes | None = None
    flags: int = 0
    #: where the record of its end stands
    location: int = 0


def look_at_ties(sight: LogView, job: int) -> Takes | None:
    story = read_job(sight.journal, job)
    return None if story is None else story.ties


def awaited(tag: Tag, ties: Takes, agenda: Agenda, job: int) -> HeldInputs | None:
    held = agenda.flows.remaining(job)
    if held is None:
        return None
    left: list[tuple[str, str]] = []
    for needed in ties.inputs:
        state = agenda.table.state(needed)
        if state is State.ABSENT and agenda.dead.find(needed) is None:
            continue
        left.append((tag.id(needed), state.name.lower() if state else "dead"))
        if len(left) >= _NAMED_MAX:
            break
    return HeldInputs(count=held[0], total=len(ties.inputs), named=tuple(left))


def failed_inputs(journal: Journal, story: Story) -> tuple[tuple[str, str], ...] | None:
    """(id, state) of failed inputs that cancelled a job; None if the cause was another.

    Only the first inputs are checked, and none after compaction has moved the job.
    """
    if story.end is None or story.end.cause != str(Cause.UPSTREAM):
        return None
    views = [job_view(journal, needed, 0) for needed in story.ties.inputs[:_LOOKED_AT_MAX]]
    failed = [view for view in views if view is not None and view.state in _FAILED]
    return tuple((view.job_id, view.state.name.lower()) for view in failed[:_NAMED_MAX])


def look_at_states(sight: LogView, first: int, count: int) -> list[State]:
    agenda = sight.facets.need_agenda()
    return [agenda.table.state(job) for job in range(first, first + min(count, STATES_MAX))]


def look_at_ends(sight: LogView, jobs: list[int]) -> list[InputEnd]:
    agenda = sight.facets.need_agenda()
    ends: list[InputEnd] = []
    for job in jobs[:ENDS_MAX]:
        state = agenda.table.state(job)
        if state is not State.ABSENT:
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
        except (LogError, IndexError):
            pass  # compaction took its segment: it was written again
    try:
        end = find_end(journal, job)
        if end is not None:
            return InputEnd(job, *read_outcome(journal, end), end)
    except JobNotFound:
        pass
    return InputEnd(job, State.ABSENT)


def _is_end_of(record: bytes, job: int) -> bool:
    if len(record) < codec.JOB.size or record[KIND_AT] not in ENDS:
        return False
    return int.from_bytes(record[JOB_AT : JOB_AT + 8], "little") == job


#: Steps that one look reads, and bytes of them: some 5 ms of work.
READ_MAX: Final = 1_000
READ_BYTES_MAX: Final = 256 * 1024
#: A step is read without its body if its record is larger; it counts as so large then.
_WHOLE_BYTES_MAX: Final = 16 * 1024
#: Bytes of signals that one look reads.
SIGNALS_BYTES_MAX: Final = 1 << 20


class StepsSeen(NamedTuple):
    """Some steps of a job, and every wait that it began."""

    steps: tuple[Stepped, ...]
    #: places of those whose bodies are large: ``look_at_body`` reads one
    large: frozenset[int]
    waits: tuple[Wait, ...]
    #: from which place on the next look goes; 0: there are no more
    next_place: int
    #: the log's time
    time_ns: int


def look_at_steps(sight: LogView, job: int, place: int = 0) -> StepsSeen:
    agenda, files = sight.facets.need_agenda(), sight.journal.files
    places = agenda.steps.places.get(job, ())
    steps: list[Stepped] = []
    large: set[int] = set()
    size, end = 0, place
    while end < len(places) and end < place + READ_MAX and size < READ_BYTES_MAX:
        location, end = places[end], end + 1
        if not location:
            continue
        record = files.unchecked_record(location, _WHOLE_BYTES_MAX)
        step = decode_step(record)
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
    """Return the body of a step, as it is stored.

    Raises:
        JobNotFound: the job has ended.
    """
    places = sight.facets.need_agenda().steps.places.get(job, ())
    if place >= len(places):
        raise JobNotFound(f"job {sight.journal.tag.id(job)} has no step {place} any more")
    return decode_step(sight.journal.files.unchecked_record(places[place])).body


class SignalSeen(NamedTuple):
    """A signal of a job that no step has taken."""

    number: int
    location: int
    body: bytes
    flags: int


def look_at_signals(sight: LogView, job: int, name: bytes, after: int = 0) -> list[SignalSeen]:
    """Return some signals of a name after the record ``after``, the oldest first."""
    files, seen, size = sight.journal.files, list[SignalSeen](), 0
    for signal in sight.facets.need_agenda().steps.signals.get(job, ()):
        if signal.name == name and signal.number > after:
            sent = decode_step(files.unchecked_record(signal.location))
            seen.append(SignalSeen(signal.number, signal.location, sent.body, sent.flags))
            size += len(sent.body)
            if size > SIGNALS_BYTES_MAX:
                break
    return seen
