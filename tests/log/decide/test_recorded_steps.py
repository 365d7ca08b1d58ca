"""Steps, waits within a run, and signals, as the decisions of one process."""

from typing import Any

import pytest

from taskq.core import model
from taskq.core.errors import FormatError, PayloadTooLarge, UsageError
from taskq.core.flows import FlowPart
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS, SIGNAL_BYTES_MAX, Extras, State
from taskq.core.records import STEPS_FEATURE, Cause, Flag, Kind
from taskq.log.config import QueuePolicy
from taskq.log.decide import settle
from taskq.log.decide import steps as decided
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.format.flows import Stepped
from taskq.log.read.flows import READ_BYTES_MAX, look_at_body, look_at_steps
from taskq.log.read.selection import letters
from taskq.log.read.timeline import StepView, steps_of
from taskq.log.requests import Delivery, EnqueueSpec, Op, Trait
from taskq.log.segments import identity
from taskq.log.state.facets import LogView
from taskq.log.state.job_history import read_job
from taskq.log.store.thread import is_behind
from tests.log.world import Process, World, fill_segment, keeping, meaning, tend


def claim(process: Process) -> Delivery:
    (delivery,) = process.claim()
    return delivery


def do(
    process: Process, delivery: Delivery, name: str = "do", number: int = 1,
    form: Form = Form.STEP, **more: Any,
) -> Any:  # fmt: skip
    return process.ask(Op.STEP, NewStep(delivery, form, name, number, **more))


def wait(process: Process, delivery: Delivery, *waits: Wait) -> None:
    process.settle(delivery, Kind.RELEASED, body=pack_waits(waits), cause=Cause.WAITS)


def soon(world: World, seconds: float = 60) -> int:
    return world.clock.wall_ns() + int(seconds * SECOND_NS)


PAID = Wait(Form.EVENT, "paid", 1)


def test_a_wait_keeps_its_start_over_retries_compaction_and_crashes() -> None:
    world = World(config=keeping(keep_bytes=1))
    process = world.process()
    job = process.enqueue()
    delivery = claim(process)
    nap, late = Wait(Form.SLEEP, "sleep", 1, soon(world, 60)), soon(world, 90)
    process.ask(Op.WAIT, (delivery, pack_waits([nap])))
    process.ask(Op.WAIT, (delivery, pack_waits([nap._replace(until_ns=late)])))
    process.settle(delivery, Kind.RETRIED, delay_ns=0)
    # A run that gets no further than to another wait forgets nothing.
    wait(process, claim(process), PAID)
    world.clock.step(500)
    fill_segment(process)
    tend(process)
    for known in (process, world.process()):
        known.catch_up()
        waits = {it.name: it.until_ns for it in look_at_steps(known.committer.sight, job).waits}
        assert waits == {"sleep": nap.until_ns + 500 * SECOND_NS, "paid": 0}
    process.ask(Op.SIGNAL, NewSignal(job, "paid", b"1"))
    delivery = claim(process)
    do(process, delivery, "sleep", form=Form.SLEEP)
    process.catch_up()
    assert [it.name for it in look_at_steps(process.committer.sight, job).waits] == ["paid"]
    process.kill()
    assert claim(world.process()).job == job


