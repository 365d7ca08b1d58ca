"""A crash at any step of a death, a requeue or a purge: the job is one thing or the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest

from taskq.core.model import Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.read.selection import letters
from taskq.log.requests import Op, Settlement, Withdrawal
from tests.effort import grows, some
from tests.log.world import Cut, World, cuts

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from taskq.core.folds.agenda import Agenda
    from tests.log.world import Process

    Act: TypeAlias = Callable[[Process, list[int]], Future[Any]]

pytestmark = grows

SEEDS: Final = some(1, 4)


def is_live(agenda: Agenda, job: int) -> bool:
    return agenda.table.find(job) is not None


def is_dead(agenda: Agenda, job: int) -> bool:
    return agenda.dead.find(job) is not None


def test_every_cut_of_the_log_has_the_job_either_alive_or_dead() -> None:
    """A move to the dead letters, or back, is one record: nothing lies between."""
    world = World()
    process = world.process()
    job = process.enqueue(b"payload")
    for kind in (Kind.RETRIED, Kind.DEAD):
        (delivery,) = process.claim()
        process.settle(delivery, kind, body=b"reason")
    process.ask(Op.REQUEUE, letters(process.committer.sight, [job]).items)
    (delivery,) = process.claim()
    process.settle(delivery, Kind.DEAD, body=b"reason")
    process.ask(Op.PURGE, [job])
    (path,) = world.segments()
    whole = world.machine.content(path)
    seen: list[tuple[bool, bool]] = []
    world.is_whole = False
    for cut in range(len(whole), 64, -1):
        world.machine.put(path, whole[:cut])
        agenda = world.fold().need_agenda()
        state = (is_live(agenda, job), is_dead(agenda, job))
        if not seen or seen[-1] != state:
            seen.append(state)
    alive, dead, gone = (True, False), (False, True), (False, False)
    assert seen == [gone, dead, alive, dead, alive, gone]


# -- cut at every step of the disk -----------------------------------------------------------------


def die(process: Process, jobs: list[int]) -> Future[Any]:
    deliveries = process.claim(99)
    assert [delivery.job for delivery in deliveries] == jobs
    items = [
        Settlement(Kind.DEAD, delivery, b"no", cause=Cause.EXHAUSTED) for delivery in deliveries
    ]
    return process.send(Op.SETTLE, items)


def requeue(process: Process, jobs: list[int]) -> Future[Any]:
    process.catch_up()
    return process.send(Op.REQUEUE, letters(process.committer.sight, jobs).items)


def purge(process: Process, jobs: list[int]) -> Future[Any]:
    process.catch_up()
    return process.send(Op.PURGE, jobs)


def withdraw(process: Process, jobs: list[int]) -> Future[Any]:
    return process.send(Op.WITHDRAW, Withdrawal(jobs))


def pause(process: Process, _: list[int]) -> Future[Any]:
    return process.send(Op.PAUSE, "default")


#: (alive, dead) afterwards
AFTER: Final[dict[Act, tuple[bool, bool]]] = {
    die: (False, True),
    requeue: (True, False),
    purge: (False, False),
    withdraw: (False, False),
}


class Story:
    """Some jobs, brought to where the act begins."""

    def __init__(self, seed: int, *, dead: bool) -> None:
        self.world = World(seed)
        process = self.world.process()
        extras = Extras(key=b"k", headers={"a": "b"})
        self.jobs = [process.enqueue(b"a", extras), *(process.enqueue() for _ in range(4))]
        if dead:
            die(process, self.jobs)
        process.sync()
        process.close()

    def states(self) -> list[tuple[bool, bool]]:
        agenda = self.world.fold().need_agenda()
        return [(is_live(agenda, job), is_dead(agenda, job)) for job in self.jobs]


def check_cut(cut: Cut, act: Act, seed: int, *, dead: bool) -> None:
    story = Story(seed, dead=dead)
    world, jobs = story.world, story.jobs
    before = [(not dead, dead)] * len(jobs)
    process = world.process()
    sent: list[Future[Any]] = []
    with cut.during(world, process):
        sent.append(act(process, jobs))
        process.sync()
    opener = world.process()
    after = story.states()
    assert len(set(after)) == 1, "a part of a slice"
    if after != before:
        assert after[0] == AFTER[act]
    if any(future.done() for future in sent):
        assert (after != before) == (act is not pause), "what was answered is lost"
    check_the_rest(story, opener, act)


def check_the_rest(story: Story, opener: Process, act: Act) -> None:
    """Nothing is lost, and nothing twice: the act can be done again, once, and the jobs run."""
    world, jobs = story.world, story.jobs
    agenda = opener.catch_up().need_agenda()
    if act is pause:
        paused = "default" in agenda.queues.paused
        assert opener.ask(Op.PAUSE, "default") is not paused
        assert world.kinds().count(Kind.PAUSED) == 1
        return
    if not is_live(agenda, jobs[0]) and not is_dead(agenda, jobs[0]):
        return
    if is_dead(agenda, jobs[0]):
        answers = opener.ask(Op.REQUEUE, letters(opener.committer.sight, jobs).items)
        assert answers == [None] * len(jobs)
    requeued = [record.job for record in world.records() if record.type == Kind.REQUEUED]
    assert requeued in ([], jobs)
    deliveries = opener.claim(99)
    assert [delivery.job for delivery in deliveries] == jobs
    assert deliveries[0].headers == {"a": "b"}
    for delivery in deliveries:
        opener.settle(delivery, body=b"done")
    for job in jobs:
        view = world.view(job)
        assert view is not None
        assert (view.state, view.result) == (State.SUCCEEDED, b"done")


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize(
    ("act", "dead"),
    [(die, False), (requeue, True), (purge, True), (withdraw, False), (pause, False)],
)
def test_a_crash_at_any_disk_step_leaves_all_or_nothing_of_a_slice(
    act: Act, *, dead: bool, power: bool
) -> None:
    for cut in cuts(power=power):
        for seed in range(SEEDS):
            check_cut(cut, act, seed, dead=dead)
    assert cut.step > 2
