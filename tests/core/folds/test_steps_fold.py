"""Jobs in the agenda that wait within their runs."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Final

from taskq.core.folds.agenda import Agenda, apply_signal, apply_waiting
from taskq.core.folds.steps import Form, Signal, Wait, pack_waits
from taskq.core.model import TIME_NS_MAX, State

JOBS: Final = 2 * 4_096
NOW: Final = 10**18
#: Beyond the cost of a scheduled job.
BYTES_MAX: Final = 200


def filled(*, waits: bool) -> tuple[Agenda, int]:
    packed = pack_waits([Wait(Form.EVENT, "paid", 1)])
    gc.collect()
    tracemalloc.start()
    agenda = Agenda()
    lane = agenda.queues.lane(5, b"\7\0default")
    for job in range(1, JOBS + 1):
        if waits:
            agenda.apply_enqueued(job, job * 64, lane, 0)
            agenda.apply_claimed(job, job, 1, 1, 1)
            # As it comes from the log: bytes of its own.
            apply_waiting(agenda, job, 0, TIME_NS_MAX, NOW, bytes(bytearray(packed)), None)
        else:
            agenda.apply_scheduled(job, job * 64, lane, 0, NOW + job, is_wall=False)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return agenda, size


def test_a_job_that_waits_for_an_event_takes_little_more_than_a_scheduled_one() -> None:
    _, scheduled = filled(waits=False)
    agenda, waiting = filled(waits=True)
    assert (waiting - scheduled) / JOBS <= BYTES_MAX
    assert agenda.table.state(7) is State.SCHEDULED
    assert agenda.next_due_ns() is None
    apply_signal(agenda, 7, Signal(JOBS + 1, b"paid", b"", 0))
    assert agenda.steps.awaits(7, "paid")
    agenda.apply_back(7, 0, 0, NOW)
    assert agenda.order.next_ready(9, None) == [7]
