"""The tables do not depend on how a fleet was read: sizes of batches, kills, changes of the logs.

Devices write, are set back to backups and cloned. A fold in plain Python, which shares no code with
the pipeline's, gives the rows.
"""

import random
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from taskq.arrow import Piece, decode
from taskq.core.records import Cause, Kind
from taskq.log.format import codec
from taskq.log.format.flows import Stepped, encode_step
from taskq.log.segments.identity import Identity, Parent
from taskq_plugins.spark.lake.store import DERIVED, READ, Lake
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run import pipeline
from taskq_plugins.spark.run.pipeline import RunOptions
from tests.effort import grows, some, spread
from tests.fleet.made_logs import SECOND, MadeLog, claimed, damage, enqueued, succeeded
from tests.pipeline import kit, plain

#: Lakes wait for the disk, which other tests may keep busy.
pytestmark = pytest.mark.timeout(240)
BASE = ("records", "jobs", "attempts", "_open")
UNLIMITED = 2**62


class Held(NamedTuple):
    """A job that is not over: attempts, and its claim: 0 while it waits, -1 once it is dead."""

    attempt: int = 0
    claim: int = 0


class Fleet:
    """Three devices with a random history; ``live`` logs are written to, ``made`` are all."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self.live = [MadeLog(root / "hub" / f"dev-{number}", self._log_id()) for number in range(3)]
        self.made = [*self.live]
        self._backups: list[tuple[int, MadeLog, dict[int, Held]]] = []
        self._jobs: list[dict[int, Held]] = [{}, {}, {}]
        self._count = 0

    def _log_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.chance.getrandbits(128), version=4)

    def act(self) -> None:
        chance, at = self.chance, self.chance.randrange(len(self.live))
        made, jobs = self.live[at], self._jobs[at]
        self._count += 1
        acts = ("rotate", "epoch", "tear", "backup", "back", "clone")
        act = chance.choice([*["write"] * 3, *["work"] * 9, *acts])
        made.mend()
        if act == "write":
            first, key = made.next_lsn, chance.choice([b"", b"", b"one", b"two"])
            body = bytes(chance.choice([10, 400, 3000])) if chance.randrange(3) else b"[1]"
            many = range(chance.randint(1, 4))
            made.frame(*(enqueued(first + more, body, chance.choice("ab"), key) for more in many))
            jobs |= dict.fromkeys(range(first, made.next_lsn), Held())
        elif act == "work" and jobs:
            self._work(made, jobs)
        elif act == "rotate":
            made.rotate()
        elif act == "epoch":
            made.new_epoch()
        elif act == "tear":
            made.tear()
        elif act == "backup" and made.next_lsn > made.begins:
            self._backups.append((at, self._child(made, self.root / "backup"), dict(jobs)))
        elif act == "back" and self._backups:
            at, backup, jobs = self._backups.pop(chance.randrange(len(self._backups)))
            self.live[at], self._jobs[at] = self.live[at].replace(backup), jobs
        elif act == "clone" and made.next_lsn > made.begins:
            self.live.append(self._child(made, self.root / "hub" / "clone"))
            self._jobs.append(dict(jobs))

    def _child(self, made: MadeLog, near: Path) -> MadeLog:
        child = made.child(near.with_name(f"{near.name}-{self._count}"), self._log_id())
        self.made.append(child)
        return child

    def _work(self, made: MadeLog, jobs: dict[int, Held]) -> None:
        chance, lsn = self.chance, made.next_lsn
        job = chance.choice(sorted(jobs))
        attempt, claim = jobs[job]
        if claim < 0:
            made.frame(codec.encode_job(Kind.PURGED, 0, attempt, job, 0))
        elif not claim and chance.randrange(8):
            made.frame(claimed(job, chance.choice([7, 8]), attempt + 1))
            jobs[job] = Held(attempt + 1, lsn)
            return
        elif not claim:
            made.frame(codec.encode_job(Kind.CANCELLED, 0, attempt, job, 0, b"", lsn))
        else:
            reason = chance.choice([b"OSError: host %d is off" % lsn, b"ValueError: no"])
            end = chance.choice(["step", "back", "lost", "dead", "done", "done", "done"])
            if end == "step":
                step = Stepped("page", 1, place=chance.randrange(3), body=b"12")
                made.frame(encode_step(step, attempt, job, claim, lsn))
            elif end == "back":
                due_ns = made.time_ns + chance.choice([0, 3, 30]) * SECOND
                back = (Kind.RETRIED, Cause.EXHAUSTED, attempt, job, claim, due_ns, reason)
                made.frame(codec.encode_back(*back, lsn))
            elif end == "lost":
                back = (Kind.RELEASED, Cause.OWNER_LOST, attempt, job, claim, 0, b"")
                made.frame(codec.encode_back(*back, lsn))
            elif end == "dead":
                made.frame(codec.encode_job(Kind.DEAD, 4, attempt, job, claim, reason, lsn))
            else:
                made.frame(succeeded(job, claim, lsn, attempt))
            jobs[job] = Held(attempt, {"step": claim, "dead": -1}.get(end, 0))
            if end != "done":
                return
        del jobs[job]

    def live_on(self, acts: int, read: Callable[[int], object]) -> None:
        """Let some time pass; ``read`` gets a limit of bytes now and then."""
        for _ in range(acts):
            self.act()
            if self.chance.randrange(6) == 0:
                read(self.chance.choice([1, 300, 4000]))

    def hurt(self, read: Mapping[str, int]) -> None:
        """Change a log as nobody should: ``read`` has the first lsn not read yet, by log."""
        at = self.chance.randrange(len(self.live))
        made, act = self.live[at], self.chance.choice(["compact"] * 3 + ["damage", "remove"])
        if act == "compact":
            self.compact(made, read)
        elif act == "damage" and made.frames and made.frames[-1].path.exists():
            damage(made.frames[-1])
        elif act == "remove":
            shutil.rmtree(made.path)
            self.live[at], self._jobs[at] = MadeLog(made.path, self._log_id()), {}
            self.made.append(self.live[at])

    def compact(self, made: MadeLog, read: Mapping[str, int]) -> None:
        """Remove the first segments of a log, as far as they were read."""
        ends = {(log.log_id, frame.segment): frame.next_lsn
                for log in self.made for frame in log.frames}  # fmt: skip
        for segment in sorted((made.path / "log").iterdir())[:-1]:
            lsn = int(segment.stem)
            owner = made.owner(lsn)
            if read.get(str(owner), 0) < ends.get((owner, lsn), 0):
                break
            segment.unlink()

    def records(self) -> dict[tuple[str, int], dict[str, Any]]:
        written = {place: data for made in self.made for place, data in made.written.items()}
        parents = {made.log_id: tuple(Parent(*each) for each in made.parents) for made in self.made}
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for (log_id, first), data in written.items():
            path = self.root / "written"
            path.write_bytes(data)
            tag = Identity(log_id, 1, parents=parents[log_id]).tag
            piece = Piece(str(path), "", str(log_id), tag, first, 0, len(data))
            for batch in decode(piece, READ):
                rows |= {(row["log_id"], row["lsn"]): row for row in batch.to_pylist()}
        return rows


@grows
@pytest.mark.parametrize("seed", range(some(12, of=200)))
def test_rows_depend_neither_on_sizes_nor_on_moments(tmp_path: Path, seed: int) -> None:
    """By the planner and the fold alone, without a lake."""
    fleet = Fleet(tmp_path, random.Random(seed))
    now_and_then, at_once = kit.Follower(tmp_path / "hub"), kit.Follower(tmp_path / "hub")

    def read(max_bytes: int) -> None:
        ends = {log_id: end.lsn for log_id, end in now_and_then.at.items()}
        fleet.compact(fleet.chance.choice(fleet.live), ends)
        at_once.drain()
        now_and_then.drain(max_bytes)

    fleet.live_on(90, read)
    read(700)
    assert not now_and_then.problems
    assert sorted(now_and_then.read()) == sorted(set(at_once.read())) == sorted(at_once.read())
    ends = {(str(log.log_id), log.frames[-1].next_lsn - 1) for log in fleet.live if log.frames}
    assert ends <= set(now_and_then.read())
    fresh = kit.Follower(tmp_path / "hub").drain()
    for follower in (now_and_then, fresh):
        jobs = kit.folded_rows(follower.records, lineage=follower.parents).jobs
        wanted, _ = plain.jobs_of(follower.seen, follower.parents)
        assert kit.listed(map(own_device, jobs)) == kit.listed(map(own_device, wanted))
    assert set(fresh.read()) <= set(at_once.read())


def own_device(job: dict[str, Any]) -> dict[str, Any]:
    """Leave out the device of an inherited job: its log may have been read in two directories."""
    return job if job["enqueued_in"] == job["log_id"] else job | {"device": ""}


def step(root: Path, lake: Path, max_bytes: int) -> bool:
    """Read and fold one batch, as a run does; return whether there was one."""
    options = RunOptions(journals=root / "hub", max_bytes=max_bytes)
    opened, session = Lake.open(lake, create=True), mock.Mock()
    with opened.writer() as writer, kit.no_spark():
        committed, finished = opened.reached()
        if committed > finished:
            batches.fold_batch(session, writer)
        planned = pipeline._read(session, writer, options, (None, None))
        assert not planned.problems
        if planned.pieces:
            batches.fold_batch(session, writer)
        return bool(planned.pieces)


def drain(root: Path, lake: Path, max_bytes: int) -> None:
    while step(root, lake, max_bytes):
        pass


@grows
@pytest.mark.parametrize("seed", range(some(2, of=60)))
def test_tables_depend_neither_on_sizes_nor_on_batches(tmp_path: Path, seed: int) -> None:
    """One lake is filled in small batches, the other one in large ones."""

    def read(max_bytes: int) -> None:
        drain(tmp_path, tmp_path / "small", max_bytes)
        drain(tmp_path, tmp_path / "large", UNLIMITED)

    fleet = Fleet(tmp_path, random.Random(seed))
    fleet.live_on(25, read)
    read(700)
    if Lake.open(tmp_path / "small", create=True).has("jobs"):
        for name in ("small", "large"):
            kit.check_records(tmp_path / name, fleet.records())
            kit.check_tables(tmp_path / name, tmp_path / "hub", "jobs", "attempts")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 130))
def test_each_spark_table_is_a_plain_fold(tmp_path: Path, seed: int, spark: SparkSession) -> None:
    chance = random.Random(seed)
    fleet = Fleet(tmp_path, chance)
    fleet.live[0].enqueue(1)
    for _ in range(3):
        for _ in range(chance.randint(20, 60)):
            fleet.act()
        size = chance.choice([4_000, 20_000, UNLIMITED])
        assert not kit.run(spark, tmp_path / "hub", tmp_path / "lake", max_bytes=size).problems
    kit.check_records(tmp_path / "lake", fleet.records())
    kit.check_tables(tmp_path / "lake", tmp_path / "hub", "jobs", "attempts", "steps", *DERIVED)


# -- a batch that was begun is finished from the lake alone ----------------------------------------


def compacted(fleet: Path, made: MadeLog) -> None:
    made.rotate()
    made.enqueue(1)
    first = min((made.path / "log").iterdir())
    first.unlink()


def restored(fleet: Path, made: MadeLog) -> None:
    made.replace(made.child(fleet / "backup")).enqueue(4)


def removed(fleet: Path, made: MadeLog) -> None:
    shutil.rmtree(made.path)


def damaged(fleet: Path, made: MadeLog) -> None:
    for segment in (made.path / "log").iterdir():
        segment.write_bytes(segment.read_bytes()[:60] + b"\x00" * 300)


CHANGES = (compacted, restored, removed, damaged)
TABLES = ("_positions", "records", "attempts", "jobs", "steps", "_open")
STEPS = [(table, before) for table in TABLES for before in (True, False)]


@spread(5)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("table", "before"), STEPS)
def test_a_batch_that_was_begun_is_finished_from_the_lake_alone(
    tmp_path: Path, table: str, before: bool, change: Callable[[Path, MadeLog], None]
) -> None:
    made, healthy = MadeLog(tmp_path / "hub" / "dev"), MadeLog(tmp_path / "hub" / "healthy")
    for log in (made, healthy):
        log.enqueue(5)
        log.frame(claimed(1))
    drain(tmp_path, tmp_path / "lake", UNLIMITED)
    for log in (made, healthy):
        log.enqueue(2)
        log.frame(succeeded(1, 6, 9))
    shutil.copytree(tmp_path / "lake", tmp_path / "undisturbed")
    with kit.killing(table, before=before), pytest.raises(KeyboardInterrupt):
        step(tmp_path, tmp_path / "lake", UNLIMITED)
    step(tmp_path, tmp_path / "undisturbed", UNLIMITED)
    is_begun = (table, before) not in {
        ("_positions", True), ("_positions", False), ("records", True),
    }  # fmt: skip
    if is_begun:
        change(tmp_path, made)
        with kit.no_spark(), Lake.open(tmp_path / "lake").writer() as writer:
            if writer.lake.reached()[0] > writer.lake.reached()[1]:
                batches.fold_batch(mock.Mock(), writer)
    else:
        step(tmp_path, tmp_path / "lake", UNLIMITED)
    assert kit.table_rows(tmp_path / "lake", *BASE) == kit.table_rows(
        tmp_path / "undisturbed", *BASE
    )