def test_large_steps_are_read_without_their_bodies_a_part_at_a_time(process: Process) -> None:
    job = process.enqueue()
    delivery = claim(process)
    bodies = [b"%d" % number * 50_000 for number in range(40)]
    for number, body in enumerate(bodies):
        do(process, delivery, "page", number + 1, body=body)
    do(process, delivery, "small", body=b"1")
    place, looks, seen = 0, 0, list[Stepped]()
    while place or not looks:
        look = look_at_steps(process.committer.sight, job, place)
        assert sum(len(step.body) for step in look.steps) < 2 * READ_BYTES_MAX
        assert look.large == {step.place for step in look.steps if step.name == "page"}
        seen += look.steps
        place, looks = look.next_place, looks + 1
    assert looks > 1
    assert [(step.name, step.number) for step in seen[:40]] == [("page", n + 1) for n in range(40)]
    assert seen[40].body == b"1"
    assert [look_at_body(process.committer.sight, job, n) for n in range(40)] == bodies


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("detach", [False, True])
def test_the_jobs_that_a_job_called_are_cancelled_with_it(
    runs: bool, detach: bool, world: World, process: Process
) -> None:
    job = process.enqueue()
    delivery = claim(process)
    extras = Extras(flow=FlowPart(parent=job))
    items = tuple((EnqueueSpec(), b"child", extras) for _ in range(4))
    step = do(process, delivery, "call", form=Form.CALL, items=items, detach=detach)
    children = range(step.first, step.first + 4)
    process.settle(claim(process))
    running = claim(process)
    if not runs:
        wait(process, delivery, Wait(Form.CALL, "call", 1, 0, step.first, 4))
    process.ask(Op.CANCEL, job)
    if runs:
        process.settle(delivery, Kind.RETRIED, delay_ns=0)
    other = world.process()
    assert not other.claim(9) or detach
    states = [world.job(child).state for child in children]
    expected = [State.CANCELLED] * 2 if not detach else [State.RUNNING] * 2
    assert states == [State.SUCCEEDED, State.RUNNING, *expected]
    process.catch_up()
    assert (running.job in process.catch_up().need_agenda().leases.asked) is not detach
    assert not process.catch_up().need_agenda().steps.orphans


def test_more_jobs_than_fit_into_a_frame_are_cancelled_with_their_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "ORPHANS_MAX", 3)
    world = World()
    process = world.process()
    job = process.enqueue()
    delivery = claim(process)
    items = tuple((EnqueueSpec(), b"child", Extras(flow=FlowPart(parent=job))) for _ in range(8))
    step = do(process, delivery, "call", form=Form.CALL, items=items)
    wait(process, delivery, Wait(Form.CALL, "call", 1, 0, step.first, 8))
    process.ask(Op.CANCEL, job)
    assert is_behind(process.committer)
    process.kill()
    other = world.process()
    other.catch_up().need_agenda()
    while is_behind(other.committer):
        other.commit([])
    assert other.claim(9) == []
    assert {world.job(step.first + at).state for at in range(8)} == {State.CANCELLED}


def children(count: int, parent: int, later: int = 0) -> tuple[Any, ...]:
    extras = Extras(flow=FlowPart(parent=parent), due_ns=later * SECOND_NS)
    spec = EnqueueSpec(task="child", flags=int(Flag(0)))
    return tuple((spec, b"%d" % number, extras) for number in range(count))


def test_limits_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided, "STEPS_MAX", 2)
    monkeypatch.setattr(decided, "SIGNALS_MAX", 2)
    process = World().process()
    job = process.enqueue()
    delivery = claim(process)
    for number in range(2):
        do(process, delivery, number=number)
        process.ask(Op.SIGNAL, NewSignal(job, "paid", b"1"))
    with pytest.raises(UsageError, match="2 steps already"):
        do(process, delivery, number=3)
    with pytest.raises(UsageError, match="2 signals that no step"):
        process.ask(Op.SIGNAL, NewSignal(job, "paid", b"1"))
    with pytest.raises(PayloadTooLarge):
        process.ask(Op.SIGNAL, NewSignal(process.enqueue(), "paid", bytes(SIGNAL_BYTES_MAX + 1)))
    assert (model.STEPS_MAX, model.SIGNALS_MAX) == (10_000, 1_000)


def test_an_older_version_refuses_a_log_with_steps_by_name(
    monkeypatch: pytest.MonkeyPatch, world: World, process: Process
) -> None:
    process.enqueue()
    delivery = claim(process)
    assert not world.reader().identity.incompat
    do(process, delivery)
    assert STEPS_FEATURE in world.reader().identity.incompat
    monkeypatch.setattr(identity, "_KNOWN", identity._KNOWN - {STEPS_FEATURE})
    with pytest.raises(FormatError, match=r"features \['steps-1'\] is unknown: use a newer taskq"):
        world.reader()


