"""Lists, timelines, exports and past states of jobs equal a filter over all of them."""

import tracemalloc
from pathlib import Path

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.errors import MomentGone, UsageError
from taskq.core.kinds import CANCEL, EXPIRY
from taskq.core.model import SECOND_NS, State
from taskq.core.records import Cause, Kind
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried
from taskq.log.format.codec import LSN_MAX
from taskq.log.format.frames import Frame
from taskq.log.format.record import places
from taskq.log.journal.journal import Journal
from taskq.log.read import jobs
from taskq.log.read.jobs import EVERY, JobFilter, each_job, newest_jobs, past_jobs
from taskq.log.read.reader import LogReader
from taskq.log.read.timetravel import Moment, cut_at
from taskq.log.requests import Op
from taskq.log.state.facets import Facets
from taskq.log.state.job_history import job_view
from tests.effort import grows, some
from tests.log.mix import History
from tests.log.world import PLAIN, Meaning, World, fill_segment, keeping, meaning, tend

_STATES = [state for state in State if state is not State.ABSENT]


def _check(history: History) -> None:
    world = history.world
    known = range(1, history.processes[0].journal.next_lsn)
    journal, now_ns = world.reader(), world.clock.wall_ns()
    seen = (job_view(journal, lsn, now_ns) for lsn in reversed(known))
    every = [view for view in seen if view is not None]
    for _ in range(some(8, 30)):
        chosen = history.chance.sample(_STATES, history.chance.randrange(1, 4))
        wanted = JobFilter(
            history.chance.choice((None, frozenset(chosen))),
            history.chance.choice((None, None, "default", "other", "third", "none")),
            history.chance.choice((None, None, "x", "mail.send")),
            history.chance.choice((1, 3, 20, 1_000)),
            history.chance.choice((LSN_MAX, history.chance.randrange(1, len(known) + 2))),
        )
        assert _found(world, wanted) == _expected(every, wanted), wanted
    for queue in (None, "default", "other", "third"):
        views = history.chance.sample(every, 2)
        moments = [history.chance.choice((None, view.enqueued_ns)) for view in views]
        wanted = JobFilter(None, queue, None, EVERY, LSN_MAX, *moments)
        exported = sorted(_all(world, wanted), key=lambda view: -view.lsn)
        assert exported == _expected(every, wanted), wanted
        running = JobFilter(frozenset({State.RUNNING}), queue, None, EVERY, LSN_MAX)
        assert _found(world, running) == _expected(every, running), running


def _found(world: World, wanted: JobFilter) -> list[JobView]:
    return newest_jobs(world.reader(), wanted, world.clock.wall_ns())


def _expected(every: list[JobView], wanted: JobFilter) -> list[JobView]:
    states, queue, task, limit, before, since_ns, until_ns = wanted
    return [
        view
        for view in every
        if (states is None or view.state in states)
        and queue in (None, view.queue)
        and task in (None, view.task)
        and view.lsn < before
        and (since_ns is None or view.enqueued_ns >= since_ns)
        and (until_ns is None or view.enqueued_ns < until_ns)
    ][:limit]


