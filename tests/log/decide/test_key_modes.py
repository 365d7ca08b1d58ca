"""Keys: how long they are held, and the answer to an enqueue with a held key."""

from __future__ import annotations

import pytest

from taskq.core.errors import DuplicateKey, UsageError
from taskq.core.folds.dedup import key_hash
from taskq.core.model import SECOND_NS, Conflict, Extras, State
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import Duplicate, EnqueueSpec, Op
from tests.effort import grows
from tests.log.world import PLAIN, Process, World, cuts

pytestmark = grows

MINUTE = 60 * SECOND_NS
MAIL = EnqueueSpec("mail", "mail.send")


def key(
    name: str = "k", window_ns: int = 0, conflict: Conflict = Conflict.FIRST, *, both: bool = False
) -> Extras:
    return Extras(key=name.encode(), window_ns=window_ns, until_settled=both, on_conflict=conflict)


REPLACE = key(conflict=Conflict.REPLACE)
RAISE = key(conflict=Conflict.RAISE)


def holders(world: World, name: str = "k", queue: str = "default") -> list[int]:
    """Whom a fold by somebody else finds to hold the key."""
    dedup = world.fold().need_dedup()
    hashed = key_hash(queue.encode(), name.encode())
    return [job for job, _ in dedup.holders(hashed, world.clock.wall_ns())]


def test_keys_that_hash_alike_are_told_apart(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.log.decide.enqueue.key_hash", lambda *_: 7)
    first = process.enqueue(extras=key("a"))
    other_key = process.enqueue(extras=key("b"))
    other_queue = process.enqueue(extras=key("a"), spec=MAIL)
    assert process.offer(extras=key("a")) == Duplicate(first)
    assert process.offer(extras=key("b")) == Duplicate(other_key)
    assert process.offer(extras=key("a"), spec=MAIL) == Duplicate(other_queue)


# -- until the window, the job, or both are over ---------------------------------------------------


@pytest.mark.parametrize("extras", [key(), key(window_ns=MINUTE, both=True)])
def test_a_job_whose_record_does_not_read_frees_its_key_as_it_ends(
    world: World, process: Process, extras: Extras
) -> None:
    other = world.process()
    job = process.enqueue(b"", extras)
    other.catch_up()
    world.clock.advance("2m")
    path = world.segments()[0]
    sectors = range(len(world.machine.content(path)) // 512 + 1)
    process.catch_up()
    process.committer.operations.context.recent.clear()
    world.machine.unreadable = {(path, sector) for sector in sectors}
    assert not process.claim()
    world.machine.unreadable = set()
    assert not holders(world)
    assert other.enqueue(b"", extras) != job


# -- on conflict -----------------------------------------------------------------------------------


def test_one_batch_may_replace_its_own_jobs(world: World, process: Process) -> None:
    lsns = process.ask(Op.ENQUEUE_MANY, [(PLAIN, b"%d" % number, REPLACE) for number in range(3)])
    assert holders(world) == [lsns[2]]
    assert [delivery.payload for delivery in process.claim(9)] == [b"2"]


def test_a_held_key_raises_when_asked_to(world: World, process: Process) -> None:
    """The error names the job; nothing is written; and when the key is free nothing is raised."""
    first = process.enqueue(extras=RAISE)
    before = world.kinds()
    with pytest.raises(DuplicateKey, match=r"key 'k' of queue 'default' is held by job") as caught:
        process.offer(extras=RAISE)
    assert caught.value.job_id == f"{process.journal.tag}-{first}"
    assert caught.value.key == b"k"
    assert world.kinds() == before
    process.enqueue(extras=RAISE, spec=MAIL)
    for delivery in process.claim(2):
        process.settle(delivery)
    process.enqueue(extras=RAISE)


def test_a_refusal_is_no_more_durable_than_the_job_that_it_names(world: World) -> None:
    """The holder is not on disk yet: who is refused because of it waits until it is."""
    writer, other = world.process(), world.process()
    writer.send(Op.ENQUEUE, (PLAIN, b"x", RAISE))
    refused = other.send(Op.ENQUEUE, (PLAIN, b"x", RAISE))
    assert not refused.done()
    other.sync()
    assert isinstance(refused.exception(0), DuplicateKey)
    world.lose_power()
    assert len(holders(world)) == 1


def test_a_child_meets_the_window_that_its_parent_holds_on(world: World) -> None:
    process = world.process()
    extras = key(window_ns=MINUTE, conflict=Conflict.RAISE, both=True)
    process.enqueue(extras=extras)
    (held,) = process.claim()
    with pytest.raises(DuplicateKey):
        process.settle(held, children=((PLAIN, b"child", extras),))
    world.clock.advance(60)
    process.settle(held, children=((PLAIN, b"child", extras),))
    assert len(holders(world)) == 1


# -- limits, and older readers ---------------------------------------------------------------------


def test_held_keys_are_limited(world: World) -> None:
    """The error names the limit; jobs without a key go on, and so do keys once others are free."""
    process = world.process(LogConfig(segment_bytes=SEGMENT_BYTES_MIN, keys_max=3))
    for number in range(3):
        process.enqueue(extras=key(f"k{number}"))
    with pytest.raises(UsageError, match="3 dedup keys are held, and keys_max is 3"):
        process.offer(extras=key("another"))
    process.enqueue()
    process.settle(process.claim()[0])
    process.enqueue(extras=key("another"))
    process.settle(process.claim()[0])
    with pytest.raises(UsageError, match="keys_max"):
        process.ask(Op.ENQUEUE_MANY, [(PLAIN, b"", key("a")), (PLAIN, b"", key("b"))])
    with pytest.raises(UsageError, match="keys_max is 0, it must be above 0"):
        LogConfig(keys_max=0)


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [True, False])
def test_a_key_has_one_holder_whatever_step_a_replacement_is_cut_at(power: bool) -> None:
    """Either the old job waits still, or it is cancelled and the new one has its key."""
    for cut in cuts(power=power):
        world = World(cut.step)
        process = world.process()
        first = process.enqueue(b"old", REPLACE)
        with cut.during(world, process):
            process.offer(b"new", REPLACE)
        (holder,) = _reopened(world) if cut.came else holders(world)
        assert [delivery.job for delivery in world.process().claim(9)] == [holder]
        view = world.view(first)
        assert view is not None
        assert (view.state is State.CANCELLED) == (holder != first)
    assert cut.step > 2


def _reopened(world: World) -> list[int]:
    world.process()
    return holders(world)


@pytest.mark.parametrize("conflict", Conflict)
def test_a_key_that_is_held_needs_no_room_for_another(world: World, conflict: Conflict) -> None:
    """With keys_max reached, its enqueue is answered as at any time; alone, and among many."""
    process = world.process(LogConfig(segment_bytes=SEGMENT_BYTES_MIN, keys_max=2))
    first, second = (process.enqueue(extras=key(name)) for name in "ab")
    again = key("a", conflict=conflict)
    if conflict is Conflict.RAISE:
        with pytest.raises(DuplicateKey, match=f"is held by job .*-{first}"):
            process.offer(extras=again)
    elif conflict is Conflict.REPLACE:
        first = process.enqueue(extras=again)
    assert process.offer(extras=key("a")) == Duplicate(first)
    items = [(PLAIN, b"{}", key(name)) for name in "aba"]
    answers = process.ask(Op.ENQUEUE_MANY, items)
    assert answers == [Duplicate(first), Duplicate(second), Duplicate(first)]
    with pytest.raises(UsageError, match="keys_max is 2"):
        process.ask(Op.ENQUEUE_MANY, [*items, (PLAIN, b"{}", key("c"))])
