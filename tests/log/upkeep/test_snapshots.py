"""Snapshots: opening starts from the newest that is true, and never needs one."""

import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final
from unittest.mock import Mock

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.frames import Cursor, segment_lsn, segment_name
from taskq.log.requests import ClaimRequest, Op
from taskq.log.state import snapshot as snapshotfile
from taskq.log.state.facets import Facets
from taskq.log.state.snapshot import AGENDA, DEDUP, HEADER, load_newest, snapshot_names
from taskq.log.upkeep import snapshots
from taskq.log.upkeep.snapshots import Snapshots
from tests.effort import every, grows
from tests.log.world import (
    PATH,
    PLAIN,
    World,
    check_same,
    exhaust,
    fill,
    fixed_ids,
    folded,
    grow,
    names,
    told,
    write,
)

pytestmark = grows


def test_a_past_state_is_read_without_snapshots() -> None:
    """One of its very position may have been made when more jobs were due."""
    world = World()
    process = world.process()
    process.enqueue(b"due in a second", Extras(due_ns=SECOND_NS))
    process.catch_up()
    world.clock.advance(60)
    process.send(Op.CLAIM, ClaimRequest(0, wait_until_ns=0))
    assert process.catch_up().need_agenda().queues.stats()[0].ready == 1
    write(process)
    reader = world.reader()
    reader.is_past = True
    facets = Facets(reader)
    assert facets.need_agenda().queues.stats()[0].scheduled == 1


def test_the_first_is_due_after_so_much_log_and_the_next_after_as_much_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "LOG_BYTES_MIN", 30_000)
    world = World()
    process = world.process()
    process.catch_up()
    keeper = Snapshots(process.committer)
    written = 0
    while not keeper.due():
        process.enqueue(bytes(2_000))
        process.claim(1)
        written += 2_000
    assert 26_000 < written <= 30_000
    exhaust(keeper.steps())
    assert len(names(world)) == 2
    assert not keeper.due()
    since = 0
    while not keeper.due():
        process.enqueue(bytes(2_000))
        process.claim(1)
        since += 2_000
    assert 26_000 < since <= 30_000
    # Another process, or this one after it was opened again, does not begin to count anew.
    other = world.process()
    other.catch_up()
    assert Snapshots(other.committer).due()
    monkeypatch.setattr(snapshots, "LOG_BYTES_MIN", 40_000)
    assert not Snapshots(other.committer).due()


def test_at_close_one_is_written_if_the_tail_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    process = world.process()
    fill(process)
    keeper = Snapshots(process.committer)
    assert not list(keeper.close_steps())
    monkeypatch.setattr(snapshots, "CLOSE_BYTES_MIN", 1_000)
    exhaust(keeper.close_steps())
    assert len(names(world)) == 2
    assert not list(keeper.close_steps()), "there is nothing new"


