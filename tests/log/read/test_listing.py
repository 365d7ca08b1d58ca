"""The newest jobs of a filter equal a filter over all jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.kinds import CANCEL, EXPIRY
from taskq.core.model import State
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.codec import LSN_MAX
from taskq.log.format.frames import Frame
from taskq.log.format.record import places
from taskq.log.read import jobs
from taskq.log.read.jobs import JobFilter, newest_jobs
from taskq.log.read.reader import LogReader
from taskq.log.state.job_history import job_view
from tests.effort import grows, some
from tests.log.acts import History
from tests.log.world import World

_STATES = [state for state in State if state is not State.ABSENT]


def _check(history: History) -> None:
    world = history.world
    known = range(1, history.processes[0].journal.next_lsn)
    journal, now_ns = world.reader(), world.clock.wall_ns()
    seen = (job_view(journal, lsn, now_ns) for lsn in reversed(known))
    every = [view for view in seen if view is not None]
    for _ in range(30):
        chosen = history.chance.sample(_STATES, history.chance.randrange(1, 4))
        wanted = JobFilter(
            history.chance.choice((None, frozenset(chosen))),
            history.chance.choice((None, None, "mail", "sync", "none")),
            history.chance.choice((None, None, "task", "mail.send")),
            history.chance.choice((1, 3, 20, 1_000)),
            history.chance.choice((LSN_MAX, history.chance.randrange(1, len(known) + 2))),
        )
        assert _found(world, wanted) == _expected(every, wanted), wanted


def _found(world: World, wanted: JobFilter) -> list[JobView]:
    return newest_jobs(world.reader(), wanted, world.clock.wall_ns())


def _expected(every: list[JobView], wanted: JobFilter) -> list[JobView]:
    states, queue, task, limit, before, *_ = wanted
    return [
        view
        for view in every
        if (states is None or view.state in states)
        and queue in (None, view.queue)
        and task in (None, view.task)
        and view.lsn < before
    ][:limit]


@grows
@pytest.mark.parametrize("seed", range(some(1, 5)))
@pytest.mark.parametrize("far", [False, True])
def test_a_list_is_what_asking_for_every_job_would_give(
    seed: int, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_is_far", lambda *_: far)
    monkeypatch.setattr(jobs, "_OTHERS", 0)  # then names and ends are matched where there are any
    history = History(seed)
    history.run(40)
    _check(history)


@grows
@pytest.mark.parametrize("seed", range(some(1, 5)))
@pytest.mark.parametrize(("window", "piece"), [(4_096, 1 << 22), (3, 16)])
def test_a_list_holds_what_compaction_left_or_wrote_again(
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


def test_a_rare_end_is_found_without_reading_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskQ(tmp_path, durability="os", upkeep=False) as app:

        @app.task(name="often")
        async def often(text: str) -> None: ...

        job = often.enqueue_sync("first")
        for start in range(0, 3_000, 1_000):
            often.enqueue_many_sync([(str(number),) for number in range(start, start + 1_000)])
            job.cancel_sync()
    monkeypatch.setattr(jobs, "_Births", None)
    with LogReader.open(str(tmp_path)) as reader:
        (view,) = reader.jobs({State.CANCELLED}, None, "often", 10)
        assert view.job_id == job.id
        assert reader.jobs({State.CANCELLED}, "none", None, 10) == []
        monkeypatch.setattr(jobs, "_Marks", None)
        assert reader.jobs({State.EXPIRED}, None, None, 10) == []


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
