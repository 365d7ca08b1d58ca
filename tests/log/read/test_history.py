"""Counts of a day, a week and a month outlive the segments that they are from."""

import errno
import json
import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.errors import LogDamaged
from taskq.engine import LogReader
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.machine.ports import read_file, replace_file
from taskq.log.read.history import (
    ACTS_MAX,
    CAUSES_MAX,
    FILE,
    HOUR_NS,
    TASKS_MAX,
    History,
    _drop,
    class_of,
    middle_of,
)
from taskq.log.requests import EnqueueSpec
from taskq.log.upkeep.upkeep import Upkeep
from taskq.testing import TravelClock, use_clock
from tests.log.world import World, fill_segment, keeping, tend

BEGIN: Final = 1_700_000_000


def read(path: Path) -> History:
    with LogReader.open(str(path)) as reader:
        known, is_whole = reader.history(60)
        assert is_whole
        return known


def counts(known: History) -> tuple[Any, ...]:
    tasks = {name: (part.hours, part.days) for name, part in known.tasks.items()}
    return known.minutes, known.hours, known.days, tasks, known.causes, list(known.acts)


async def live(app: TaskQ, clock: TravelClock, hours: int) -> None:
    """Let jobs of three tasks come and end, some badly, and an operator act."""
    chance, log = random.Random(7), TaskLog(app.connection)
    for hour in range(hours):
        for number in range(4):
            call = app.call_by_name(f"task{number % 3}", n=hour).options(attempts=2)
            await app.enqueue(call)
        with app.acting("ana"):
            await app.pause("other") if hour % 2 else await app.resume("other")
        claimed = await log.claim(3)
        clock.advance(chance.uniform(1, 90))
        for delivery in claimed:
            if chance.random() < 0.3:
                await log.nack(delivery, f"ValueError: no {delivery.task}", delay=0)
            else:
                await log.ack(delivery)
        await log.cancel(await log.put(os.urandom(SEGMENT_BYTES_MIN // 2)))
        clock.advance(3_500)


async def test_counts_are_the_same_with_each_segment_folded_as_it_goes_and_in_one_walk(
    tmp_path: Path,
) -> None:
    app = TaskQ(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
    clock = TravelClock(BEGIN)
    use_clock(app, clock)
    async with app:
        await live(app, clock, 12)
        whole = counts(read(tmp_path))
        report = await app.compact(keep=1)
        assert sum(segment.removed for segment in report.segments) > 2
        assert os.name == "nt" or (tmp_path / FILE).stat().st_mode & 0o077 == 0
        assert counts(read(tmp_path)) == whole
        await live(app, clock, 6)
        await app.compact(keep=1)
        known = read(tmp_path)
    ended = [sum(column) for column in zip(*known.hours.values(), strict=True)]
    assert ended[0] == 18 * 5
    assert ended[1] + ended[3] + ended[4] <= 18 * 5
    assert sum(sum(days.values()) for _, days in known.causes.values()) == ended[2] + ended[3]
    assert {act[2] for act in known.acts} == {"ana: pause queue other", "ana: resume queue other"}


async def test_an_attempt_that_outlives_its_segment_is_timed(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
    clock = TravelClock(BEGIN)
    use_clock(app, clock)
    async with app:
        log = TaskLog(app.connection)
        await app.enqueue_by_name("slow")
        (delivery,) = await log.claim()
        for _ in range(4):
            await log.cancel(await log.put(os.urandom(SEGMENT_BYTES_MIN // 2)))
            clock.advance(600)
        assert (await app.compact(keep=1)).segments[0].removed
        await log.ack(delivery)
        part = read(tmp_path).tasks["slow"]
    ((_, times),) = [cell for cell in part.hours.values() if cell[0][1]]
    (took,) = times
    assert abs(middle_of(took) / 2_400e9 - 1) < 0.13


@pytest.mark.parametrize("took_ns", [1, 900, 10**6, 3 * 10**9, 86_400 * 10**9])
def test_a_duration_is_known_to_an_eighth(took_ns: int) -> None:
    assert took_ns < 8 or abs(middle_of(class_of(took_ns)) / took_ns - 1) <= 0.13


@pytest.mark.slow
async def test_30_days_of_thousands_of_tasks_stay_small(tmp_path: Path) -> None:
    """Frames are folded as if they came hour by hour; only the file is written."""
    app = TaskQ(tmp_path)
    async with app:
        await app.enqueue_by_name("a")
    with LogReader.open(str(tmp_path)) as reader:
        known = History(reader.journal)
        chance = random.Random(7)
        for hour in range(30 * 24):
            at = BEGIN // 3_600 + hour
            known._prune(at)
            for number in (*range(100), *(chance.randrange(100, 3_000) for _ in range(20))):
                known._cell(f"task{number}", at, chance.randrange(6), chance.randrange(10**10))
            for minute in range(60):
                known.minutes[at * 60 + minute] = [chance.randrange(10_000) for _ in range(6)]
            known.hours[at] = known.days[at // 24] = [chance.randrange(10**6) for _ in range(6)]
        known._prune(at + 1)
        known.save()
    size = (tmp_path / FILE).stat().st_size
    assert len(known.tasks) <= TASKS_MAX + 1
    assert len(known.minutes) <= 25 * 60
    assert (CAUSES_MAX, ACTS_MAX, HOUR_NS) == (50, 1_000, 3_600 * 10**9)
    assert size < 300_000


def enqueued(world: World) -> int:
    known = History(world.reader())
    for _ in known.read_on():
        pass
    return sum(counted[0] for counted in known.hours.values())


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("replace_file", OSError(errno.ENOSPC, "full")), ("History.take", TypeError("x")),
        ("History.take", LogDamaged("x")), ("History.take", struct.error("x")), ("", None),
    ],
)  # fmt: skip
def test_segments_go_uncounted_and_take_no_other_counts_along(
    place: str, error: Exception | None, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
) -> None:
    """Without an error another program, without a history, let them go."""
    world = World(0, keeping(keep_segments=1))
    process = world.process()
    upkeep = Upkeep(process.committer)
    for _ in range(6):
        fill_segment(process)
    tend(process, upkeep)
    before = enqueued(world)
    with monkeypatch.context() as patch:
        if error is None:
            patch.setattr(Upkeep, "_fold_history", lambda _self, _through: iter(()))
        else:
            patch.setattr(f"taskq.log.read.history.{place}", Mock(side_effect=error))
        for _ in range(3):
            fill_segment(process)
        oldest = world.segments()[0]
        tend(process, upkeep)
    assert oldest not in world.segments()
    assert enqueued(world) >= before
    if is_restarted:
        process.kill()
        process = world.process()
        upkeep = Upkeep(process.committer)
    for _ in range(2):
        fill_segment(process)
    tend(process, upkeep)
    assert enqueued(world) > before
    counted = History(process.journal)
    counted.load()
    assert counted.cursor.segment >= process.journal.files.lsns[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"minutes": {"1": [1]}}, {"hours": {"1": [1, 2, 3, 4, 5, None]}}, {"days": {"x": [0] * 6}},
        {"tasks": {"a": 7}}, {"tasks": {"a": [{"1": [0] * 7}, {}]}}, {"acts": [[1, "x", "y"]]},
        {"causes": [["a", "b", "c", {"1": "x"}, {}]]}, {"running": []}, {"running": {"1": "x"}},
        {"hour": None}, {"at": [1, 2]}, {"at": ["1", 2, 3]}, {"deep": 200_000}, {"long": 1},
    ],
    ids=str,
)  # fmt: skip
async def test_a_file_that_is_wrong_in_any_part_or_of_another_log_counts_nothing(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TaskQ(tmp_path, segment_bytes=SEGMENT_BYTES_MIN) as app:
        await app.enqueue_by_name("a")
    with LogReader.open(str(tmp_path)) as reader:
        known, _ = reader.history(60)
        whole = counts(known)
        known.save()
    data = json.loads(zlib.decompress((tmp_path / FILE).read_bytes()))
    data["minutes"] = {at: [9, 9, 9, 9, 9, 9] for at in data["minutes"]}
    text = "[" * wrong.get("deep", 0) or json.dumps(data | wrong)
    (tmp_path / FILE).write_bytes(zlib.compress(text.encode()))
    if "long" in wrong:
        assert counts(read(tmp_path)) != whole
        monkeypatch.setattr("taskq.log.read.history._DATA_BYTES_MAX", len(text) - 1)
    assert counts(read(tmp_path)) == whole
    for junk in (b"", b"junk", (tmp_path / "taskq.json").read_bytes()):
        (tmp_path / FILE).write_bytes(junk)
        assert counts(read(tmp_path)) == whole


@pytest.mark.parametrize("days", [3_650, -3_650])
async def test_a_clock_that_was_wrong_for_a_moment_takes_no_counts(
    days: int, tmp_path: Path
) -> None:
    app = TaskQ(tmp_path)
    clock = TravelClock(BEGIN)
    use_clock(app, clock)
    async with app:
        await live(app, clock, 4)
        before = read(tmp_path)
        clock.step(days * 86_400)
        await app.enqueue_by_name("wrong")
        clock.step(-days * 86_400)
        await live(app, clock, 4)
    known = read(tmp_path)
    for name in ("minutes", "hours", "days"):
        assert getattr(before, name).keys() <= getattr(known, name).keys()
    assert known.tasks["task0"].hours.keys() > before.tasks["task0"].hours.keys()
    assert set(known.hours) >= set(range(BEGIN // 3_600 + 1, BEGIN // 3_600 + 8))


def test_a_file_that_the_disk_refused_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    process = World(0, keeping()).process()
    through = fill_segment(process)
    known = History(process.journal)
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "full")
        patch.setattr("taskq.log.read.history.replace_file", Mock(side_effect=full))
        with pytest.raises(OSError, match="full"):
            list(known.steps(through))
    assert known.has(through)
    list(known.steps(through))
    after = History(process.journal)
    after.load()
    assert counts(after) == counts(known)


def test_a_clock_that_jumps_about_leaves_few_counts() -> None:
    known = dict.fromkeys(range(100))
    _drop(known, 10, 20)
    assert list(known) == list(range(40))


def test_a_fold_reads_the_file_again_only_after_another_process_wrote_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = World(0, keeping()).process()
    segments = [fill_segment(process) for _ in range(4)]
    first, second = History(process.journal), History(process.journal)
    for through in segments[:2]:
        list(first.steps(through))
    read = Mock(wraps=read_file)
    monkeypatch.setattr("taskq.log.read.history.read_file", read)
    list(first.steps(segments[2]))
    assert not read.called
    list(second.steps(segments[3]))
    assert not list(first.steps(segments[3]))
    assert read.call_count == 2
    assert counts(first) == counts(second)


def test_segments_that_go_together_are_counted_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(0, keeping(keep_seconds=60))
    process = world.process()
    for _ in range(5):
        fill_segment(process)
    world.clock.advance(120)
    write = Mock(wraps=replace_file)
    monkeypatch.setattr("taskq.log.read.history.replace_file", write)
    tend(process)
    assert len(world.segments()) == 1
    assert write.call_count == 1


def test_the_end_of_a_job_without_a_task_reads_no_birth_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = World(0, keeping()).process()
    process.enqueue(spec=EnqueueSpec(task=""))
    (delivery,) = process.claim()
    process.settle(delivery)
    known = History(process.journal)
    monkeypatch.setattr(known, "_find", Mock(side_effect=AssertionError))
    assert list(known.read_on())
    ((counted, _),) = known.tasks[""].hours.values()
    assert counted[:2] == [1, 1]


def test_tasks_beyond_the_most_of_an_hour_share_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq.log.read.history._NEW_MAX", 3)
    known = History(World(0, keeping()).process().journal)
    for number in range(10):
        known._cell(f"task{number}", 500_000, 0, 0)
    assert len(known._cells) == len(known.tasks) == 4
    assert sum(part.weight() for part in known.tasks.values()) == 10
