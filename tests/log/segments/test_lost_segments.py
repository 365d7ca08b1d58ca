"""A lost or cut segment is reported by verify, health and openers; a whole log never is.

The log itself declares its segments (``taskq.log.journal.recovery``), so that a loss differs from
compaction.
"""

import random
from collections import Counter
from typing import Any, Final, Never

import pytest

from taskq.core.views import VerifyReport
from taskq.log.format import codec
from taskq.log.journal.journal import Journal
from taskq.log.journal.recovery import find_losses
from taskq.log.read.reader import verify
from taskq.log.requests import EnqueueSpec
from taskq.log.segments.segments import SegmentGone
from tests.effort import every, grows
from tests.log.world import FILLER, PATH, PLAIN, Process, World, fill_segment, keeping, tend, write
from tests.machine.crashable import CrashableDisk

pytestmark = grows

_HEAD: Final = codec.SEGMENT_HEADER.size


def _written(seed: int, segments: int = 6) -> tuple[World, set[int]]:
    """A log of several segments and epochs, some of it compacted, closed; and its live lsns."""
    chance = random.Random(seed)
    world = World(seed, keeping(keep_segments=segments - 1))
    process = world.process()
    while len(world.segments()) < segments:
        process.enqueue(bytes(chance.randrange(10, 9_000)))
        for delivery in process.claim(chance.randrange(2)):
            process.settle(delivery)
        if chance.random() < 0.03:
            process.kill()
            if chance.random() < 0.5:
                world.lose_power()
            process = world.process()
        if chance.random() < 0.01:
            tend(process)
    for _ in range(5):
        process.enqueue()
    process.close()
    world.is_whole = False
    return world, _lsns(world)


def _lsns(world: World) -> set[int]:
    return {record.lsn for record in world.records()}


def _report(world: World) -> VerifyReport:
    return verify(world.reader())


def _cuts(world: World, path: str, chance: random.Random) -> list[int | None]:
    ends = [frame.end for frame in world.frames(world.segments().index(path))]
    return [None, 0, _HEAD, chance.choice(ends[:-1]), chance.choice(ends[:-1]) + 20]


def _cut(world: World, path: str, size: int | None) -> None:
    disk = CrashableDisk(world.machine)
    if size is None:
        disk.remove(path)
    else:
        world.machine.put(path, world.machine.content(path)[:size])


def _told(report: VerifyReport) -> set[int]:
    return {lsn for gap in report.damage for lsn in range(gap.first_lsn, gap.next_lsn)}


@pytest.mark.parametrize(("number", "cut"), [divmod(case, 5) for case in range(0, 30, every(7))])
def test_a_removed_or_cut_segment_is_reported_with_its_contents(number: int, cut: int) -> None:
    """By a reader, by the first writer, and by every one after it, until a person accepts it."""
    world, before = _written(number * 5 + cut)
    path = world.segments()[number]
    size = _cuts(world, path, random.Random(cut))[cut]
    _cut(world, path, size)
    lost = before - _lsns(world)
    assert lost
    assert lost <= _told(_report(world))
    first = world.process()
    assert first.journal.lost
    assert lost <= _told(_report(world))
    job = first.enqueue()
    assert job > max(before)
    first.close()
    second = world.process()
    assert lost <= {
        lsn for gap in second.journal.lost for lsn in range(gap.first_lsn, gap.next_lsn)
    } | _told(_report(world))
    second.close()
    world.repair()
    report = _report(world)
    assert not report.damage
    third = world.process()
    assert not third.journal.lost
    third.enqueue(FILLER)
    third.close()
    assert not _report(world).damage


@pytest.mark.parametrize("witness", ["index", "snapshot"])
def test_an_index_or_snapshot_reveals_lost_last_segments(witness: str) -> None:
    """An index without its segment, or a snapshot beyond the end, though the hint is gone."""
    world = World()
    process = world.process()
    for _ in range(3):
        fill_segment(process)
    process.catch_up()
    if witness == "index":
        for _ in process.journal.indexes.upkeep_steps():
            pass
    else:
        write(process)
    process.close()
    world.is_whole = False
    world.machine.put(f"{PATH}/write.lock", b"")
    for path in world.segments()[2:]:
        world.machine.unlink(path)
    assert world.reader().lost
    assert world.process().journal.lost
    assert _report(world).damage


