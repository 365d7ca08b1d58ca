"""Uploads and real processes: workers adopt them by themselves, and kill -9 changes nothing."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.core.errors import UploadDamaged, UsageError
from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.log.inbox.directory import Part
from taskq.log.inbox.parts import encode_tail
from taskq.log.inbox.writer import PartWriter, discard, publish
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.log.state.job_history import records
from tests.processes.harness import Child, eventually

TAIL = encode_tail(EnqueueSpec(attempts=0))


def write(path: Path, bodies: list[bytes], upload: str = "up") -> Part:
    writer = PartWriter(path, upload)
    writer.add_many(TAIL, bodies)
    return writer.close()


def told(path: Path) -> tuple[Counter[bytes], Counter[int]]:
    """(how often each payload was enqueued, how often each job succeeded)."""
    bodies: Counter[bytes] = Counter()
    succeeded: Counter[int] = Counter()
    with LogReader.open(str(path)) as reader:
        for record in records(reader.journal, reader.journal.start()):
            if record.type == Kind.ENQUEUED:
                bodies[(record.body or b"")[:16].rstrip(b".")] += 1
            elif record.type == Kind.SUCCEEDED:
                succeeded[record.job] += 1
    return bodies, succeeded


def test_a_worker_that_sleeps_adopts_what_is_published_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Child("claim_many.py", path, "fsync") as child:
        child.expect("open")
        assert publish(path, "nightly", [write(path, [b"one", b"two"])])
        assert child.expect("done") == "2"
        eventually((path / "inbox/done/nightly.json").exists)
        child.say("stop")
        child.rest()
    assert not list((path / "inbox").glob("*.part"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_kills_in_the_midst_of_an_adoption_leave_every_job_once(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "log", random.Random(seed)
    bodies = [(b"%d" % number).ljust(2_000, b".") for number in range(6_000)]
    for number in range(3):
        part = bodies[number * 2_000 : number * 2_000 + 2_000]
        assert publish(path, f"stream@{number}", [write(path, part[:500]), write(path, part[500:])])
    children = [Child("claim_many.py", path, "fsync") for _ in range(2)]
    try:
        for _ in range(5):
            for _ in range(chance.randrange(3, 40)):
                chance.choice(children).lines_so_far()
            children.pop(0).__exit__()
            for number in range(3):
                assert not publish(path, f"stream@{number}", [])
            children.append(Child("claim_many.py", path, "fsync"))
        eventually(lambda: len(list((path / "inbox/done").glob("*.json"))) == 3)
        eventually(lambda: len(told(path)[1]) == len(bodies))
        for child in children:
            child.say("stop")
    finally:
        for child in children:
            child.__exit__()
    enqueued, succeeded = told(path)
    assert enqueued == Counter(body.rstrip(b".") for body in bodies)
    assert len(succeeded) == len(bodies)
    assert set(succeeded.values()) == {1}


def test_of_many_who_publish_one_name_at_once_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "log"
    parts = [write(path, [b"%d" % number]) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda part: publish(path, "nightly", [part]), parts))
    assert answers.count(True) == 1
    assert discard(path, "up") == 7


async def test_adopt_enqueues_all_that_was_published_in_a_log_that_nobody_has_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    writer = PartWriter(path, "up")
    for number in range(3_000):
        writer.add(TAIL, b"%d" % number)
    for number in range(300):
        writer.add(encode_tail(EnqueueSpec(), Extras(key=b"%d" % (number % 200))), b"keyed")
    publish(path, "nightly", [writer.close()])
    async with TaskLog.open(path, upkeep=False) as log:
        assert (await log.stats()).uploads == 1
        assert await log.adopt() == 3_200
        assert (await log.stats()).uploads == 0
        assert await log.adopt() == 0
        deliveries = await log.claim(3_000)
        assert [delivery.payload for delivery in deliveries] == [
            b"%d" % number for number in range(3_000)
        ]


async def test_adopt_tells_of_an_upload_that_does_not_read_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    part = write(path, [b"lost"])
    publish(path, "bad", [part])
    publish(path, "good", [write(path, [b"good"])])
    (path / "inbox" / part.name).write_bytes(b"x" * part.size_bytes)
    async with TaskLog.open(path, upkeep=False) as log:
        with pytest.raises(UploadDamaged, match=r"bad was refused: .*SHA-256"):
            await log.adopt()
        assert [delivery.payload for delivery in await log.claim(5)] == [b"good"]


def test_names_that_would_leave_the_directory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for name in ("../x", "a/b", "", ".hidden", "a\0b", "x" * 300, "é", "-x"):
        with pytest.raises(UsageError):
            PartWriter(path, name)
        with pytest.raises(UsageError):
            publish(path, name, [])
        with pytest.raises(UsageError):
            discard(path, name)
    part = write(path, [b"x"])
    for bad in ("../../etc/passwd", "up.part", "../" + part.name, part.name + ".tmp"):
        with pytest.raises(UsageError, match="no name of a part"):
            publish(path, "good", [part._replace(name=bad)])
