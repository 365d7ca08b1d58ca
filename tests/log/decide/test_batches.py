"""Many requests of one batch: what its writer holds is what another process reads of the frame."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskq.core.kinds import ENDS
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Cause, Kind
from taskq.log.format import codec
from taskq.log.format.codec import KIND_AT
from taskq.log.machine.ports import INTEREST_OUTCOME
from taskq.log.requests import Bundle, ClaimRequest, EnqueueSpec, Op, Settlement
from tests.log.flowing import chord, items_of
from tests.log.tending import meaning
from tests.log.world import PLAIN, World

if TYPE_CHECKING:
    from taskq.core.errors import TaskqError
    from taskq.core.folds.jobtable import JobTable
    from taskq.log.requests import Delivery, Item, Request
    from taskq.log.state.facets import Facets
    from tests.log.world import Process

_SPECS: Final = (PLAIN, EnqueueSpec("mail", "send", 9, 2), EnqueueSpec("mail", "s", 1))
_KINDS: Final = (Kind.SUCCEEDED, Kind.SUCCEEDED, Kind.DEAD, Kind.RETRIED, Kind.RELEASED)


class Batches:
    """Batches of random requests of one process."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(seed)
        self.process = self.world.process()
        self.held: list[Delivery] = []

    def write(self, count: int) -> None:
        """One batch; what it claims is held afterwards."""
        requests: list[Request] = []
        claims: list[Future[list[Delivery]]] = []
        for _ in range(count):
            op, operand = self._request()
            future: Future[Any] = Future()
            requests.append((op, None, None if op is Op.SETTLE_SOON else future, operand))
            if op is Op.CLAIM:
                claims.append(future)
        self.process.commit(requests)
        self.process.sync()
        for claim in claims:
            self.held += claim.result(0)
        self.world.clock.advance(self.chance.choice((0, 1, 40)))

    def _request(self) -> tuple[Op, Any]:
        chance = self.chance
        match chance.randrange(11):
            case 0 | 1:
                return Op.ENQUEUE, self._item()
            case 2 | 3 as kind:
                some = [self._item() for _ in range(chance.randrange(1, 4))]
                return Op.ENQUEUE_MANY, some if kind == 2 else items_of(chord(2))
            case 4 | 5:
                return Op.CLAIM, ClaimRequest(chance.randrange(1, 6), wait_until_ns=0)
            case 6 | 7:
                return Op.SETTLE, self._settlements()
            case 8 | 9:
                return Op.SETTLE_SOON, (self._settlements(), _never)
        return Op.TRANSACT, Bundle(tuple(self._settlements()), (), (self._item(),))

    def _item(self) -> Item:
        chance = self.chance
        extras = chance.choice((
            None, None, None, Extras(due_ns=30 * SECOND_NS), Extras(expires_ns=30 * SECOND_NS),
            Extras(key=b"%d" % chance.randrange(4)), Extras(key=b"w", window_ns=60 * SECOND_NS),
            Extras(due_ns=self.world.clock.wall_ns() + 30 * SECOND_NS, due_is_wall=True),
        ))  # fmt: skip
        return chance.choice(_SPECS), bytes(chance.randrange(40)), extras

    def _settlements(self) -> list[Settlement]:
        self.chance.shuffle(self.held)
        ended, self.held = self.held[:4], self.held[4:]
        return [self._settlement(delivery) for delivery in ended]

    def _settlement(self, delivery: Delivery) -> Settlement:
        kind = self.chance.choice(_KINDS)
        body = self.chance.choice((None, None, b"because"))
        children = (self._item(),) if self.chance.random() < 0.2 else ()
        delay_ns = 0 if kind in {Kind.SUCCEEDED, Kind.DEAD} else self.chance.choice((0, SECOND_NS))
        cause = Cause.EXHAUSTED if kind in {Kind.DEAD, Kind.RETRIED} else Cause.CALLER
        return Settlement(kind, delivery, body, delay_ns, cause, children)


def _never(item: Settlement, error: TaskqError) -> None:
    raise AssertionError(f"{item.delivery!r}: {error}")


def _dead(delivery: Delivery) -> Settlement:
    return Settlement(Kind.DEAD, delivery, b"no", cause=Cause.EXHAUSTED)


def _locations(table: JobTable) -> dict[int, int]:
    return {chunk.ids[at]: chunk.locations[at] for chunk, at in table}


def _check_ends(process: Process, ended: dict[int, int]) -> None:
    """Each end is found where the writer says that it is."""
    for job, location in ended.items():
        record = process.journal.files.unchecked_record(location)
        assert (record[KIND_AT] in ENDS, codec.JOB.unpack_from(record)[6]) == (True, job)


@pytest.mark.parametrize("kind", [Kind.SUCCEEDED, Kind.DEAD])
@pytest.mark.parametrize("op", [Op.SETTLE, Op.SETTLE_SOON])
def test_whatever_ends_jobs_wakes_those_who_wait_for_outcomes(op: Op, kind: Kind) -> None:
    process = World().process()
    for _ in range(2):
        process.enqueue()
    ends = [Settlement(kind, delivery, cause=Cause.EXHAUSTED) for delivery in process.claim(2)]
    process.committer.take_interest()
    soon = op is Op.SETTLE_SOON
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
        process.committer.commit([(Op.SETTLE_SOON, None, None, ([_dead(delivery)], _never))])
        told = [port for port, *_ in process.committer.answers.later if port is not None]
        assert sorted(told) == heard
        (leave if len(heard) == 2 else stay)()


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_leaves_its_writer_with_what_a_fold_of_its_frame_gives(seed: int) -> None:
    """The same jobs at the same places, the same claims, keys and counts of flows."""
    batches = Batches(seed)
    process, world = batches.process, batches.world
    for _ in range(15):
        batches.write(8)
        mine: Facets = process.catch_up()
        other = world.fold()
        now_ns = world.clock.wall_ns()
        assert meaning(mine, now_ns) == meaning(other, now_ns)
        agenda, folded = mine.need_agenda(), other.need_agenda()
        assert _locations(agenda.table) == _locations(folded.table)
        assert _locations(agenda.dead) == _locations(folded.dead)
        assert agenda.flows.held == folded.flows.held
        assert agenda.flows.ended.items() <= folded.flows.ended.items()
        _check_ends(process, mine.ended)
    assert mine.ended
    assert agenda.flows.ended
