"""Dead letters in the folds: requeued, purged, and of paused queues."""

from __future__ import annotations

import pytest

from taskq.core.folds.agenda import Agenda, apply_carried, apply_tallied, forget_dead
from taskq.core.folds.freeze import freeze_agenda, thaw_agenda
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.views import QueueStats
from taskq.log.state.fold import Watch
from tests.core.frozen import Columns

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
KEY = b"\x04\x01mailt"
NEVER = (0, False)


def dead_letter(agenda: Agenda, job: int, meta: int = 0) -> None:
    agenda.apply_enqueued(job, job * 8, agenda.queues.lane(5, KEY), meta)
    assert agenda.order.take(1, None, None).jobs == [job]
    agenda.running[job] = (1, 1, 1)
    agenda.apply_ended(Kind.DEAD, job, NOW)


@pytest.mark.parametrize("tallied_at", range(4))
def test_dead_letters_are_counted_once_however_they_came_and_wherever_a_tally_stands(
    tallied_at: int,
) -> None:
    agenda = Agenda()
    lane = agenda.queues.lane(5, KEY)
    for number in range(4):
        if number == tallied_at:
            apply_tallied(lane, succeeded=7, cancelled=2, expired=1)
        if number in {0, 1}:
            apply_carried(
                agenda, 1 + number, 8, lane, 0, State.DEAD, NEVER, NEVER, (0, 0, 0), 0, NOW
            )
        elif number == 2:
            dead_letter(agenda, 3)
        else:
            forget_dead(agenda, 1)
    assert agenda.queues.stats() == (
        QueueStats(queue="mail", succeeded=7, dead=2, cancelled=2, expired=1),
    )


def test_a_snapshot_that_counted_too_many_dead_letters_is_put_right_when_it_is_read() -> None:
    agenda = Agenda()
    for job in (1, 2):
        dead_letter(agenda, job)
    forget_dead(agenda, 1)
    agenda.queues.lane(5, KEY).dead = 9
    thawed = thaw_agenda(Columns(freeze_agenda(agenda)))
    assert thawed.queues.stats() == (QueueStats(queue="mail", dead=1),)


def test_whoever_waits_for_a_dead_letter_that_is_requeued_waits_on() -> None:
    watch = Watch()
    watch.jobs = {1, 2, 3}
    watch.see(1, 100, Kind.DEAD)
    watch.see(2, 200, Kind.SUCCEEDED)
    watch.see_again(1)
    watch.see_again(2)
    watch.see_again(9)
    assert (watch.jobs, watch.take()) == ({1, 3}, [(2, 200)])
    watch.see(1, 300, Kind.DEAD)
    watch.see_again(1, 400)
    assert (watch.jobs, watch.take(), watch.dead) == ({3}, [(1, 400)], set())
