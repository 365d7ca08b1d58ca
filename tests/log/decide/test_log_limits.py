"""Limits that hold over all processes on a log: what runs at a time, and what starts in a time."""

from __future__ import annotations

from typing import Final

import pytest

from taskq.core.errors import FormatError
from taskq.core.folds.agenda import Agenda
from taskq.core.model import SECOND_NS, Extras
from taskq.core.rates import Limit, Rate, Times
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.notes import chunks_of, decode_rated, encode_rated
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Op, Settlement
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import Process, World

SEND: Final = EnqueueSpec(queue="mail", task="send")
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


def test_each_key_has_its_own_limit_and_a_full_one_holds_up_no_other() -> None:
    world = World()
    process = world.process()
    a = [process.enqueue(spec=SEND, extras=of("a")) for _ in range(5)]
    b = [process.enqueue(spec=SEND, extras=of("b")) for _ in range(5)]
    none = [process.enqueue(spec=SEND) for _ in range(5)]
    assert jobs(claim(process)) == a[:2] + b[:2] + none[:2]


def test_who_frees_a_place_that_he_does_not_take_wakes_the_others() -> None:
    world = World()
    process = world.process()
    for _ in range(3):
        process.enqueue(spec=SEND)
    held = claim(process)
    future = process.committer
    future.commit([(Op.SETTLE, None, _Never(), [Settlement(Kind.SUCCEEDED, held[0])])])
    assert future.take_interest() & INTEREST_READY


def test_nobody_is_woken_for_a_place_that_no_job_waits_for() -> None:
    world = World()
    process = world.process()
    for _ in range(2):
        process.enqueue(spec=SEND)
    held = claim(process)
    committer = process.committer
    committer.commit([(Op.SETTLE, None, _Never(), [Settlement(Kind.SUCCEEDED, held[0])])])
    assert not committer.take_interest() & INTEREST_READY


class _Never:
    def done(self) -> bool:
        return False


def test_the_moment_at_which_a_rate_allows_more_is_known_to_who_sleeps() -> None:
    world = World()
    process = world.process()
    for _ in range(4):
        process.enqueue(spec=POST)
    claim(process)
    agenda = process.committer.facets.agenda
    assert agenda is not None
    assert not agenda.queues.any_ready()
    assert agenda.next_rate_ns() == world.clock.wall_ns() + SECOND_NS


def test_compaction_loses_no_claim_of_a_window() -> None:
    slow = {"post": Limit(rate=Rate(3, 3_600 * SECOND_NS), scope="post")}
    world = World(config=SMALL)
    process = world.process()
    request = ClaimRequest(2, frozenset(), frozenset(slow), 0, 0, slow)
    request.queues = None
    for _ in range(2):
        process.enqueue(spec=POST, extras=of("k"))
    for delivery in process.ask(Op.CLAIM, request):
        process.settle(delivery)
    for _ in range(6):
        fill_segment(process)
    before = len(world.segments())
    tend(process)
    assert len(world.segments()) < before
    assert Kind.RATED in world.kinds()
    later = world.process()
    for _ in range(3):
        later.enqueue(spec=POST, extras=of("k"))
    request = ClaimRequest(9, None, frozenset(slow), 0, 0, slow)
    assert len(later.ask(Op.CLAIM, request)) == 1
    assert later.ask(Op.CLAIM, request) == []


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
        agenda.groups.tell(limits, agenda.moment)
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


def test_workers_of_one_process_that_differ_on_a_rate_leave_nothing_behind() -> None:
    world = World()
    process = world.process()
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


def test_keys_that_have_no_job_any_more_take_no_room() -> None:
    world = World()
    process = world.process()
    items = [(SEND, b"{}", of(f"account {number}")) for number in range(2_000)]
    process.ask(Op.ENQUEUE_MANY, items)
    facets = process.catch_up()
    assert facets.agenda is not None
    assert len(facets.agenda.lanes) == 2_001
    while held := claim(process, 500):
        process.ask(Op.SETTLE, [Settlement(Kind.SUCCEEDED, delivery) for delivery in held])
    for agenda in (facets.agenda, world.fold().agenda):
        assert agenda is not None
        assert len(agenda.lanes) <= 2
        assert len(agenda.groups) <= 1
        assert agenda.queues.stats()[0].succeeded == 2_000
