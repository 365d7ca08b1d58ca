"""Events of one job, in order, with the processes that caused them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskq.core import fingerprints, kinds, model, records
from taskq.core import views as documents
from taskq.core.folds.steps import Form, unpack_waits, waited_for
from taskq.core.values import NamedTuple, dataclass
from taskq.log.format import codec, frames
from taskq.log.format.carried import Carried, decode_history
from taskq.log.format.record import Record
from taskq.log.machine.owners import owner_view
from taskq.log.read.gauges import introductions

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

#: Records that name their claim, or begin one.
_OF_CLAIMS: Final = kinds.ENDS_OF_CLAIMS | kinds.LEASING


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Event of a job. Moments are nanoseconds of wall time, 0 for none.

    Attributes:
        time_ns: time of the event.
        kind: "enqueued", "claimed", "succeeded", "retried", "dead", "released", "cancelled",
            "cancel_asked" (while it ran), "expired", "extended", "requeued", "purged", "stepped"
            and "signalled" (``reason`` names the step or signal), "edited" (``reason`` has the
            change), "acted" (an operator's request: ``reason`` has name and request), or "carried"
            (compaction rewrote it).
        lsn: of its record; 0 if compaction removed it.
        attempt: attempts counted so far.
        owner: number of the claiming process; 0 for none.
        pid, worker, host: of that process, if known.
        cause: why it was released, retried, cancelled or died: "caller", "owner_lost", ….
        due_ns: new due time of the job.
        reason: the task's exception, or the text given at the end of the attempt.
        task: name of the job's task.
    """

    time_ns: int
    kind: str
    lsn: int = 0
    attempt: int = 0
    owner: int = 0
    pid: int = 0
    worker: str = ""
    host: str = ""
    cause: str = ""
    due_ns: int = 0
    reason: str = ""
    task: str = field(default="", compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON document: an entry of ``taskq timeline --json``."""
        error, message, fingerprint = self.failure
        return {
            "time": documents.moment(self.time_ns),
            "kind": self.kind,
            "lsn": self.lsn or None,
            "attempt": self.attempt,
            "owner": documents.owner(self.owner) if self.owner else None,
            "pid": self.pid or None,
            "worker": self.worker or None,
            "host": self.host or None,
            "cause": self.cause or None,
            "due_at": documents.moment(self.due_ns),
            "reason": self.reason or None,
            "error": error or None,
            "message": message or None,
            "fingerprint": fingerprint or None,
        }

    @property
    def failure(self) -> tuple[str, str, str]:
        """Return (class of the error, its message, fingerprint) of a failed attempt; else all "".

        See ``AttemptView.fingerprint``.
        """
        is_lost = self.kind == "released" and self.cause == str(records.Cause.OWNER_LOST)
        return fingerprints.failure_of(self.task, "lost" if is_lost else self.kind, self.reason)


Item = TypeVar("Item", JobEvent, documents.AttemptView)


class StepView(NamedTuple):
    """Recorded step of a job. Times are nanoseconds of wall time; ``form`` is as in ``StepDone``.

    ``value`` is JSON as stored; None if it is compressed.
    """

    title: str
    form: str
    began_ns: int
    ended_ns: int
    attempt: int
    value: bytes | None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON document: an entry of ``steps`` in ``taskq show --json``."""
        text = None if self.value is None else self.value.decode("utf-8", "replace")
        return {
            "step": self.title,
            "form": self.form,
            "began_at": documents.moment(self.began_ns),
            "ended_at": documents.moment(self.ended_ns),
            "attempt": self.attempt,
            "value": text,
        }


def steps_of(records: Iterable[Record]) -> tuple[StepView, ...]:
    steps: dict[int, StepView] = {}
    for record in records:
        step = record.step
        if step is None or record.type != kinds.STEP:
            continue
        form = Form(step.form).name.lower() if step.form in set(Form) else str(step.form)
        value = None if step.flags else step.body
        ended_ns = step.ended_ns or record.time_ns
        view = StepView(step.title, form, step.began_ns, ended_ns, record.attempt, value)
        steps.setdefault(step.place, view)
    return tuple(steps[place] for place in sorted(steps))


def events_of(records: Iterable[Record]) -> list[JobEvent]:
    events: list[JobEvent] = []
    owner = 0
    task = ""
    place: tuple[str, int | None] | None = None
    for record in records:
        task = task or record.task
        if record.carried is not None and not events:
            events += _from_carried(record.carried)
            owner = record.carried.claim[1]
        if record.type in kinds.CLAIMS:
            owner = record.token
        event = _event(record, owner)
        if record.type in kinds.EDITS:
            event = replace(event, reason=_edited(record, place))
        if record.queue:
            place = record.queue, record.priority
        if record.type == kinds.ACT:  # a rewritten act keeps its place
            after = (at for at, it in enumerate(events) if it.time_ns > event.time_ns)
            events.insert(next(after, len(events)), event)
        elif record.type != kinds.WAIT:  # the release after it shows the wait
            events.append(event)
        if record.type in kinds.ENDS_OF_CLAIMS:
            owner = 0
    return [replace(event, task=task) for event in events]


def name_workers(journal: Journal, events: Sequence[JobEvent]) -> tuple[JobEvent, ...]:
    return _named(journal, events, max((event.lsn for event in events), default=0))


def name_attempts(
    journal: Journal, attempts: Sequence[documents.AttemptView]
) -> tuple[documents.AttemptView, ...]:
    return _named(journal, attempts, codec.LSN_MAX)


def _named(journal: Journal, items: Sequence[Item], through_lsn: int) -> tuple[Item, ...]:
    owners = _describe(journal, {item.owner for item in items if item.owner}, through_lsn)
    return tuple(
        replace(item, pid=owner.pid, worker=owner.name, host=owner.host)
        if (owner := owners.get(item.owner)) is not None
        else item
        for item in items
    )


def _edited(record: Record, before: tuple[str, int | None] | None) -> str:
    """Return the known change of the job's place by an edit."""
    queue, priority = before or (record.queue, record.priority)
    changes = []
    if queue != record.queue:
        changes.append(f"queue {queue}, now {record.queue}")
    if priority != record.priority:
        changes.append(f"priority {priority}, now {record.priority}")
    if record.carried is not None and record.carried.state is model.State.READY:
        changes.append("ready")
    return "; ".join(changes)


def _event(record: Record, owner: int) -> JobEvent:
    kind = record.type
    reason = record.reason if kind in kinds.WITH_CAUSE or kind == kinds.ACT else ""
    if record.step is not None:
        reason = record.step.title
    elif record.awaits:
        reason = f"waits for {waited_for(unpack_waits(record.awaits))}"
    due_ns = record.due_ns
    if kind in kinds.CARRYING:
        due_ns = 0
    if kind in kinds.EDITS and record.carried is not None:
        due_ns = record.carried.due_ns if record.carried.state is model.State.SCHEDULED else 0
    return JobEvent(
        time_ns=record.acted_ns or record.time_ns,
        kind=record.kind,
        lsn=record.lsn,
        attempt=record.attempt,
        owner=owner if kind in _OF_CLAIMS else 0,
        cause=record.cause,
        due_ns=due_ns,
        reason=reason,
    )


def _from_carried(carried: Carried) -> Iterator[JobEvent]:
    """Yield the events in a record that replaced removed records."""
    yield JobEvent(time_ns=carried.enqueued_ns, kind="enqueued")
    last_ns = 0
    for attempt in decode_history(carried.history):
        claimed = JobEvent(
            time_ns=attempt.started_ns,
            kind="claimed",
            attempt=attempt.number,
            owner=attempt.owner,
        )
        yield claimed
        if attempt.ended_ns:
            last_ns = attempt.ended_ns
            yield replace(claimed, time_ns=last_ns, kind=attempt.outcome, reason=attempt.reason)
    state = carried.state
    if state not in model.LIVE_STATES and carried.ended_ns > last_ns:
        what = "dead" if state is model.State.DEAD else state.name.lower()
        yield JobEvent(time_ns=carried.ended_ns, kind=what, attempt=carried.attempt)


def _describe(
    journal: Journal, owners: set[int], through_lsn: int
) -> dict[int, documents.OwnerView]:
    """Return descriptions of owners, from their files if they live, else from the log.

    A process describes itself in the log before its first claim, perhaps long before the job came.
    So the segments are searched from the newest relevant one to the oldest.
    """
    views = (owner_view(Path(journal.path) / "owners", owner) for owner in owners)
    known = {view.owner: view for view in views if view.pid}
    files, end = journal.files, journal.end()
    for segment in reversed([lsn for lsn in files.lsns if lsn <= min(end.segment, through_lsn)]):
        if owners <= known.keys():
            break
        start = frames.Cursor(segment, codec.SEGMENT_HEADER.size, segment)
        size = end.offset if segment == end.segment else files.size(segment)
        for frame in frames.whole(files.frames(start, frames.Cursor(segment, size, segment))):
            for view in introductions(frame):
                if view.owner in owners:
                    known.setdefault(view.owner, view)
    return known
