"""Transactions across kinds: all of it or nothing, when refused, cut or crashed."""

from __future__ import annotations

from typing import Any

import pytest

from taskq.core.errors import (
    DuplicateKey,
    JobNotFound,
    PayloadTooLarge,
    StaleDelivery,
    TaskqError,
    UsageError,
)
from taskq.core.model import SECOND_NS, Conflict, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.requests import Bundle, Cancel, Delivery, Done, Op, Settlement
from tests.effort import every, grows, some
from tests.log.world import PATH, PLAIN, Process, World, cuts

pytestmark = grows

FIRST = f"{PATH}/log/00000000000000000001.log"
KEYED = Extras(key=b"k")
DAY = 86_400 * SECOND_NS
RAISE = Extras(key=b"k", on_conflict=Conflict.RAISE)


def transact(process: Process, **parts: Any) -> Done:
    bundle = Bundle(**{name: tuple(part) for name, part in parts.items()})
    done: Done = process.ask(Op.TRANSACT, bundle)
    return done


def ack(delivery: Delivery, body: bytes | None = None) -> Settlement:
    return Settlement(Kind.SUCCEEDED, delivery, body)


def state(world: World, job: int) -> State:
    view = world.view(job)
    return State.ABSENT if view is None else view.state


class Scene:
    """Five jobs, three of them claimed, and a transaction that changes everything."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.process = self.world.process()
        self.jobs = [self.process.enqueue(b"%d" % number) for number in range(4)]
        self.jobs.append(self.process.enqueue(b"later", KEYED))
        self.held = self.process.claim(3)
        self.before = self.states()

    def change(self) -> Done:
        """Ack, retry and release the three, cancel two, and put two more."""
        return transact(
            self.process,
            settlements=[
                ack(self.held[0], b"42"),
                Settlement(Kind.RETRIED, self.held[1], b"no", DAY),
                Settlement(Kind.RELEASED, self.held[2], cause=Cause.CALLER),
            ],
            cancels=[self.jobs[3], self.jobs[4]],
            items=[(PLAIN, b"new", RAISE), (PLAIN, b"newer", None)],
        )

    def states(self) -> dict[bytes, State]:
        lsns = [record.lsn for record in self.world.records() if record.type == Kind.ENQUEUED]
        views = [view for lsn in lsns if (view := self.world.view(lsn)) is not None]
        states = {view.payload: view.state for view in views}
        return {
            body: State.READY if state is State.RUNNING else state for body, state in states.items()
        }

    @property
    def after(self) -> dict[bytes, State]:
        return {
            b"0": State.SUCCEEDED, b"1": State.SCHEDULED, b"2": State.READY, b"3": State.CANCELLED,
            b"later": State.CANCELLED, b"new": State.READY, b"newer": State.READY,
        }  # fmt: skip


# -- what it does ----------------------------------------------------------------------------------


def test_what_runs_is_asked_to_end_what_is_settled_is_not_cancelled_and_the_rest_goes_on(
    world: World, process: Process
) -> None:
    running, settled = process.enqueue(), process.enqueue()
    held = process.claim(2)
    done = transact(process, settlements=[ack(held[1])], cancels=[running, settled])
    assert done.cancelled == [Cancel.ASKED, Cancel.TOO_LATE]
    assert (state(world, running), state(world, settled)) == (State.RUNNING, State.SUCCEEDED)


# -- one bad part ----------------------------------------------------------------------------------


def bad_parts(scene: Scene) -> dict[str, tuple[type[TaskqError], dict[str, Any]]]:
    process, held = scene.process, scene.held
    stale = held[2]._replace(token=held[2].token + 1)
    big = b"x" * 1_000_000
    return {
        "stale": (StaleDelivery, {"settlements": [ack(stale)]}),
        "another log's": (StaleDelivery, {"settlements": [ack(held[2]._replace(epoch=1))]}),
        "twice": (UsageError, {"settlements": [ack(held[0]), ack(held[0])]}),
        "no job": (JobNotFound, {"cancels": [process.journal.next_lsn + 100]}),
        "key": (DuplicateKey, {"items": [(PLAIN, b"x", RAISE)]}),
        "key twice": (
            DuplicateKey,
            {"items": [(PLAIN, b"x", Extras(key=b"n")), (PLAIN, b"y", _new_key())]},
        ),
        "bad key": (UsageError, {"items": [(PLAIN, b"x", Extras(key=bytes(2_000)))]}),
        "header": (UsageError, {"items": [(PLAIN, b"x", Extras(headers={"a": "\ud800"}))]}),
        "large": (PayloadTooLarge, {"items": [(PLAIN, big, None)] * 18}),
    }


def _new_key() -> Extras:
    return Extras(key=b"n", on_conflict=Conflict.RAISE)


@pytest.mark.parametrize("name", list(bad_parts(Scene())))
def test_one_bad_part_refuses_all_of_it(name: str) -> None:
    scene = Scene()
    kinds, folds = scene.world.kinds(), scene.process.committer.facets.need_agenda()
    error, bad = bad_parts(scene)[name]
    good: dict[str, list[Any]] = {
        "settlements": [ack(scene.held[1], b"1")],
        "cancels": [scene.jobs[3]],
        "items": [(PLAIN, b"good", None)],
    }
    parts = {part: good[part] + bad.get(part, []) for part in good}
    with pytest.raises(error):
        transact(scene.process, **parts)
    assert scene.world.kinds() == kinds
    assert scene.states() == scene.before
    assert scene.process.committer.facets.need_agenda() is folds
    scene.change()
    assert scene.states() == scene.after


def test_a_bad_transaction_harms_no_other_request_of_its_batch(process: Process) -> None:
    future = process.send(Op.CANCEL, 1)
    job = process.enqueue()
    refused = process.send(Op.TRANSACT, Bundle(cancels=(10**9,), items=((PLAIN, b"no", None),)))
    process.sync()
    assert isinstance(refused.exception(0), JobNotFound)
    assert future.done()
    assert [delivery.job for delivery in process.claim(9)] == [job]


# -- every cut -------------------------------------------------------------------------------------


def test_a_log_cut_at_any_byte_holds_all_of_a_transaction_or_nothing() -> None:
    """The file ends at each byte of the frame in turn; the next open finds one of two states."""
    scene = Scene()
    start = len(scene.world.machine.content(FIRST))
    scene.change()
    scene.process.close()
    whole = scene.world.machine.content(FIRST)
    files = {path: scene.world.machine.content(path) for path in scene.world.machine.paths()}
    seen = []
    sizes = {*range(start, len(whole), every(9)), *range(len(whole) - 12, len(whole) + 1)}
    for size in sorted(sizes):
        cut = Scene.__new__(Scene)
        cut.world = World()
        cut.world.process().close()
        for path, data in (files | {FIRST: whole[:size]}).items():
            cut.world.machine.put(path, data)
        cut.world.lose_power()
        cut.world.process()
        seen.append(cut.states())
    # Zeros pad the frame to a multiple of 8.
    whole_ends = seen.count(scene.after)
    assert 1 <= whole_ends <= 8
    assert seen == [scene.before] * (len(seen) - whole_ends) + [scene.after] * whole_ends


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_disk_step_leaves_all_of_a_transaction_or_nothing(power: bool) -> None:
    seen = set[bool]()
    for cut in cuts(power=power):
        for seed in range(some(2, 6)):
            scene = Scene(seed)
            with cut.during(scene.world, scene.process):
                scene.change()
            scene.world.process()
            states = scene.states()
            assert states in (scene.before, scene.after), f"step {cut.step}, seed {seed}"
            assert cut.came or states == scene.after
            seen.add(states == scene.after)
    assert cut.step > 2
    assert seen == {True, False}
