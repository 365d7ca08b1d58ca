"""Limits that hold over all processes on a log: what runs at a time, and what starts in a time."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar, Final

import pytest

from taskq.core.errors import FormatError, UsageError
from taskq.core.folds import claims
from taskq.core.folds.agenda import PROMOTE_MAX, Agenda
from taskq.core.folds.claims import GONE
from taskq.core.folds.freeze import freeze_agenda, thaw_agenda
from taskq.core.model import SECOND_NS, Extras
from taskq.core.rates import Limit, Rate, Times
from taskq.core.records import Kind
from taskq.log import requests
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.decide import claim as claiming
from taskq.log.decide import settle
from taskq.log.format.notes import chunks_of, decode_rated, encode_rated
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op
from taskq.log.state.facets import Facets
from taskq.log.upkeep import snapshots
from taskq.log.upkeep import upkeep as errand
from tests.core.folds.test_freeze import Columns
from tests.effort import grows, some
from tests.log.mix import ACTS, CONFIGS, Mix
from tests.log.simulation import KEYS, Made
from tests.log.world import Meaning, Process, World, fill_segment, keeping, meaning, tend

POST: Final = EnqueueSpec(task="post", attempts=3)
LIMITS: Final = {
    "send": Limit(concurrency=2, scope="send"),
    "post": Limit(rate=Rate(3, SECOND_NS), scope="post"),
}
SMALL: Final = keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None)


def of(key: str) -> Extras:
    return Extras(concurrency_key=key.encode())


def claim(process: Process, count: int = 9) -> list[Delivery]:
    request = ClaimRequest(count, tasks=frozenset(LIMITS), wait_until_ns=0, limits=LIMITS)
    deliveries: list[Delivery] = process.ask(Op.CLAIM, request)
    return deliveries


def jobs(deliveries: list[Delivery]) -> list[int]:
    return [delivery.job for delivery in deliveries]


def test_a_claim_without_limits_counts_against_the_rate_of_its_process(
    world: World, process: Process
) -> None:
    for _ in range(4):
        process.enqueue(spec=POST)
    claim(process, 1)
    process.claim()
    assert len(claim(world.process())) == 1


@pytest.mark.parametrize("compacts", [True, False])
def test_claims_under_an_old_name_of_a_task_count_after_all_of_it_was_folded_anew(
    compacts: bool,
) -> None:
    limit = Limit(rate=Rate(3, 3_600 * SECOND_NS), scope="post")
    limits = {"post": limit, "posted": limit}
    world = World(config=SMALL)
    process, other = world.process(), world.process()
    for spec in (EnqueueSpec(task="posted"), POST):
        process.enqueue(spec=spec, extras=of("k"))
        request = ClaimRequest(1, None, frozenset(limits), 0, 0, limits)
        (delivery,) = process.ask(Op.CLAIM, request)
        process.settle(delivery)
    if compacts:
        for _ in range(6):
            fill_segment(other)
        tend(other)
        assert Kind.RATED in world.kinds()
    for each in (process, world.process()):
        for spec in (POST, EnqueueSpec(task="posted")):
            each.enqueue(spec=spec, extras=of("k"))
        agenda = each.catch_up().need_agenda()
        assert not agenda.order.take(0, None, None)
        agenda.groups.declare(limits, agenda.moment)
        group = agenda.groups.get("post", b"k")
        assert group is not None
        assert group.room(agenda.moment) == 1


def test_no_batch_of_compaction_writes_the_claims_of_more_than_a_thousand_groups() -> None:
    agenda = Agenda()
    for number in range(2_500):
        times = Times()
        times.add(SECOND_NS, 1, 3, SECOND_NS)
        agenda.groups.restore(("post", b"%d" % number), times, SECOND_NS)
    sizes = [len(groups) for groups in chunks_of(agenda)]
    assert sum(sizes) == 2_500
    assert max(sizes) <= 1_000


def test_workers_with_different_rates_in_one_process_leak_no_groups(
    world: World, process: Process
) -> None:
    slow = {"post": Limit(rate=Rate(1, 3_600 * SECOND_NS), scope="post")}
    slower = {"post": Limit(rate=Rate(1, 7_200 * SECOND_NS), scope="post")}
    for _ in range(2):
        process.enqueue(spec=POST)
    for _ in range(200):
        for limits in (slow, slower):
            process.ask(Op.CLAIM, ClaimRequest(1, None, None, 0, 0, limits))
    groups = process.catch_up().need_agenda().groups
    assert len(groups.due) < 100
    world.clock.advance(7_200)
    assert len(process.ask(Op.CLAIM, ClaimRequest(1, None, None, 0, 0, slower))) == 1


def test_a_moment_of_a_claim_that_is_none_is_refused_as_such() -> None:
    times = Times()
    times.add(2**63 - 1, 1, 3, SECOND_NS)
    record = encode_rated(("post", b""), times, 0, 9)
    with pytest.raises(FormatError, match="a moment that is none"):
        decode_rated(record, shift_ns=-1)


LIMITS_OF_FLOWS: Final = {
    "mail.send": Limit(concurrency=3),
    "x": Limit(concurrency=2, rate=Rate(4, 60 * SECOND_NS)),
    "part": Limit(rate=Rate(3, 20 * SECOND_NS)),
    "step": Limit(concurrency=1),
}


class LimitedMix(Mix):
    """Jobs with keys, and flows, of tasks with limits."""

    ACTS: ClassVar = {**Mix.ACTS, "plan_a_crash": 10}
    REQUESTS: ClassVar = {**Mix.REQUESTS, "flow": 40, "schedule": 5, "claim": 200}
    limits = LIMITS_OF_FLOWS

    def __init__(self, seed: int) -> None:
        super().__init__(seed, CONFIGS[seed % 3], locked=seed % 5 == 0)
        #: (task, key) -> moments of its claims
        self.claims: dict[tuple[str, bytes], list[int]] = {}

    def _extras(self) -> Extras:
        extras = super()._extras() or Extras()
        extras.concurrency_key = self.chance.choice(KEYS)
        return extras

    def _schedule(self, process: Process) -> Made:
        if "ticks" not in process.catch_up().need_agenda().schedules:
            return self._tick(process)
        verb = self.chance.choice(["pause", "resume", "resume"])
        return Op.STEER, requests.Steer("ticks", verb), lambda _: None

    def _claimed(self, process: Process, deliveries: list[Delivery]) -> None:
        agenda = self.observer.catch_up().need_agenda()
        moment = process.committer.facets.need_agenda().moment
        for item in deliveries:
            limit = LIMITS_OF_FLOWS[item.lane.task]
            key = item.lane.task, item.lane.concurrency_key
            if limit.rate is not None:
                moments = self.claims.setdefault(key, [])
                moments.append(moment)
                recent = [at for at in moments if at > moment - limit.rate.window_ns]
                assert len(recent) <= limit.rate.count, key
        check_running(agenda)

    def meaning(self, facets: Facets, now_ns: int) -> Meaning:
        return all_of(facets, now_ns)

    def check(self) -> None:
        super().check()
        seen, now_ns = self.observer.catch_up(), self.now_ns()
        wanted = all_of(seen, now_ns)
        for process in self.processes:
            # Only processes that know the limits know the next jobs.
            assert all_of(process.catch_up(), now_ns) | {"next": wanted["next"]} == wanted
        agenda = thaw_agenda(Columns(freeze_agenda(seen.need_agenda())))
        assert parts_of(agenda, now_ns) == parts_of(seen.need_agenda(), now_ns)


def all_of(facets: Facets, now_ns: int) -> dict[str, Any]:
    return {**meaning(facets, now_ns), **parts_of(facets.need_agenda(), now_ns)}


def parts_of(agenda: Agenda, now_ns: int) -> dict[str, Any]:
    shift_ns = agenda.times.shift_ns
    return {
        "held": dict(agenda.flows.held),
        "todo": set(agenda.flows.todo),
        "rates": {
            key: ([(at + shift_ns, count) for at, count in times.pairs()], times.most)
            for key, times in agenda.groups.rows(now_ns - shift_ns)
        },
        "keyed": sorted(lane.key for lane in agenda.lanes if lane.family is not None),
    }


def check_running(agenda: Agenda) -> None:
    counts: dict[tuple[str, bytes], int] = {}
    for lane in agenda.lanes:
        if lane is not GONE:
            place = lane.task, lane.concurrency_key
            counts[place] = counts.get(place, 0) + lane.running
    for (task, key), count in counts.items():
        limit = LIMITS_OF_FLOWS[task]
        assert not limit.concurrency or count <= limit.concurrency, (task, key)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@grows
@pytest.mark.parametrize("seed", range(some(2, 100)))
def test_flows_limits_and_cancels_are_the_same_to_all_and_all_ends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a machine that does a step in a millisecond.
    monkeypatch.setattr(errand, "STEPS_MAX", 1)
    monkeypatch.setattr(snapshots, "_PATIENCE_BYTES", 1_000)
    mix = LimitedMix(seed)
    mix.run(ACTS)
    mix.drain()
    assert mix.counts["flows"]


SPECS = [EnqueueSpec("default", "mail.send", priority) for priority in range(10)]


def put(process: Process, priority: int, body: bytes = b"{}", delay: float = 0) -> int:
    extras = Extras(due_ns=int(delay * SECOND_NS)) if delay else None
    return process.enqueue(body, extras, SPECS[priority])


def test_a_window_of_nothing_turns_it_off() -> None:
    world = World(config=LogConfig(segment_bytes=SEGMENT_BYTES_MIN, starvation_seconds=None))
    process = world.process()
    low = put(process, 0)
    world.clock.advance(10**6)
    high = put(process, 1)
    assert [delivery.job for delivery in process.claim(2)] == [high, low]
    with pytest.raises(UsageError, match="starvation is -1 s, it must be 0 or above"):
        LogConfig(starvation_seconds=-1)


_HOUR_NS: Final = 3_600 * SECOND_NS
_FIRST: Final = EnqueueSpec("first", "run")
_OTHER: Final = EnqueueSpec("other", "run")


def _put(process: Process, count: int, spec: EnqueueSpec = _FIRST, **extras: Any) -> list[int]:
    items = [(spec, b"", Extras(**extras))] * count
    jobs: list[int] = process.ask(Op.ENQUEUE_MANY, items)
    return jobs


def _due(world: World, taker: Process) -> None:
    _put(taker, PROMOTE_MAX // 2, due_ns=_HOUR_NS)
    _put(taker, PROMOTE_MAX // 2, due_ns=_HOUR_NS)
    _put(taker, 1, _OTHER, due_ns=_HOUR_NS + 1)
    world.clock.advance(3_601)


def _leases_over(world: World, taker: Process) -> None:
    holder = world.process()
    _put(holder, 3)
    _put(holder, 1, _OTHER)
    holder.ask(Op.CLAIM, ClaimRequest(9, wait_until_ns=0, lease_ns=_HOUR_NS))
    taker.catch_up()
    world.clock.advance(3_601)


def _owner_gone(world: World, taker: Process) -> None:
    holder = world.process()
    _put(holder, 3)
    _put(holder, 1, _OTHER)
    holder.claim(9)
    taker.catch_up()
    holder.kill()
    world.clock.advance(1)


def _expired(world: World, taker: Process) -> None:
    _put(taker, 5, _OTHER, expires_ns=_HOUR_NS)
    _put(taker, 1, _OTHER)
    world.clock.advance(3_601)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "EXPIRED_MAX", 1)
    monkeypatch.setattr(claims, "PASSED_MAX", 1)
    monkeypatch.setattr(claiming, "TAKEN_BACK_MAX", 1)


def _ask(process: Process, *queues: str, most: int = 1) -> Future[Any]:
    request = ClaimRequest(most, queues=frozenset(queues), wait_until_ns=0)
    return process.send(Op.CLAIM, request)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fall", [_due, _leases_over, _owner_gone, _expired])
def test_a_claim_that_does_not_wait_gets_what_the_last_part_brings(
    fall: Callable[[World, Process], None], world: World
) -> None:
    taker = world.process()
    fall(world, taker)
    claim = _ask(taker, "other")
    batches = 1
    while not claim.done():
        taker.commit([])
        taker.sync()
        batches += 1
    assert [delivery.queue for delivery in claim.result(0)] == ["other"]
    assert batches > 1, "the parts are not small"


@pytest.mark.usefixtures("small_parts")
def test_a_claim_that_meets_expired_jobs_holds_up_no_other_for_longer_than_a_batch(
    world: World, process: Process
) -> None:
    _put(process, 9, expires_ns=_HOUR_NS)
    (job,) = _put(process, 1, _OTHER)
    world.clock.advance(3_601)
    first, other = _ask(process, "first"), _ask(process, "other")
    process.commit([])
    assert not first.done()
    assert [item.job for item in other.result(0)] == [job]
    while not first.done():
        process.commit([])
    assert first.result(0) == []
