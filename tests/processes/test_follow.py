"""Following a log that other processes write: woken at once, for nothing meanwhile, none lost."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from statistics import median

import pytest

from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.machine.ports import INTEREST_GROWTH
from taskq.log.requests import ClaimRequest, EnqueueSpec, Item
from taskq.reading.stream import COMMIT_RECORDS_MAX
from tests.effort import grows, some
from tests.processes.harness import Child, eventually, log_records, open_here, put

SLOT = struct.Struct("<QB7x")
ROUNDS = 60
WAKE_SECONDS_MAX = 0.010
IDLE_SHARE_MAX = 0.01
BATCH = 400


def follows(path: Path, owner: int) -> bool:
    """Return whether that owner has announced that it sleeps until the log grows."""
    data = (path / "owners" / "board").read_bytes()
    return (owner, INTEREST_GROWTH) in SLOT.iter_unpack(data)


def told(child: Child) -> tuple[int, str, float]:
    lsn, kind, ago = child.expect("record").split()
    return int(lsn), kind, int(ago) / 1e9


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_a_stream_is_woken_by_what_another_process_writes(
    tmp_path: Path, durability: Durability
) -> None:
    """Within 10 ms at the median, from before the enqueue to the record in hand, on disk."""
    store = open_here(tmp_path, durability)
    waits = []
    with Child("follow_log.py", tmp_path, "-", durability.value) as follower:
        owner = int(follower.expect("open"))
        for _ in range(ROUNDS):
            eventually(lambda: follows(tmp_path, owner))
            put(store, str(time.monotonic_ns()).encode())
            waits.append(told(follower)[2])
    print(f"{durability}: median {median(waits) * 1e3:.2f} ms, {max(waits) * 1e3:.2f} at most")  # noqa: T201
    assert median(waits) < WAKE_SECONDS_MAX
    store.close()


def test_what_nobody_syncs_is_synced_for_the_stream(tmp_path: Path) -> None:
    """A claim waits for no fsync, so the process that made it makes none."""
    store = open_here(tmp_path, Durability.FSYNC)
    put(store, b"x")
    with Child("follow_log.py", tmp_path, "-", "fsync") as follower:
        owner = int(follower.expect("open"))
        assert told(follower)[1] == "enqueued"
        eventually(lambda: follows(tmp_path, owner))
        [delivery] = store.thread_port.claim(ClaimRequest(1)).result(10)
        assert delivery.job == 1
        assert [told(follower)[1] for _ in range(2)] == ["owner", "claimed"]
    store.close()


def test_waiting_for_the_log_to_grow_costs_no_cpu(tmp_path: Path) -> None:
    """Nothing is polled: a stream that waits for two seconds uses under 1 % of a core."""
    store = open_here(tmp_path)
    put(store, b"x")
    with Child("follow_log.py", tmp_path, "-", "os", "idle", 2) as follower:
        share = float(follower.expect("share"))
    print(f"waiting: {share:.2%} of a core")  # noqa: T201 - a figure
    assert share < IDLE_SHARE_MAX
    store.close()


def test_a_second_process_is_refused_the_name_and_told_who_has_it(tmp_path: Path) -> None:
    store = open_here(tmp_path)
    put(store, b"x")
    with Child("follow_log.py", tmp_path, "billing", "os") as first:
        told(first)
        with Child("follow_log.py", tmp_path, "billing", "os") as second:
            error = second.expect("error")
        assert error.startswith("ReaderBusy")
        assert f"process {first.pid} reads under the name 'billing'" in error
        first.kill()
        # The name is free the moment its holder is gone.
        with Child("follow_log.py", tmp_path, "billing", "os") as third:
            put(store, b"x")
            while told(third)[0] < 2:
                pass
    store.close()


@grows
def test_a_reader_that_is_killed_loses_nothing_and_repeats_little(tmp_path: Path) -> None:
    store = open_here(tmp_path, segment_bytes=64 * 1024)
    chance = random.Random(4)
    items: list[Item] = [(EnqueueSpec(), b"x" * 50, None)] * BATCH
    seen: list[int] = []
    jobs = 0
    for _ in range(some(3, 5)):
        with Child("follow_log.py", tmp_path, "billing", "os") as reader:
            for _ in range(2):
                store.thread_port.enqueue_many(items).result(20)
                jobs += BATCH
            before = len(seen)
            seen += [told(reader)[0] for _ in range(chance.randrange(1, 2 * BATCH))]
            reader.kill()
            seen += [int(line.split()[1]) for line in reader.rest() if line.startswith("record")]
        repeated = set(seen[:before]) & set(seen[before:])
        assert len(repeated) <= COMMIT_RECORDS_MAX
        assert seen[before:] == list(range(seen[before], seen[-1] + 1))
        assert not before or seen[before] <= max(seen[:before]) + 1
    records = log_records(tmp_path)
    expected = {record.lsn for record in records}
    last = max(expected)
    with Child("follow_log.py", tmp_path, "billing", "os") as reader:
        while seen[-1] < last:
            seen.append(told(reader)[0])
    assert set(seen) == expected
    assert [record.type for record in records].count(Kind.ENQUEUED) == jobs
    store.close()
