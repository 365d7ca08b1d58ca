"""The decoder gives the rows of every other reader of a log, column by column."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.arrow import DETAILS, as_bytes, decode, decode_together
from taskq.arrow.decoder import batches_of
from taskq.core.errors import TaskqError
from taskq.core.folds.steps import Form
from taskq.core.model import Extras, State
from taskq.core.records import Cause, Flag, Kind, Option
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.log.format import codec
from taskq.log.format.bodies import compress
from taskq.log.format.carried import Carried, encode_carried, encode_compacted, encode_queue
from taskq.log.format.flows import Stepped, encode_step
from taskq.log.format.notes import encode_ticked
from taskq.log.format.options import encode_extras, encode_key_hash, encode_replaces
from taskq.log.read.reader import LogReader, open_journal
from tests.arrow.rows_of_log import (
    Row,
    Segments,
    decoded_rows,
    expected_rows,
    pieces,
    rows_of_directory,
    save,
)
from tests.effort import grows, some
from tests.log.mix import CONFIGS, History, Mix
from tests.log.simulation import Simulation
from tests.log.world import World

_BYTES: Final = as_bytes(DETAILS)


def _check(rows: tuple[list[Row], list[Row]]) -> None:
    decoded, expected = rows
    for got, wanted in zip(decoded, expected, strict=False):
        different = {
            name: (got[name], wanted[name]) for name in wanted if got[name] != wanted[name]
        }
        assert not different, (wanted["kind"], wanted["lsn"])
    assert [row["lsn"] for row in decoded] == [row["lsn"] for row in expected]


def _mix(seed: int, acts: int = 200) -> World:
    mix = Mix(seed, CONFIGS[seed % len(CONFIGS)], locked=False)
    for _ in range(acts):
        mix.act()
    return mix.world


def _crashed(seed: int) -> World:
    simulation = Simulation(seed, steps_of_clock=True, faults=bool(seed % 2))
    simulation.run(60)
    return simulation.world


def _compacted(seed: int) -> World:
    history = History(seed, steps_of_clock=True, small=True)
    history.run(15)
    history.compact()
    history.run(15)
    return history.world


@pytest.mark.parametrize("make", [_mix, _crashed, _compacted])
def test_random_logs(make: Callable[[int], World], tmp_path: Path) -> None:
    for seed in range(4):
        rows = rows_of_directory(save(make(seed).machine, tmp_path / str(seed)))
        assert len(rows[1]) > 20
        _check(rows)


def test_a_whole_log_is_decoded_segment_by_segment(tmp_path: Path) -> None:
    directory = save(_mix(2).machine, tmp_path / "edge-7")
    with LogReader.open(str(directory)) as reader:
        schema, batches = batches_of(reader)
        rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
        assert len({row["segment"] for row in rows}) > 1
        assert schema == DETAILS
        _check((rows, expected_rows(reader.journal, directory)))


@pytest.mark.parametrize("seed", range(4))
def test_logs_that_are_torn_or_have_flipped_bytes(seed: int, tmp_path: Path) -> None:
    original = save(_mix(seed, 120).machine, tmp_path / "original")
    chance = random.Random(seed)
    for number in range(12):
        directory = tmp_path / str(number)
        shutil.copytree(original, directory)
        path = chance.choice(sorted((directory / "log").glob("*.log")))
        data = bytearray(path.read_bytes())
        if chance.random() < 0.4:
            del data[chance.randrange(64, len(data)) :]
        for _ in range(chance.choice((0, 1, 1, 3)) if len(data) > 64 else 0):
            data[chance.randrange(chance.choice((0, 64)), len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        _check(rows_of_directory(directory))


# -- any records at all ----------------------------------------------------------------------------

_names = st.sampled_from([b"", b"mail", "réseau".encode(), b"\xff\xfe", b"\xed\xa0\x80x"])
_small = st.integers(0, 2**63 - 1) | st.integers(0, 300)
_eight = st.binary(min_size=8, max_size=8)
_bodies = st.binary(max_size=40)
_option = st.tuples(st.sampled_from([*Option, 99]), st.one_of(_eight, _eight, _eight, _bodies))


def _headers(*texts: bytes, cut: int = 0) -> tuple[Option, bytes]:
    value = b"".join(len(text).to_bytes(2, "little") + text for text in texts)
    return Option.HEADERS, value[: len(value) - cut]


#: Bodies cut short, without text, or with a name twice; fields of a later version in any record.
_odd = st.sampled_from([
    _headers(), _headers(b"a"), _headers(b"", b""), _headers(b"a", b"b", b"c"),
    _headers(b"a", b"long", cut=2), _headers(b"\xff", "é".encode()),
    _headers(b"a", b"1", b"b", b"2", b"a", b"3"),
    (Option.STEP, b"\1\0\0\0do"), (Option.BEGAN, b"\6" * 8),
])  # fmt: skip
_options = st.lists(_option | _odd, max_size=4).map(
    lambda pairs: b"".join(bytes([tag]) + len(v).to_bytes(2, "little") + v for tag, v in pairs)
)
_texts = st.text(max_size=5)
_extras = st.builds(
    Extras, due_ns=st.integers(0, 2**40), due_is_wall=st.booleans(),
    expires_ns=st.integers(0, 2**40), expires_is_wall=st.booleans(),
    key=st.none() | st.binary(min_size=1, max_size=9), window_ns=st.integers(0, 2**40),
    headers=st.dictionaries(_texts, _texts, max_size=3), keep_ns=st.integers(0, 5),
)  # fmt: skip
_packed = st.sampled_from([
    (b"plain", 0),
    (b"\xff\x00", 0),
    compress(b"\xff" * 6_000, "zlib"),
    compress(b"{}" * 900, "zlib"),
    compress(b"[]" * 900, "zstd"),
    (b"no zlib at all", int(Flag.ZLIB)),
    (b"\xff" * 12, int(Flag.ZSTD)),
])  # fmt: skip


@st.composite
def _births(draw: st.DrawFn) -> Callable[[int], bytes]:
    queue, task = draw(_names), draw(_names)
    options = encode_extras(draw(_extras), 1_000) + draw(
        st.one_of(st.just(b""), st.just(encode_replaces(7)), st.just(b"\x07\x02\x00ab"))
    )
    body, flags = draw(_packed)
    if draw(st.integers(0, 9)) == 0:
        options = draw(_options)
    tail = codec.enqueue_tail(
        draw(st.integers(0, 9)), flags | 1 | draw(st.sampled_from([0, 2, 4])),
        draw(st.integers(0, 5)), len(queue), len(task), queue + task, options,
    )  # fmt: skip
    return lambda lsn: codec.encode_checked(tail, body, lsn)


@st.composite
def _carried(draw: st.DrawFn) -> Callable[[int], bytes]:
    job = draw(_small)
    body, flags = draw(_packed)
    has_body = draw(st.booleans())
    carried = Carried(
        job, draw(st.sampled_from(State)), draw(_births())(job), draw(_small),
        attempt=draw(st.integers(0, 9)), token=draw(_small), due_ns=draw(_small),
        due_is_wall=draw(st.booleans()), claim=(5, draw(st.integers(0, 2**64 - 1))),
        lease_ns=draw(st.integers(0, 3)), key_until_ns=3, expires_ns=draw(st.integers(0, 3)),
        ended_ns=draw(st.integers(0, 3)), history=draw(_bodies), body=body if has_body else None,
        flags=flags if has_body else 0, cancel_wanted=draw(st.booleans()),
    )  # fmt: skip
    kind = draw(st.sampled_from([Kind.CARRIED, Kind.REQUEUED, Kind.EDITED]))
    return lambda lsn: encode_carried(kind, carried, lsn)


@st.composite
def _of_jobs(draw: st.DrawFn) -> Callable[[int], bytes]:
    kind = draw(
        st.sampled_from(
            [Kind.CLAIMED, Kind.SUCCEEDED, Kind.DEAD, Kind.CANCELLED, Kind.EXPIRED, Kind.PURGED,
             Kind.EXTENDED, Kind.CANCEL_ASKED]
        )
    )  # fmt: skip
    body, flags = draw(_packed)
    options = draw(st.one_of(st.just(b""), st.just(encode_key_hash(2**63)), _options))
    cause, job = draw(st.sampled_from([*Cause, 77])), draw(_small)
    has_body = draw(st.booleans())
    return lambda lsn: codec.encode_job(
        kind, cause, 3, job, 2**64 - 2, body if has_body else None, lsn, options,
        flags if has_body else 0,
    )  # fmt: skip


def _others(text: bytes, number: int) -> list[bytes]:
    tallied = codec.TALLY.pack(0, Kind.TALLIED, 4, 0, 1, 0, 1, 2, 3, 4)[4:]
    strange = codec.PREFIX.pack(0, 200, 1, 9, 0)[4:]
    return [
        codec.encode_back(Kind.RETRIED, Cause.EXHAUSTED, 2, number, 9, number, text, 5),
        codec.encode_back(Kind.RELEASED, Cause.DRAIN, 2, 1, 9, 0, text, 5),
        encode_queue(Kind.PAUSED, "mail", 5),
        encode_step(Stepped("do", 1, Form.SLEEP, 0, began_ns=number, body=text), 2, 1, 30, 5),
        encode_ticked(TickRecord("nightly", ScheduleState(number, 5, True, b"every 60")), 5),
        codec.encode_checked(codec.NAME.pack(0, Kind.RESUMED, 0, 0, 1, 0)[4:], text, 5),
        codec.encode_checked(tallied, bytes([len(text) // 2]) + b"\x03" + text, 5),
        encode_compacted(number, 5),
        codec.encode_clock(-number, 5),
        codec.encode_owner(2**64 - 1 - number, text, 5),
        codec.encode_checked(strange, text, 5),
    ]


_records: st.SearchStrategy[Any] = st.one_of(
    _births(), _carried(), _of_jobs(), st.builds(_others, _names, _small).flatmap(st.sampled_from)
)


@given(frames=st.lists(st.lists(_records, max_size=6), min_size=1, max_size=5))
@grows
@settings(max_examples=some(17, 50))
def test_any_records_have_the_rows_of_other_readers(
    frames: list[list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Frames without any are sync points, and no rows."""
    directory = tmp_path_factory.mktemp("log")
    segments = Segments(directory / "log")
    for frame in frames:
        segments.add(*frame)
    directory = segments.path
    journal = open_journal(str(directory))
    try:
        expected = expected_rows(journal, directory)
    except TaskqError:
        with pytest.raises(TaskqError, match=r"\d"):
            decoded_rows(pieces(journal, directory))
        return
    finally:
        journal.close()
    rows = decoded_rows(pieces(journal, directory))
    _check((rows, expected))
    for row, plain in zip(rows, decoded_rows([segments.piece()], schema=_BYTES), strict=True):
        for name in ("value", "result"):
            text, raw = row[name], row[f"{name}_bytes"]
            assert plain[name] == (raw if text is None else text.encode())


def test_small_pieces_of_several_logs_give_together_what_each_gives_alone(tmp_path: Path) -> None:
    """But for pieces with packed bodies, which are left to ``decode``."""
    every = []
    for seed in range(4):
        directory = save(_mix(seed).machine, tmp_path / f"edge-{seed}")
        every += pieces(open_journal(str(directory)), directory, f"edge-{seed}")
    chosen = [piece for piece in every if decode_together([piece], DETAILS) is not None]
    assert len({piece.log_id for piece in chosen}) > 1
    together = decode_together(chosen, DETAILS)
    alone = [batch for piece in chosen for batch in decode(piece, DETAILS)]
    assert pa.Table.from_batches([together]).equals(pa.Table.from_batches(alone).combine_chunks())
    gone = chosen[0]._replace(path=str(tmp_path / "gone"))
    assert decode_together([*chosen, gone], DETAILS) is None
