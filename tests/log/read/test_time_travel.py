"""The past of a log is the fold of its frames up to there: what was live then."""

from __future__ import annotations

import pytest

from taskq.core.errors import MomentGone, UsageError
from taskq.core.model import SECOND_NS
from taskq.log.format.carried import encode_compacted
from taskq.log.journal.journal import Journal
from taskq.log.read.timetravel import Moment, stand_at
from taskq.log.state.facets import Facets
from taskq.log.state.job_history import job_view
from tests.effort import grows, some
from tests.log.acts import History
from tests.log.tending import Meaning, meaning
from tests.log.world import PATH, World


def _past(world: World, moment: Moment) -> Meaning:
    journal = world.reader()
    now_ns = stand_at(journal, moment)
    return meaning(Facets(journal), now_ns)


@grows
@pytest.mark.parametrize("steps_of_clock", [False, True])
@pytest.mark.parametrize("seed", range(some(1, 6)))
def test_at_every_moment_the_fold_of_the_log_equals_what_was_live_then(
    seed: int, *, steps_of_clock: bool
) -> None:
    """By lsn and by time, over several segments, dead processes and steps of the clock."""
    history = History(seed, steps_of_clock=steps_of_clock)
    history.run(40)
    world = history.world
    for lsn, picture in history.by_lsn.items():
        assert _past(world, Moment(lsn=lsn)) == picture, lsn
    world.clock.advance(10**9)  # none of it is in the future, on any clock
    for time_ns, picture in history.by_time.items():
        assert _past(world, Moment(time_ns=time_ns + history.steps_ns)) == picture, time_ns
    assert len(world.segments()) > 1


@grows
@pytest.mark.parametrize("seed", range(some(1, 6)))
def test_what_compaction_left_tells_every_moment_from_its_end_on(seed: int) -> None:
    history = History(seed, small=True)
    for count in (13, 10, 6):
        history.compact()
        history.run(count)
    numbers: list[int] = []
    gone: dict[int, int] = {}
    for lsn, picture in history.by_lsn.items():
        try:
            assert _past(history.world, Moment(lsn=lsn)) == picture, lsn
            numbers.append(lsn)
        except MomentGone as error:
            gone[lsn] = error.oldest_lsn
    assert len(gone) > 10
    assert len(numbers) > 5
    [oldest] = set(gone.values())
    assert max(gone) < oldest <= min(numbers)
    _past(history.world, Moment(lsn=oldest))
    _check_told(history, numbers)


@grows
@pytest.mark.parametrize("seed", range(10, some(11, 13)))
def test_a_job_is_told_as_it_was_told_then(seed: int) -> None:
    history = History(seed)
    history.run(40)
    _check_told(history, list(history.told))


def _check_told(history: History, lsns: list[int]) -> None:
    for lsn in lsns:
        journal, now_ns = _standing(history.world, Moment(lsn=lsn))
        for job, view in history.told[lsn].items():
            assert job_view(journal, job, now_ns) == view, (lsn, job)


def test_two_hours_ago_is_two_hours_ago_though_the_box_booted_in_1970() -> None:
    """Steps of the clock are taken for corrections: the first frames say 1970."""
    world = World()
    world.clock.reboot(wall_seconds=3_600)
    process = world.process()
    early = process.enqueue()
    world.clock.advance(3 * 3_600)
    world.clock.step(1_700_000_000)
    process.enqueue()
    now_ns = world.clock.wall_ns()
    for hours, expected in ((2, [early]), (4, [])):
        moment = Moment(time_ns=now_ns - hours * 3_600 * SECOND_NS)
        assert _past(world, moment)["next"] == expected


# -- listings -------------------------------------------------------------------------------------


def _standing(world: World, moment: Moment) -> tuple[Journal, int]:
    journal = world.reader()
    return journal, stand_at(journal, moment)


# -- moments that are refused ---------------------------------------------------------------------


def test_a_moment_to_come_is_refused() -> None:
    world = World()
    world.process().enqueue()
    with pytest.raises(UsageError, match="has no lsn 2 yet: its newest is 1"):
        stand_at(world.reader(), Moment(lsn=2))
    with pytest.raises(UsageError, match=r"2024-01-01T00:00:01.* is still to come"):
        stand_at(world.reader(), Moment(time_ns=world.clock.wall_ns() + SECOND_NS))


def test_a_moment_before_what_compaction_left_is_refused_with_the_oldest_that_can_be_told() -> None:
    """Between the oldest record kept and the end of the compaction, carried jobs are missing."""
    world = World()
    process = world.process()
    for number in range(4):
        process.enqueue(bytes(20_000 * (number + 1)))
    process.enqueue()
    kept = process.journal.files.lsns[-1]
    assert kept > 1
    world.clock.advance(60)
    lsn = process.journal.next_lsn
    process.append(encode_compacted(kept, lsn))
    # While the old segments are there, so is the past.
    assert _past(world, Moment(lsn=1))["next"] == [1]
    for path in world.segments()[:-1]:
        process.disk.remove(path)
    with pytest.raises(MomentGone, match=rf"oldest .* is 2024-01-01T00:01:00.* \(lsn {lsn}\)") as e:
        stand_at(world.reader(), Moment(lsn=lsn - 1))
    assert e.value.oldest_lsn == lsn
    with pytest.raises(MomentGone):
        stand_at(world.reader(), Moment(time_ns=world.clock.wall_ns() - SECOND_NS))
    stand_at(world.reader(), Moment(lsn=lsn))
    stand_at(world.reader(), Moment(time_ns=world.clock.wall_ns()))
    assert PATH in str(e.value)


# -- moments as people write them ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("4711", Moment(lsn=4711)),
        ("2h", Moment(time_ns=10**18 - 7_200 * SECOND_NS)),
        ("2001-09-09T01:46:41+00:00", Moment(time_ns=1_000_000_001 * SECOND_NS)),
        ("2001-09-09T01:46:41Z", Moment(time_ns=1_000_000_001 * SECOND_NS)),
    ],
)
def test_a_moment_is_an_lsn_a_span_back_from_now_or_a_time(text: str, moment: Moment) -> None:
    assert Moment.parse(text, 10**18) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2h ago", "2024-13-01"])
def test_any_other_moment_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="give a span back from now"):
        Moment.parse(text, 10**18)
