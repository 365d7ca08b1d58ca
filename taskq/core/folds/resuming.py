"""Apply the records of jobs that go on where they were: their steps, signals and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.folds.jobtable import META_STEPS
from taskq.core.folds.steps import Form, Signal, shifted

if TYPE_CHECKING:
    from taskq.core.folds.agenda import Agenda


def apply_step(
    agenda: Agenda,
    job: int,
    place: int,
    location: int,
    taken: int,
    once: bytes,
    title: tuple[str, int] | None = None,
    called: tuple[int, int] | None = None,
    form: int = Form.STEP,
) -> None:
    """A step of a job is done; see ``Steps.apply_step``.

    ``title`` is its name and number; ``called`` the first of the jobs that it enqueued and that are
    cancelled with this one, and how many.
    """
    steps = agenda.steps
    steps.apply_step(job, place, location, taken, once, form)
    if title is not None and job in steps.begun:
        steps.apply_over(job, *title)
    if called is not None:
        steps.apply_called(job, *called)
    _mark(agenda, job)


def apply_begun(agenda: Agenda, job: int, packed: bytes) -> None:
    """A running job begins to wait for these; its run goes on."""
    agenda.steps.apply_begun(job, shifted(packed, -agenda.times.shift_ns))
    _mark(agenda, job)


def apply_signal(agenda: Agenda, job: int, signal: Signal) -> None:
    agenda.steps.apply_signal(job, signal)
    _mark(agenda, job)


def apply_waiting(
    agenda: Agenda,
    job: int,
    attempt: int,
    due_ns: int,
    now_ns: int,
    packed: bytes,
    needs: int | None,
) -> None:
    """A running job waits for these within its run, until ``due_ns`` at the latest.

    It does not wait at all if that has passed. ``needs`` is as for ``apply_held``.
    """
    if not agenda.apply_back(job, attempt, due_ns, now_ns):
        return
    _mark(agenda, job)
    waits = due_ns > now_ns
    agenda.steps.apply_waits(job, shifted(packed, -agenda.times.shift_ns), now=waits)
    if waits and needs is not None:
        agenda.flows.hold(job, needs)


def _mark(agenda: Agenda, job: int) -> None:
    chunk = agenda.table.find(job)
    if chunk is not None:
        chunk.metas[agenda.table.index] |= META_STEPS