def test_a_log_whose_segments_name_nothing_is_taken_as_it_is() -> None:
    world, _ = _written(3)
    disk = CrashableDisk(world.machine)
    for path in world.segments():
        data = world.machine.content(path)
        header = codec.decode_segment_header(data[:_HEAD], path)
        assert header is not None
        plain = codec.encode_segment_header(header._replace(link=codec.NO_LINK))
        world.machine.put(path, plain + data[_HEAD:])
    assert not world.reader().lost
    disk.remove(world.segments()[2])
    process = world.process()
    assert not process.journal.lost
    process.enqueue()


@pytest.mark.parametrize("number", [0, 1])
def test_jobs_of_a_lost_segment_are_not_claimed_from_a_snapshot(number: int) -> None:
    world = World()
    process = world.process()
    jobs = [process.enqueue(FILLER) for _ in range(90)]
    process.catch_up()
    write(process)
    process.close()
    world.is_whole = False
    world.machine.unlink(world.segments()[number])
    fresh = world.process()
    claimed = [delivery.job for delivery in fresh.claim(100)]
    there = _lsns(world)
    assert claimed == [job for job in jobs if job in there]
    assert 0 < len(claimed) < len(jobs)


def test_a_segment_beside_a_loss_is_not_compacted_until_a_person_accepts_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(0, keeping(keep_segments=1))
    process = world.process()
    for _ in range(5):
        fill_segment(process)
    process.close()
    world.is_whole = False
    world.machine.unlink(world.segments()[1])
    first = world.segments()[0]
    process = world.process()
    tend(process)
    assert first in world.segments()
    assert "records are lost, of lsns" in caplog.text
    process.close()
    world.repair()
    tend(world.process())
    assert first not in world.segments()


def test_looking_for_losses_ends_though_compaction_is_always_faster() -> None:
    world, _ = _written(1)
    journal = world.reader()
    looks = 0

    def looked_at() -> Never:
        nonlocal looks
        looks += 1
        assert looks < 100, "it looks for ever"
        raise SegmentGone("compaction took it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.files, "looked_at", looked_at)
        assert find_losses(journal, 0) == ()
    assert looks > 1
    assert not journal.lost


def backlog(process: Process, segments: int, spec: EnqueueSpec = PLAIN) -> list[int]:
    jobs = [process.enqueue(FILLER, None, spec)]
    while len(process.world.segments()) < segments:
        jobs.append(process.enqueue(FILLER, None, spec))
    return jobs


def _opened(monkeypatch: pytest.MonkeyPatch, world: World) -> Counter[str]:
    opened: Counter[str] = Counter()
    open_file = CrashableDisk.open

    def counted(self: CrashableDisk, path: str, **options: Any) -> int:
        opened[path] += path in segments
        return open_file(self, path, **options)

    segments = set(world.segments())
    monkeypatch.setattr(CrashableDisk, "open", counted)
    return opened


def test_open_segments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq.log.segments.segments._DESCRIPTORS_MAX", 3)
    world = World()
    process = world.process()
    backlog(process, 8)
    files = process.journal.files
    files.close_others()
    last, before = files.descriptor(files.lsns[-1]), process.disk.open_files
    for lsn in files.lsns * 2:
        files.descriptor(lsn)
        assert process.disk.open_files <= before + 2
    assert files.descriptor(files.lsns[-1]) == last


def test_reading_opens_no_segment_but_the_last_until_somebody_asks_for_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.is_whole = False
    writer = world.process()
    jobs = backlog(writer, 50)
    writer.close()
    *others, last = world.segments()
    world.machine.unlink(others.pop(20))
    opened = _opened(monkeypatch, world)
    journal = Journal(CrashableDisk(world.machine), world.clock, PATH, world.config, None)
    journal.open_for_reading()
    assert +opened == {last: 1}
    lost = {lsn for gap in journal.lost for lsn in range(gap.first_lsn, gap.next_lsn)}
    assert lost.intersection(jobs)
    assert set(others) <= set(opened)