@grows
@pytest.mark.parametrize("seed", range(some(1, 6)))
@pytest.mark.parametrize("steps_of_clock", [False, True])
def test_each_moment_of_a_history_reads_as_it_was_live(
    seed: int, steps_of_clock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through retries, dead processes, keys, expiries, several segments and steps of the clock."""
    monkeypatch.setattr(jobs, "_is_far", lambda *_: steps_of_clock)
    monkeypatch.setattr(jobs, "_OTHERS", 0)  # then names and ends are matched where there are any
    history = History(seed, steps_of_clock=steps_of_clock)
    history.run(40)
    _check(history)
    _check_listing(history.world)
    _check_told(history, list(history.told))
    _check_folds(history)


@grows
@pytest.mark.parametrize("seed", range(some(1, 6)))
@pytest.mark.parametrize(("window", "piece"), [(4_096, 1 << 22), (3, 16)])
def test_compacted_jobs_are_listed_and_every_later_moment_is_read(
    seed: int, window: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In however small steps the births are walked over."""
    monkeypatch.setattr(jobs, "_WINDOW", window)
    monkeypatch.setattr(jobs, "_PIECE_BYTES", piece)
    history = History(seed, small=True)
    for count in (15, 15, 10):
        history.compact()
        history.run(count)
    _check(history)
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


@pytest.mark.parametrize("states", [None, {State.SUCCEEDED}])
def test_a_rare_task_is_found_without_reading_what_others_did(
    tmp_path: Path, states: set[State] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskQ(tmp_path, durability="os", upkeep=False) as app:

        @app.task(name="rare")
        async def rare() -> None: ...

        @app.task(name="often")
        async def often(number: int) -> None: ...

        job = rare.enqueue_sync()
        for start in range(0, 3_000, 1_000):
            often.enqueue_many_sync([(number,) for number in range(start, start + 1_000)])
        app.run_worker(burst=True)
    read: list[int] = []

    def counted(frame: Frame) -> list[tuple[int, int, int]]:
        read.append(frame.header.next_lsn - frame.header.first_lsn)
        return list(places(frame))

    monkeypatch.setattr(jobs, "places", counted)
    monkeypatch.setattr(jobs, "_is_far", lambda *_: True)  # its story is looked up
    with LogReader.open(str(tmp_path)) as reader:
        reader.stats()
        views = reader.jobs(states, None, "rare", 10)
    assert [view.job_id for view in views] == [job.id]
    assert sum(read) < 100


async def test_what_only_looks_like_the_end_of_a_job_is_none(tmp_path: Path) -> None:
    forged = b"".join(
        bytes((kind,)) + bytes(11) + number.to_bytes(8, "little")
        for kind in (CANCEL, EXPIRY)
        for number in range(100)
    )
    async with TaskLog.open(
        tmp_path, durability="os", upkeep=False, segment_bytes=SEGMENT_BYTES_MIN
    ) as log:
        await log.put(forged)
        for _ in range(SEGMENT_BYTES_MIN // 1_000):
            await log.put(bytes(1_000))
        job = await log.put(forged)
        await log.cancel(job)
    with LogReader.open(str(tmp_path)) as reader:
        assert len(reader.segments()) > 1
        assert [view.job_id for view in reader.jobs({State.CANCELLED}, None, None, 10)] == [job]
        assert reader.jobs({State.EXPIRED}, None, None, 10) == []


def test_jobs_since_a_time_exclude_older_ones_also_after_compaction() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    jobs, moments = [], []
    for _ in range(3):
        moments.append(world.clock.wall_ns())
        jobs.append(process.enqueue())
        process.settle(process.claim()[0], Kind.DEAD, cause=Cause.REJECTED)
        world.clock.advance(10)
    for is_compacted in (False, True):
        if is_compacted:
            for _ in range(5):
                fill_segment(process)
            tend(process)
            assert process.journal.files.lsns[0] > jobs[-1], "they were not written again"
        for number, moment in enumerate(moments):
            for since, first in ((moment, number), (moment + 1, number + 1)):
                past = JobFilter(frozenset({State.DEAD}), since_ns=since)
                listed = [past_job.record.job for past_job in past_jobs(world.reader(), past)]
                assert listed == jobs[first:], (is_compacted, number)


_OVER = (State.SUCCEEDED, State.CANCELLED, State.EXPIRED)


def _all(world: World, chosen: JobFilter | None = None) -> list[JobView]:
    return list(each_job(world.reader(), chosen or JobFilter(), world.clock.wall_ns()))


def _check_listing(world: World) -> None:
    """A listing has every job once, as its single view shows it."""
    answer = _all(world)
    jobs = [record.lsn for record in world.records() if record.type == Kind.ENQUEUED]
    asked = [view for view in map(world.view, jobs) if view is not None]
    assert sorted(answer, key=lambda view: view.lsn) == asked
    over = [view for view in answer if view.state in _OVER]
    assert answer[: len(over)] == over
    rest = [view.lsn for view in answer[len(over) :]]
    assert rest == sorted(rest)


def test_a_job_that_compaction_wrote_twice_is_listed_once() -> None:
    """It writes a finished one once more, before the segment with the first copy goes."""
    world = World()
    process = world.process()
    done = process.enqueue(b"done")
    process.settle(process.claim()[0], body=b"42")
    view, entry = world.job(done), world.reader().indexes.find(done)
    assert entry is not None
    carried = Carried(
        job=done, state=view.state, born=entry.record, enqueued_ns=view.enqueued_ns,
        attempt=view.attempt, ended_ns=view.settled_ns, body=view.result,
    )  # fmt: skip
    for _ in range(2):
        fill_segment(process)
        process.append(encode_carried(Kind.CARRIED, carried, process.journal.next_lsn))
    world.remove_oldest(1)
    assert [listed for listed in _all(world) if listed.lsn == done] == [world.job(done)]


def test_waiting_jobs_cost_no_more_than_their_places() -> None:
    """Their payloads stay in the log until it is their turn."""
    world = World()
    process = world.process()
    for _ in range(40):
        process.ask(Op.ENQUEUE_MANY, [(PLAIN, bytes(500), None) for _ in range(50)])
    journal = world.reader()
    answer = each_job(journal, JobFilter(), world.clock.wall_ns())
    next(answer)
    tracemalloc.start()
    count = 1 + sum(1 for _ in each_job(journal, JobFilter(), world.clock.wall_ns()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_001
    assert peak < 2_000 * 500 // 2 + 2 * codec.FRAME_BODY_MAX // 9


async def test_a_worker_is_named_though_it_is_gone_and_came_segments_before(tmp_path: Path) -> None:
    """A process introduces itself in the log once, before its first claim."""
    async with TaskLog.open(tmp_path, name="early bird", segment_bytes=SEGMENT_BYTES_MIN) as log:
        await log.put(b"first")
        await log.ack((await log.claim())[0])
        for _ in range(3):
            await log.put(bytes(SEGMENT_BYTES_MIN), queue="rest")
        job_id = await log.put(b"last")
        await log.ack((await log.claim(queues=["default"]))[0])
        alive = await log.timeline(job_id)
    with LogReader.open(str(tmp_path)) as reader:
        assert len(reader.journal.files.lsns) > 2
        gone = reader.timeline(reader.parse_id(job_id))
    for events in (alive, gone):
        assert [event.kind for event in events] == ["enqueued", "claimed", "succeeded"]
        assert {event.worker for event in events[1:]} == {"early bird"}
        assert all(event.pid and event.host for event in events[1:])
        assert not events[0].worker
    assert alive == gone


def _past(world: World, moment: Moment) -> Meaning:
    journal = world.reader()
    now_ns = cut_at(journal, moment)
    return meaning(Facets(journal), now_ns)


def _check_folds(history: History) -> None:
    """By lsn and by time the fold of the log equals what was live then."""
    world = history.world
    for lsn, picture in history.by_lsn.items():
        assert _past(world, Moment(lsn=lsn)) == picture, lsn
    world.clock.advance(10**9)  # none of it is in the future, on any clock
    for time_ns, picture in history.by_time.items():
        assert _past(world, Moment(time_ns=time_ns + history.steps_ns)) == picture, time_ns
    assert len(world.segments()) > 1


def _check_told(history: History, lsns: list[int]) -> None:
    assert any(history.told[lsn] for lsn in lsns)
    for lsn in lsns:
        journal, now_ns = _standing(history.world, Moment(lsn=lsn))
        for job, view in history.told[lsn].items():
            assert job_view(journal, job, now_ns) == view, (lsn, job)


def _standing(world: World, moment: Moment) -> tuple[Journal, int]:
    journal = world.reader()
    return journal, cut_at(journal, moment)


def test_a_moment_to_come_is_refused() -> None:
    world = World()
    world.process().enqueue()
    with pytest.raises(UsageError, match="has no lsn 2 yet: its newest is 1"):
        cut_at(world.reader(), Moment(lsn=2))
    with pytest.raises(UsageError, match=r"2024-01-01T00:00:01.* is still to come"):
        cut_at(world.reader(), Moment(time_ns=world.clock.wall_ns() + SECOND_NS))


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
