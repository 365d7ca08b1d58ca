"""Positions of sources: in the frame of the jobs that lead there, from any process."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.errors import DuplicateKey, FormatError, SourceMoved, UsageError
from taskq.core.model import Conflict, Extras
from taskq.core.records import Kind
from taskq.core.sources import (
    SOURCES_BYTES_MAX,
    SOURCES_MAX,
    Move,
    SourceRecord,
    SourceState,
    checked_move,
)
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.decide.enqueue import together
from taskq.log.format.notes import decode_moved, encode_moved
from taskq.log.requests import Ingest, Item, Op
from tests.log.tending import fill_segment, keeping, tend
from tests.log.told import check_same, write
from tests.log.world import PLAIN, Process, World, cuts

LINES = 7


def _ingest(first: int, end: int, *, after: object = None, key: bytes | None = None) -> Ingest:
    extras = Extras(key=key, on_conflict=Conflict.RAISE) if key else None
    items: list[Item] = [(PLAIN, b"%d" % line, extras) for line in range(first, end)]
    return Ingest(checked_move("file", end, after), together(items))


def _position(process: Process, name: str = "file") -> int | None:
    state = process.catch_up().need_agenda().sources.get(name)
    return None if state is None else int(state.position)


def _lines(world: World) -> list[int]:
    return [int(it.body or b"") for it in world.records() if it.type == Kind.ENQUEUED]


def _take_rest(world: World, step: int = 2) -> None:
    """What a program does that is started anew: it goes on where the log says."""
    process = world.process()
    while (done := _position(process) or 0) < LINES:
        end = min(done + step, LINES)
        process.ask(Op.INGEST, _ingest(done, end, after=done or None))
    process.close()


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_leaves_each_line_once(power: bool) -> None:
    for cut in cuts(power=power):
        world = World()
        with cut.during(world):
            _take_rest(world)
        _take_rest(world, step=3)
        assert _lines(world) == list(range(LINES)), cut.step
        assert _position(world.process()) == LINES


def test_jobs_and_their_position_are_one_frame(world: World) -> None:
    process = world.process()
    process.ask(Op.INGEST, _ingest(0, 3))
    assert world.kinds() == [Kind.ENQUEUED] * 3 + [Kind.INGESTED]
    assert len({record.time_ns for record in world.records()[-4:]}) == 1
    assert process.committer.journal.meters.batches == 1


def test_the_slower_of_two_ingesters_is_refused_with_both_positions(world: World) -> None:
    first, other = world.process(), world.process()
    first.ask(Op.INGEST, _ingest(0, 3))
    with pytest.raises(SourceMoved, match=r"'file' stands at 3, and not unknown") as caught:
        other.ask(Op.INGEST, _ingest(0, 2))
    assert (caught.value.source, caught.value.position, caught.value.after) == ("file", 3, None)
    with pytest.raises(SourceMoved, match="stands at 3, and not at 2"):
        other.ask(Op.INGEST, _ingest(2, 4, after=2))
    with pytest.raises(SourceMoved, match="'new' is unknown here, and not at 2"):
        other.ask(Op.INGEST, Ingest(checked_move("new", 3, 2), []))
    assert _lines(world) == [0, 1, 2]


def test_no_refusal_names_a_position_that_may_still_be_lost(world: World) -> None:
    first, other = world.process(), world.process()
    first.send(Op.INGEST, _ingest(0, 3))
    refused: Future[Any] = other.send(Op.INGEST, _ingest(0, 2))
    assert not refused.done()
    other.sync()
    assert isinstance(refused.exception(0), SourceMoved)
    world.lose_power()
    assert _position(world.process()) == 3


def test_a_refused_job_moves_nothing(world: World) -> None:
    process = world.process()
    process.enqueue(extras=Extras(key=b"k"))
    with pytest.raises(DuplicateKey):
        process.ask(Op.INGEST, _ingest(0, 1, key=b"k"))
    assert _position(process) is None
    assert world.kinds() == [Kind.ENQUEUED]


def test_without_jobs_a_source_moves_alone_and_is_forgotten(world: World) -> None:
    process = world.process()
    process.ask(Op.INGEST, _ingest(5, 5))
    assert world.kinds() == [Kind.INGESTED]
    assert process.ask(Op.INGEST, Ingest(Move("file", b"", b"5"), [])) == []
    assert _position(process) is None
    assert not world.fold().need_agenda().sources
    process.ask(Op.INGEST, Ingest(Move("file", b"", b""), []))
    assert world.kinds() == [Kind.INGESTED] * 2


def test_compaction_carries_positions_as_they_stand() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    process.ask(Op.INGEST, _ingest(0, 0))
    process.ask(Op.INGEST, Ingest(checked_move("other", {"b": 1, "a": [2]}, None), []))
    world.clock.advance(90)
    process.ask(Op.INGEST, _ingest(0, 2, after=0))
    for _ in range(8):
        fill_segment(process)
    before = dict(process.catch_up().need_agenda().sources)
    tend(process)
    assert len(world.segments()) <= 3
    assert world.fold().need_agenda().sources == before
    assert before["other"].position == b'{"a":[2],"b":1}'
    with pytest.raises(SourceMoved):
        world.process().ask(Op.INGEST, _ingest(0, 2, after=0))


def test_snapshots_hold_positions(world: World) -> None:
    process = world.process()
    process.ask(Op.INGEST, _ingest(0, 2))
    process.enqueue(bytes(2_000))
    process.catch_up()
    write(process)
    check_same(world)
    assert _position(world.process()) == 2


def test_what_a_log_knows_of_sources_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.process()
    monkeypatch.setattr("taskq.core.sources.SOURCES_MAX", 3)
    for name in ("a", "b", "file"):
        process.ask(Op.INGEST, Ingest(checked_move(name, 0, None), []))
    with pytest.raises(UsageError, match=r"4 sources .* the most is 3 .* sources forget NAME"):
        process.ask(Op.INGEST, Ingest(checked_move("c", 0, None), []))
    process.ask(Op.INGEST, _ingest(0, 10, after=0))
    process.ask(Op.INGEST, Ingest(Move("a", b"", None), []))
    process.ask(Op.INGEST, Ingest(checked_move("c", 0, None), []))
    monkeypatch.setattr("taskq.core.sources.SOURCES_BYTES_MAX", 20)
    with pytest.raises(UsageError, match="bytes"):
        process.ask(Op.INGEST, Ingest(checked_move("c", "x" * 20, 0), []))
    assert (SOURCES_MAX, SOURCES_BYTES_MAX) == (10_000, 1024**2)


def test_a_record_that_names_no_source_is_damage() -> None:
    good = encode_moved(SourceRecord("é", SourceState(b"1", 7)), 5)
    assert decode_moved(good) == SourceRecord("é", SourceState(b"1", 7))
    for name in ("x" * 300, ""):
        record = encode_moved(SourceRecord(name, SourceState(b"", 0)), 5)
        with pytest.raises(FormatError, match="names no source"):
            decode_moved(record if name else record[:24] + record[-4:])
