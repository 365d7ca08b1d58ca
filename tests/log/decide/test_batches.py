"""An ended job wakes its waiters, and nobody else."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from taskq.core.errors import TaskqError
from taskq.core.model import Extras
from taskq.core.records import Cause, Flag, Kind
from taskq.log.decide.enqueue import together
from taskq.log.machine.ports import INTEREST_OUTCOME
from taskq.log.requests import Delivery, EnqueueSpec, Item, Op, Plain, Settlement
from tests.log.world import World


def _never(item: Settlement, error: TaskqError) -> None:
    raise AssertionError(f"{item.delivery!r}: {error}")


def _dead(delivery: Delivery) -> Settlement:
    return Settlement(Kind.DEAD, delivery, b"no", cause=Cause.EXHAUSTED)


@pytest.mark.parametrize("kind", [Kind.SUCCEEDED, Kind.DEAD])
@pytest.mark.parametrize("op", [Op.SETTLE, Op.SETTLE_NOWAIT])
def test_whatever_ends_jobs_wakes_those_who_wait_for_outcomes(op: Op, kind: Kind) -> None:
    process = World().process()
    for _ in range(2):
        process.enqueue()
    ends = [Settlement(kind, delivery, cause=Cause.EXHAUSTED) for delivery in process.claim(2)]
    process.committer.take_interest()
    soon = op is Op.SETTLE_NOWAIT
    operand = (ends, _never) if soon else ends
    process.committer.commit([(op, None, None if soon else Future(), operand)])
    assert process.committer.take_interest() & INTEREST_OUTCOME


def test_a_listener_that_left_hears_of_no_death() -> None:
    process = World().process()
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


def test_only_jobs_of_one_spec_without_options_go_together_as_columns() -> None:
    plain, packed = EnqueueSpec(task="a"), EnqueueSpec(task="a", flags=Flag.ZLIB)
    alike: list[Item] = [(plain, b"1", None), (plain, b"2", None)]
    assert together(alike) == Plain(plain, [b"1", b"2"])
    others: list[Item] = [(EnqueueSpec(task="b"), b"", None), (plain, b"", Extras(key=b"k"))]
    for other in others:
        mixed = [*alike, other]
        assert together(mixed) is mixed
    stored: list[Item] = [(packed, b"", None)]
    assert together(stored) is stored
    assert together([]) == []
