"""A real process on a real disk: the moment of its answers, and their survival of a power cut.

The simulation asks the same of the committer, step by step. Here it is the storage thread itself,
by the system calls that it makes.
"""

import hashlib
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from taskq import TaskLog
from taskq.core.model import Durability, State
from taskq.core.parsing import Tag
from taskq.log.machine.disk import LocalDisk
from tests.effort import grows, some
from tests.log.world import PATH
from tests.processes.harness import same_log
from tests.processes.recorded import ANSWERS, Call, record, replayed, written_out

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="macOS has no LD_PRELOAD"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder is compiled"),
]
ROUNDS: Final = 25


def answers(calls: list[Call]) -> Iterator[tuple[int, list[str]]]:
    for number, call in enumerate(calls):
        if call.path == ANSWERS and call.operation == "write":
            yield number, call.data.decode().split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fsync")


@pytest.fixture(scope="module")
def fsynced(folder: Path) -> list[Call]:
    return record(folder, "answered.py", "fsync", ROUNDS)


def test_a_replayed_recording_leaves_the_same_files(folder: Path, fsynced: list[Call]) -> None:
    machine = replayed(fsynced)
    files = [path for path in Path(f"{folder}{PATH}").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert machine.content(str(path).removeprefix(str(folder))) == path.read_bytes()


def unsynced(calls: list[Call], answered: int, mark: str) -> bool:
    written = next(
        number
        for number in range(answered)
        if calls[number].operation == "write"
        and calls[number].path != ANSWERS
        and mark.encode() in calls[number].data
    )
    path = calls[written].path.removesuffix(".tmp")
    return not any(
        call.operation == "sync" and call.path.startswith(path)
        for call in calls[written + 1 : answered]
    )


@pytest.mark.parametrize("durability", Durability)
def test_an_answer_comes_after_its_write_and_in_fsync_mode_after_its_sync(
    tmp_path: Path, fsynced: list[Call], durability: Durability
) -> None:
    """In the other modes nobody waits: a sync begins, seals or closes a segment."""
    is_synced = durability == Durability.FSYNC
    calls = fsynced if is_synced else record(tmp_path, "answered.py", durability.value, ROUNDS)
    puts = [(number, words[3]) for number, words in answers(calls) if words[0] == "put"]
    early = [mark for number, mark in puts if unsynced(calls, number, mark)]
    syncs = Counter(
        call.path for call in calls if call.operation == "sync" and call.path.endswith(".log")
    )
    if is_synced:
        assert not early
        assert syncs.total() > len(puts) / 10
    else:
        assert early
        assert max(syncs.values()) <= 4


@grows
@pytest.mark.parametrize("seed", range(some(3, of=200)))
async def test_a_power_cut_loses_nothing_that_was_answered_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsynced: list[Call], seed: int
) -> None:
    cut = random.Random(seed).randrange(len(fsynced))
    machine = replayed(fsynced[:cut], seed)
    lock = machine.find(f"{PATH}/write.lock")
    machine.lose_power()
    monkeypatch.setattr(LocalDisk, "boot_id", lambda _: seed)
    seen = [words for _, words in answers(fsynced[:cut])]
    path = written_out(machine, tmp_path)
    tag = Tag("")
    if seen:
        assert machine.find(f"{PATH}/write.lock") is lock, "by this file the log knows itself"
        tag = same_log(path).tag
    async with TaskLog.open(path) as log:
        waiting: dict[str, str] = {}
        while batch := await log.claim(100):
            waiting |= {
                delivery.job_id: hashlib.sha256(delivery.payload).hexdigest() for delivery in batch
            }
        assert (await log.put(b"the next")).startswith(tag)
        for kind, lsn, *rest in seen:
            job_id = tag.id(int(lsn))
            if kind == "put" and job_id in waiting:
                assert waiting[job_id] == rest[0]
            else:
                assert job_id not in waiting
                job = await log.get(job_id)
                assert job is not None
                assert job.state == State.SUCCEEDED
