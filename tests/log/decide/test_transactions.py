"""Transactions across kinds: all of it or nothing, when refused, cut or crashed."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from taskq.core import errors, sources
from taskq.core.folds.dedup import key_hash
from taskq.core.model import SECOND_NS, Conflict, Extras, State
from taskq.core.records import Cause, Kind
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.log import requests
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide.enqueue import together
from taskq.log.format.notes import decode_moved, decode_ticked, encode_moved, encode_ticked
from taskq.log.read.selection import letters
from taskq.log.requests import Delivery, EnqueueSpec, Op, Settlement
from tests.effort import grows, some
from tests.log.world import PATH, PLAIN, Process, World, cuts

pytestmark = grows

FIRST = f"{PATH}/log/00000000000000000001.log"
KEYED = Extras(key=b"k")
DAY = 86_400 * SECOND_NS
RAISE = Extras(key=b"k", on_conflict=Conflict.RAISE)


def transact(process: Process, **parts: Any) -> requests.Done:
    bundle = requests.Bundle(**{name: tuple(part) for name, part in parts.items()})
    done: requests.Done = process.ask(Op.TRANSACT, bundle)
    return done


def ack(delivery: Delivery, body: bytes | None = None) -> Settlement:
    return Settlement(Kind.SUCCEEDED, delivery, body)


def state(world: World, job: int) -> State:
    view = world.view(job)
    return State.ABSENT if view is None else view.state


class Scene:
    """Two dead letters and five jobs, three of them claimed, and acts that change much."""

    def __init__(self, seed: int = 0) -> None:
        self.world = World(seed)
        self.process = self.world.process()
        self.dead = [self.process.enqueue(b"dead %d" % number) for number in range(2)]
        for delivery in self.process.claim(2):
            self.process.settle(delivery, Kind.DEAD, body=b"no")
        self.jobs = [self.process.enqueue(b"%d" % number) for number in range(4)]
        self.jobs.append(self.process.enqueue(b"later", KEYED))
        self.held = self.process.claim(3)
        self.before = self.states()

    def change(self) -> requests.Done:
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

    def die(self) -> None:
        ends = [
            Settlement(Kind.DEAD, delivery, b"no", cause=Cause.REJECTED) for delivery in self.held
        ]
        self.process.ask(Op.SETTLE, ends)

    def requeue(self) -> None:
        self.process.catch_up()
        self.process.ask(Op.REQUEUE, letters(self.process.committer.sight, self.dead).items)

    def purge(self) -> None:
        self.process.ask(Op.PURGE, self.dead)

    def withdraw(self) -> None:
        self.process.ask(Op.WITHDRAW, requests.Withdrawal(self.jobs[3:]))

    def replace(self) -> None:
        self.process.offer(b"new", Extras(key=b"k", on_conflict=Conflict.REPLACE))

    def ingest(self) -> None:
        self.process.ask(Op.INGEST, _ingest(10, 13))

    def states(self) -> dict[bytes, State]:
        lsns = [record.lsn for record in self.world.records() if record.type == Kind.ENQUEUED]
        views = [view for lsn in lsns if (view := self.world.view(lsn)) is not None]
        states = {view.payload: view.state for view in views}
        return {
            body: State.READY if state is State.RUNNING else state for body, state in states.items()
        }


#: States after ``Scene.change``.
CHANGED: Final = {
    b"dead 0": State.DEAD, b"dead 1": State.DEAD,
    b"0": State.SUCCEEDED, b"1": State.SCHEDULED, b"2": State.READY, b"3": State.CANCELLED,
    b"later": State.CANCELLED, b"new": State.READY, b"newer": State.READY,
}  # fmt: skip


def bad_parts(scene: Scene) -> dict[str, tuple[type[errors.TaskqError], dict[str, Any]]]:
    process, held = scene.process, scene.held
    stale = held[2]._replace(token=held[2].token + 1)
    big = b"x" * 1_000_000
    return {
        "stale": (errors.StaleDelivery, {"settlements": [ack(stale)]}),
        "another log's": (errors.StaleDelivery, {"settlements": [ack(held[2]._replace(epoch=1))]}),
        "twice": (errors.UsageError, {"settlements": [ack(held[0]), ack(held[0])]}),
        "no job": (errors.JobNotFound, {"cancels": [process.journal.next_lsn + 100]}),
        "key": (errors.DuplicateKey, {"items": [(PLAIN, b"x", RAISE)]}),
        "key twice": (
            errors.DuplicateKey,
            {"items": [(PLAIN, b"x", Extras(key=b"n")), (PLAIN, b"y", _new_key())]},
        ),
        "bad key": (errors.UsageError, {"items": [(PLAIN, b"x", Extras(key=bytes(2_000)))]}),
        "header": (errors.UsageError, {"items": [(PLAIN, b"x", Extras(headers={"a": "\ud800"}))]}),
        "large": (errors.PayloadTooLarge, {"items": [(PLAIN, big, None)] * 18}),
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
    assert scene.states() == CHANGED


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize(
    "act",
    [Scene.change, Scene.die, Scene.requeue, Scene.purge, Scene.withdraw, Scene.replace,
     Scene.ingest],
)  # fmt: skip
def test_a_crash_at_any_disk_step_leaves_all_of_a_request_or_nothing(
    act: Callable[[Scene], object], power: bool
) -> None:
    whole = Scene()
    act(whole)
    after = whole.states()
    seen = set[bool]()
    for cut in cuts(power=power):
        for seed in range(some(1, 6)):
            scene = Scene(seed)
            with cut.during(scene.world, scene.process):
                act(scene)
            opener = scene.world.process()
            states = scene.states()
            assert states in (scene.before, after), f"step {cut.step}, seed {seed}"
            assert cut.came or states == after
            seen.add(states == after)
            position = opener.catch_up().need_agenda().sources.get("file")
            assert (position is None) == (states == scene.before or act is not Scene.ingest)
    assert cut.step > 2
    assert seen == {True, False}


def _never(item: Settlement, error: errors.TaskqError) -> None:
    raise AssertionError(f"{item.delivery!r}: {error}")


def _dead(delivery: Delivery) -> Settlement:
    return Settlement(Kind.DEAD, delivery, b"no", cause=Cause.EXHAUSTED)


def test_a_listener_that_left_hears_of_no_death(process: Process) -> None:
    deaths = process.committer.operations.deaths
    stay, leave = [deaths.listen(port, object(), lambda *_: None) for port in ("a", "b")]
    for heard in (["a", "b"], ["a"], []):
        process.enqueue()
        (delivery,) = process.claim()
        process.committer.answers.later.clear()
        process.committer.commit([(Op.SETTLE_NOWAIT, None, None, ([_dead(delivery)], _never))])
        ports = [port for port, *_ in process.committer.answers.later if port is not None]
        assert sorted(ports) == heard
        (leave if len(heard) == 2 else stay)()


MINUTE = 60 * SECOND_NS
MAIL = EnqueueSpec("mail", "mail.send")


def key(
    name: str = "k", window_ns: int = 0, conflict: Conflict = Conflict.FIRST, *, both: bool = False
) -> Extras:
    return Extras(key=name.encode(), window_ns=window_ns, until_settled=both, on_conflict=conflict)


REPLACE = key(conflict=Conflict.REPLACE)


def holders(world: World, name: str = "k", queue: str = "default") -> list[int]:
    """Whom a fold by somebody else finds to hold the key."""
    dedup = world.fold().need_dedup()
    hashed = key_hash(queue.encode(), name.encode())
    return [job for job, _ in dedup.holders(hashed, world.clock.wall_ns())]


def test_keys_with_equal_hashes_stay_apart(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.log.decide.enqueue.key_hash", lambda *_: 7)
    first = process.enqueue(extras=key("a"))
    other_key = process.enqueue(extras=key("b"))
    other_queue = process.enqueue(extras=key("a"), spec=MAIL)
    assert process.offer(extras=key("a")) == requests.Duplicate(first)
    assert process.offer(extras=key("b")) == requests.Duplicate(other_key)
    assert process.offer(extras=key("a"), spec=MAIL) == requests.Duplicate(other_queue)


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


def test_a_child_meets_the_window_that_its_parent_holds_on(world: World) -> None:
    process = world.process()
    extras = key(window_ns=MINUTE, conflict=Conflict.RAISE, both=True)
    process.enqueue(extras=extras)
    (held,) = process.claim()
    with pytest.raises(errors.DuplicateKey):
        process.settle(held, children=((PLAIN, b"child", extras),))
    world.clock.advance(60)
    process.settle(held, children=((PLAIN, b"child", extras),))
    assert len(holders(world)) == 1


@pytest.mark.parametrize("conflict", Conflict)
def test_a_key_that_is_held_needs_no_room_for_another(world: World, conflict: Conflict) -> None:
    """With keys_max reached, its enqueue is answered as at any time; alone, and among many."""
    process = world.process(LogConfig(segment_bytes=SEGMENT_BYTES_MIN, keys_max=2))
    first, second = (process.enqueue(extras=key(name)) for name in "ab")
    again = key("a", conflict=conflict)
    if conflict is Conflict.RAISE:
        with pytest.raises(errors.DuplicateKey, match=f"is held by job .*-{first}"):
            process.offer(extras=again)
    elif conflict is Conflict.REPLACE:
        first = process.enqueue(extras=again)
    assert process.offer(extras=key("a")) == requests.Duplicate(first)
    items = [(PLAIN, b"{}", key(name)) for name in "aba"]
    answers = process.ask(Op.ENQUEUE_MANY, items)
    assert answers == [
        requests.Duplicate(first),
        requests.Duplicate(second),
        requests.Duplicate(first),
    ]
    with pytest.raises(errors.UsageError, match="keys_max is 2"):
        process.ask(Op.ENQUEUE_MANY, [*items, (PLAIN, b"{}", key("c"))])


def _ingest(
    first: int, end: int, *, after: object = None, key: bytes | None = None
) -> requests.Ingest:
    extras = Extras(key=key, on_conflict=Conflict.RAISE) if key else None
    items: list[requests.Item] = [(PLAIN, b"%d" % line, extras) for line in range(first, end)]
    return requests.Ingest(sources.checked_move("file", end, after), together(items))


def test_number_and_bytes_of_sources_are_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.process()
    assert (sources.SOURCES_MAX, sources.SOURCES_BYTES_MAX) == (10_000, 1024**2)
    monkeypatch.setattr("taskq.core.sources.SOURCES_MAX", 3)
    for name in ("a", "b", "file"):
        process.ask(Op.INGEST, requests.Ingest(sources.checked_move(name, 0, None), []))
    with pytest.raises(
        errors.UsageError, match=r"4 sources .* the most is 3 .* sources forget NAME"
    ):
        process.ask(Op.INGEST, requests.Ingest(sources.checked_move("c", 0, None), []))
    process.ask(Op.INGEST, _ingest(0, 10, after=0))
    process.ask(Op.INGEST, requests.Ingest(sources.Move("a", b"", None), []))
    process.ask(Op.INGEST, requests.Ingest(sources.checked_move("c", 0, None), []))
    monkeypatch.setattr("taskq.core.sources.SOURCES_BYTES_MAX", 20)
    with pytest.raises(errors.UsageError, match="bytes"):
        process.ask(Op.INGEST, requests.Ingest(sources.checked_move("c", "x" * 20, 0), []))


def test_a_record_that_names_no_source_or_schedule_is_damage() -> None:
    good = encode_moved(sources.SourceRecord("é", sources.SourceState(b"1", 7)), 5)
    assert decode_moved(good) == sources.SourceRecord("é", sources.SourceState(b"1", 7))
    for name in ("x" * 300, ""):
        record = encode_moved(sources.SourceRecord(name, sources.SourceState(b"", 0)), 5)
        with pytest.raises(errors.FormatError, match="names no source or control"):
            decode_moved(record if name else record[:24] + record[-4:])
    with pytest.raises(errors.FormatError, match="300 bytes"):
        decode_ticked(encode_ticked(TickRecord("x" * 300, ScheduleState()), 5))
