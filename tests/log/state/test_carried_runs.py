"""Carried records fold in runs to the same state as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.model import Extras, State
from taskq.core.records import Flag, Kind
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried
from taskq.log.format.options import encode_extras
from taskq.log.requests import EnqueueSpec
from taskq.log.state.fold import Watch, fold_records
from tests.log.state.history import BASE, EPOCH, START_NS

_FIRST: Final = 1_000
_HEADER: Final = codec.FrameHeader(0, 0, _FIRST, EPOCH, START_NS, 0, 0, 0)
#: Names that differ in the first or the last letter, or only in where the queue's end.
_SPECS: Final = tuple(
    EnqueueSpec(queue, task, priority, flags=flags)
    for queue, task in (("mail", "send"), ("mail", "senf"), ("mails", "end"), ("m", ""))
    for priority in (5, 9)
    for flags in (Flag.CHECKED, Flag.CHECKED | Flag.DURABLE_CLAIM)
)
_JOBS: Final = st.lists(
    st.tuples(
        st.sampled_from(_SPECS[:2]) | st.sampled_from(_SPECS),
        st.sampled_from(
            (
                "plain",
                "plain",
                "plain",
                "waited",
                "claimed",
                "running",
                "late",
                "long",
                "due",
                "dead",
            )
        ),
        st.sampled_from((1, 1, 1, 2, -3)),
    ),
    max_size=30,
)


def _born(spec: EnqueueSpec, job: int, body: bytes, extras: Extras | None) -> bytes:
    options = b"" if extras is None else encode_extras(extras, START_NS)
    tail = codec.enqueue_tail(
        spec.priority, int(spec.flags), spec.attempts, spec.lane_key[0], spec.lane_key[1],
        spec.route, options,
    )  # fmt: skip
    return codec.encode_checked(tail, body, job)


def _record(spec: EnqueueSpec, how: str, job: int, lsn: int) -> bytes:
    extras = Extras(expires_ns=START_NS) if how == "late" else None
    born = _born(spec, job, b"x" * 300 if how == "long" else b"{}", extras)
    states = {"running": State.RUNNING, "due": State.SCHEDULED, "dead": State.DEAD}
    token = {"claimed": 7, "running": 8}.get(how, 0)
    carried = Carried(
        job=job, state=states.get(how, State.READY), born=born, enqueued_ns=START_NS - job,
        token=token, attempt=1 if token else 0,
        due_ns={"waited": START_NS - 5, "due": START_NS + 5}.get(how, 0),
        claim=(EPOCH, 3) if how == "running" else (0, 0),
    )  # fmt: skip
    return encode_carried(Kind.CARRIED, carried, lsn)


def _records(jobs: Sequence[tuple[EnqueueSpec, str, int]]) -> list[bytes]:
    job, records = 10, []
    for number, (spec, how, step) in enumerate(jobs):
        job = max(job + step, 1)
        records.append(_record(spec, how, job, _FIRST + number))
    return records


def _fold(parts: Sequence[bytes], dedup: Dedup | None = None) -> Agenda:
    agenda, at, lsn = Agenda(), 0, _FIRST
    for data in parts:
        header = _HEADER._replace(first_lsn=lsn)
        fold_records(data, 0, len(data), header, BASE + at, agenda, dedup, None)
        at, lsn = at + len(data), lsn + 1
    return agenda


def _picture(agenda: Agenda) -> object:
    rows = [
        (chunk.ids[at], chunk.locations[at], agenda.lanes[chunk.lanes[at]].key, chunk.metas[at])
        for chunk, at in agenda.table
    ]
    since = [agenda.ready_since_ns(job, START_NS) for job, *_ in rows]
    next_ready = agenda.order.next_ready(100, None)
    dead = [chunk.ids[at] for chunk, at in agenda.dead]
    moments = agenda.next_due_ns(), agenda.next_expiry_ns()
    return rows, since, next_ready, agenda.running, dead, agenda.queues.stats(), moments


@given(jobs=_JOBS)
def test_carried_jobs_fold_in_runs_to_what_they_fold_to_one_by_one(
    jobs: list[tuple[EnqueueSpec, str, int]],
) -> None:
    records = _records(jobs)
    in_runs = _picture(_fold([b"".join(records)]))
    assert in_runs == _picture(_fold(records))
    # A fold of keys takes nothing in runs.
    assert in_runs == _picture(_fold([b"".join(records)], Dedup()))


def test_who_waits_for_a_job_hears_of_an_end_that_is_written_again_alone() -> None:
    watch = Watch()
    watch.jobs = {1, 2, 3}
    records = [_record(_SPECS[0], how, job, _FIRST) for job, how in ((1, "plain"), (2, "dead"))]
    data = b"".join([*records, _record(_SPECS[0], "running", 3, _FIRST)])
    fold_records(data, 0, len(data), _HEADER, BASE, None, None, watch)
    assert watch.jobs == {1, 3}
    assert watch.dead == {2}
    assert watch.take() == [(2, BASE + len(records[0]))]