def test_no_step_writes_more_than_a_block_or_syncs_more_than_a_piece(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sync of a large one would hold up the log."""
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", 4_096)
    monkeypatch.setattr(snapshots, "_SYNC_BYTES", 10_000)
    process = world.process()
    for number in range(1_000):
        process.send(Op.ENQUEUE, (PLAIN, b"%d" % number, None))
    process.sync()
    process.catch_up()
    written, synced = list[int](), defaultdict[str, list[int]](lambda: [0])

    def on_step(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".tmp"):
            synced[path].append(len(world.machine.content(path)))

    world.machine.on_step = on_step
    write_to_disk = process.disk.write

    def note(descriptor: int, data: bytes, offset: int) -> int:
        written[-1] += len(data)
        return write_to_disk(descriptor, data, offset)

    steps = Snapshots(process.committer).write_steps()
    done = object()
    while True:
        written.append(0)
        with monkeypatch.context() as patch:
            patch.setattr(process.disk, "write", note)
            if next(steps, done) is done:
                break
        process.send(Op.ENQUEUE, (PLAIN, b"meanwhile", None))
    assert sum(written) > 20_000
    assert max(written) <= 4_096 + 4
    largest = max(synced.values(), key=lambda ends: ends[-1])
    *pieces, rest = [end - begin for begin, end in pairwise(largest)]
    assert 10_000 <= min(pieces) <= max(*pieces, rest) < 10_000 + 2 * 4_100
    assert check_same(world).behind


def test_one_that_is_whole_but_wrong_does_not_stop_the_log_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug once froze nonsense, and every claim breaks on it: then the log itself is folded."""
    world = World()
    writer = world.process()
    job = writer.enqueue()
    for lane in writer.catch_up().need_agenda().lanes:
        lane._head = 5_000
    assert write(writer)
    writer.close()
    process = world.process()
    tries = 0
    while process.send(Op.CLAIM, ClaimRequest(1, wait_until_ns=0)).exception(0) is not None:
        tries += 1
    assert tries < 10
    assert "snapshots are not used any more here" in caplog.text
    agenda = process.committer.facets.agenda
    assert agenda is not None
    assert list(agenda.running) == [job]


def test_what_is_moved_while_a_snapshot_is_written_keeps_it_from_its_name() -> None:
    world = World()
    first, second = world.process(), world.process()
    fill(first)
    steps = Snapshots(first.committer).write_steps()
    next(steps)
    second.send(Op.ENQUEUE, (PLAIN, b"in the air", None))
    world.machine.fail_next_syncs()
    second.sync()
    third = world.process()
    exhaust(steps)
    assert not names(world)
    third.close()
    check_same(world)


def test_a_copy_of_the_log_that_went_another_way_does_not_take_the_snapshot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An older copy of the segments is put back, and written to: the same lsns, other records."""
    world = World()
    process = world.process()
    process.enqueue(b"both know this")
    process.catch_up()
    path = world.segments()[0]
    copy = world.machine.content(path)
    for number in range(4):
        process.enqueue(b"one way %d" % number)
    write(process)
    process.close()
    world.machine.put(path, copy)
    world.machine.put(f"{PATH}/write.lock", b"")
    world.is_whole = False
    other = world.process()
    for number in range(9):
        other.enqueue(b"another %d" % number)
    caplog.clear()
    check_same(world)
    assert "is passed over" in caplog.text


@pytest.mark.parametrize("change", ["shorter", "gone", "between"])
def test_a_snapshot_of_other_segments_is_refused(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    process = world.process()
    for _ in range(4):
        process.enqueue(bytes(SEGMENT_BYTES_MIN))
        process.enqueue(b"one more, so that there is room between the names")
    process.catch_up()
    write(process)
    process.close()
    world.is_whole = False
    second = world.segments()[1]
    data = world.machine.content(second)
    if change == "shorter":
        world.machine.put(second, data[:-8])
    elif change == "gone":
        world.machine.unlink(second)
    else:
        lsn = segment_lsn(second.rpartition("/")[2])
        assert lsn is not None
        world.machine.put(f"{PATH}/log/{segment_name(lsn + 1)}", data)
    world.fold()
    assert "is passed over: " in caplog.text


def test_a_disk_that_refuses_leaves_no_snapshot_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(60):
        world = World()
        process = world.process()
        fill(process)
        left = number

        def refuse(_operation: str, path: str) -> None:
            nonlocal left
            if "/snapshot" in path and not path.endswith("lock"):
                left -= 1
                if left < 0:
                    raise OSError(28, "No space left on device")

        world.machine.on_step = refuse
        write(process)
        world.machine.on_step = None
        check_same(world)
        if left > 0:
            break
        assert "no snapshot was written: [Errno 28]" in caplog.text
        assert len(names(world)) <= 4
        grow(process)
        write(process)
        assert check_same(world).behind == 0
    assert left > 0


def test_a_directory_that_cannot_be_read_is_no_reason_to_stop(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = world.process()
    fill(process)
    monkeypatch.setattr(snapshots, "LOG_BYTES_MIN", 1)
    keeper = Snapshots(process.committer)
    with monkeypatch.context() as patch:
        patch.setattr(process.disk, "names", Mock(side_effect=OSError(5, "Input/output error")))
        assert not keeper.due()
        for steps in (keeper.steps(), keeper.close_steps(), keeper.write_steps()):
            exhaust(steps)
    assert caplog.text.count("no snapshot was written: [Errno 5]") == 3
    process.enqueue(bytes(2**20))
    process.catch_up()
    assert keeper.due()


def test_there_is_none_when_the_disk_is_short() -> None:
    world = World(config=LogConfig(min_free_bytes=10_000, reserve_bytes=0))
    process = world.process()
    fill(process)
    world.machine.free = 10_050
    assert not write(process)
    world.machine.free = 50_000
    assert len(write(process)) == 2


_BLOCK: Final = 128


class Small:
    def __init__(self) -> None:
        self.world = World()
        process = self.world.process()
        for number in range(2):
            process.offer(b"keyed %d" % number, Extras(key=b"key %d" % number))
            process.enqueue(b"plain")
            process.settle(process.claim(1)[0])
            process.catch_up()
            write(process)
        process.enqueue(b"after it")
        process.close()
        self.paths = [f"{PATH}/snapshot/{name}" for name in names(self.world)]
        self.contents = {path: self.world.machine.content(path) for path in self.paths}
        self.truth = told(folded(self.world, trusts_snapshots=False), self.now_ns)

    @property
    def now_ns(self) -> int:
        return self.world.clock.wall_ns()

    def newest(self, facet: str) -> str:
        return max(path for path in self.paths if f".{facet}." in path)

    def put(self, path: str, data: bytes) -> None:
        self.world.machine.put(path, data)

    def restore(self) -> None:
        for path, data in self.contents.items():
            self.put(path, data)

    def told(self) -> dict[str, Any]:
        return told(folded(self.world, trusts_snapshots=True), self.now_ns)

    def cursor(self, facet: str) -> int | None:
        place = self.world.reader()
        if facet == "agenda":
            loaded: tuple[object, Cursor] | None = load_newest(place, AGENDA)
        else:
            loaded = load_newest(place, DEDUP)
        return None if loaded is None else loaded[1].next_lsn


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setattr(snapshotfile, "BLOCK_BYTES", _BLOCK)
    small = Small()
    assert len(small.paths) == 4
    yield small
    small.restore()
    check_same(small.world)


def _lsns(small: Small, facet: str) -> list[int]:
    reader = small.world.reader()
    return [int(name[:20]) for name in snapshot_names(reader.disk, PATH, facet)]


@grows
@pytest.mark.parametrize("facet", ["agenda", "dedup"])
def test_any_byte_that_changed_makes_it_ignored(
    small: Small, facet: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest, older = _lsns(small, facet)
    path = small.newest(facet)
    data = small.contents[path]
    assert small.cursor(facet) == newest
    for at in range(0, len(data), every(17)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        small.put(path, bytes(changed))
        caplog.clear()
        assert small.cursor(facet) == older, f"byte {at}"
        assert "is passed over" in caplog.text
        if not at % 16:
            assert small.told() == small.truth


def _contents_at(data: bytes) -> int:
    count: int = HEADER.unpack_from(data)[12]
    return HEADER.size + 16 * count + 4


def _swapped(small: Small) -> bytes:
    """Two blocks in each other's place: their CRC begins with log, lsn and number."""
    data = small.contents[small.newest("agenda")]
    at, size = _contents_at(data), _BLOCK + 4
    assert at + 2 * size <= len(data)
    blocks = data[at : at + size], data[at + size : at + 2 * size]
    return data[:at] + blocks[1] + blocks[0] + data[at + 2 * size :]


#: name -> (content of the newest agenda, warning)
HARMS: Final[dict[str, tuple[Callable[[Small], bytes], str]]] = {
    "is nonsense": (lambda _: b"nothing of the kind", "is passed over"),
    "is empty": (lambda _: b"", "is passed over"),
    "was cut": (lambda small: small.contents[small.newest("agenda")][:-1], "is passed over"),
    "grew": (lambda small: small.contents[small.newest("agenda")] + b"\0", "is passed over"),
    "is of another log": (lambda _: (it := Small()).contents[it.newest("agenda")], "another log"),
    "is of another facet": (
        lambda small: small.contents[small.newest("dedup")], "it holds version 1 of facet 2",
    ),
    "has blocks swapped": (_swapped, "is passed over"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_or_foreign_snapshot_is_skipped(
    small: Small, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    content, warning = HARMS[harm]
    small.put(small.newest("agenda"), content(small))
    assert small.cursor("agenda") == _lsns(small, "agenda")[1]
    assert small.told() == small.truth
    assert warning in caplog.text


def test_without_one_that_reads_the_log_is_folded_from_its_start(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    small.world.machine.unreadable = {(path, 0) for path in small.paths}
    assert small.cursor("agenda") is None
    assert small.told() == small.truth
    assert "Input/output error" in caplog.text
    small.world.machine.unreadable = set()


def _with_fields(data: bytes, **changes: int) -> bytes:
    """Return the file with another version, or the like, and a header CRC that fits."""
    end = _contents_at(data)
    head = bytearray(data[: end - 4])
    for name, value in changes.items():
        form, at = {"version": ("<H", 8), "frozen": ("<I", 12)}[name]
        struct.pack_into(form, head, at, value)
    return bytes(head) + zlib.crc32(head).to_bytes(4, "little") + data[end:]


@pytest.mark.parametrize("what", ["version", "frozen"])
def test_one_of_a_newer_taskq_is_ignored_and_kept(
    small: Small, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = small.newest("agenda")
    small.put(path, _with_fields(small.contents[path], **{what: 99}))
    assert small.told() == small.truth
    assert "a newer taskq wrote it" in caplog.text
    process = small.world.process()
    process.enqueue(b"more")
    process.catch_up()
    assert path.rpartition("/")[2] in write(process)
    assert small.world.fold().caught_up == 0
    process.close()
    for name in names(small.world):
        small.world.machine.unlink(f"{PATH}/snapshot/{name}")


_PINNED: Final = {"agenda": 2214465693, "dedup": 3173312696}


def test_the_bytes_of_a_snapshot_change_with_its_version_alone() -> None:
    """Columns of another meaning would be taken for the old ones."""
    with fixed_ids():
        small = Small()
    checksums = {facet: zlib.crc32(small.contents[small.newest(facet)]) for facet in _PINNED}
    assert checksums == _PINNED