@pytest.mark.parametrize("is_told", [True, False])
def test_a_run_finds_its_steps_where_another_process_compacts_the_log(*, is_told: bool) -> None:
    world = World(config=keeping(keep_seconds=1))
    here, other = world.process(), world.process()
    here.enqueue()
    delivery = claim(here)
    do(here, delivery, "charge", body=b'"receipt"')
    first = fill_segment(here)
    here.catch_up().need_agenda()
    here.journal.files.close_others()

    def compact() -> None:
        fill_segment(other)
        world.clock.advance(10)
        tend(other)
        assert first not in world.reader().files.lsns

    def look(sight: LogView) -> list[str]:
        if is_told and first in world.reader().files.lsns:
            compact()
        return [step.title for step in look_at_steps(sight, delivery.job).steps]

    if not is_told:
        compact()
        other.journal.writer.void_hint()
        other.kill()
    assert here.ask(Op.LOOK, (look, Trait.AGENDA)) == ["charge#1"]


@pytest.mark.parametrize("requeued", [False, True])
def test_a_dead_letter_keeps_what_it_had_waited_for(*, requeued: bool) -> None:
    """Its next run counts the timeout from the first time, also where the log was compacted."""
    world = World(config=keeping(keep_seconds=1))
    process = world.process()
    job = process.enqueue()
    until_ns = soon(world, 9_000)
    waits = Wait(Form.EVENT, "paid", 1, until_ns), Wait(Form.SLEEP, "sleep", 1, soon(world, 1))
    wait(process, claim(process), *waits)
    world.clock.advance(2)
    process.settle(claim(process), Kind.DEAD, body=b"no")
    for goes in (requeued, False):
        if goes:
            process.ask(Op.REQUEUE, letters(process.committer.sight, [job]).items)
            claim(process)
        first = fill_segment(process)
        fill_segment(process)
        world.clock.advance(10)
        tend(process)
        assert first not in world.reader().files.lsns
    folded = world.fold()
    assert job in meaning(folded, world.clock.wall_ns())["steps"]
    assert folded.need_agenda().steps.begun == process.catch_up().need_agenda().steps.begun
    assert folded.need_agenda().steps.begun[job] == pack_waits(waits)


def shown(world: World, job: int) -> tuple[StepView, ...]:
    story = read_job(world.reader(), job)
    return () if story is None else steps_of(story.records)


@pytest.mark.parametrize("upkeep", ["between", "last"])
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_a_finished_job_that_is_kept_keeps_its_steps(segments: int, upkeep: str) -> None:
    queues = {"mail": QueuePolicy(keep_seconds=10_000)}
    world = World(config=keeping(keep_seconds=1, queues=queues))
    process = world.process()
    job, other = process.enqueue(spec=EnqueueSpec("mail", "task")), process.enqueue()
    delivery, gone = process.claim(2)
    moments = []
    for number in range(segments):
        do(process, gone, number=number + 1)
        do(process, delivery, number=number + 1, body=b'"%d"' % number)
        moments.append(world.clock.wall_ns())
        if number + 1 < segments:
            fill_segment(process)
        world.clock.advance(10)
        if upkeep == "between":
            tend(process)
    process.settle(delivery, body=b"7")
    process.settle(gone)
    for _ in range(4):
        fill_segment(process)
        world.clock.advance(10)
        tend(process)
    assert world.reader().files.lsns[0] > gone.job
    seen = [(step.title, step.value, step.ended_ns) for step in shown(world, job)]
    assert seen == [(f"do#{at + 1}", b'"%d"' % at, moments[at]) for at in range(segments)]
    assert not shown(world, other)
    assert not world.fold().need_agenda().steps
    world.clock.advance(10_000)
    for _ in range(3):
        fill_segment(process)
        world.clock.advance(10)
        tend(process)
    assert not any(record.type == Kind.STEP_DONE for record in world.records())
