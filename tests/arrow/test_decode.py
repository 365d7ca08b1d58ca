"""Records of each kind decode; errors name the file and its fault."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from taskq.arrow import (
    DETAILS,
    SCHEMA,
    as_bytes,
    decode,
)
from taskq.arrow.arrays import HEAD_SIZE, PAD_SIZE
from taskq.core.errors import FormatError, UsageError
from taskq.core.folds.lanes import Lane
from taskq.core.folds.steps import Form
from taskq.core.kinds import name_of
from taskq.core.model import Extras, State
from taskq.core.rates import Times
from taskq.core.records import Cause, Flag, Kind, Option
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.core.sources import SourceRecord, SourceState
from taskq.log.format import codec
from taskq.log.format.bodies import compress
from taskq.log.format.carried import (
    Carried,
    encode_carried,
    encode_compacted,
    encode_lease,
    encode_queue,
    encode_tally,
)
from taskq.log.format.flows import Stepped, awaits_option, encode_signal, encode_step
from taskq.log.format.notes import encode_moved, encode_rated, encode_ticked
from taskq.log.format.options import encode_extras, encode_key_hash, encode_replaces
from tests.arrow.rows_of_log import (
    EPOCH,
    LOG_ID,
    START_NS,
    Row,
    Segments,
    claimed,
    decoded_rows,
    enqueued,
    succeeded,
)

_LANE: Final = Lane(0, b"\x04\x09mailmail.send", 7)
_RICH: Final = Extras(
    due_ns=5, expires_ns=9, expires_is_wall=True, key=b"k", window_ns=7, headers={"a": "é"}
)
_BORN: Final = enqueued(b'{"to":1}', encode_extras(Extras(expires_ns=5), 1_000))(1)
_HELD: Final = Carried(
    1, State.RUNNING, _BORN, 7, attempt=2, token=30, due_ns=5, due_is_wall=True,
    claim=(8, 2**64 - 1), lease_ns=77, key_until_ns=78, ended_ns=79, history=b"hi", body=b"no",
)  # fmt: skip
_NAMES: Final = {"queue": "mail", "task": "mail.send", "priority": 7}
_BIRTH: Final = _NAMES | {"attempts_max": 3, "attempt": 0, "moments": 0}
_JOB: Final = {"job": 1, "job_id": "00112233-1", "attempt": 2, "token": 30}
_GOLDEN: Final[list[tuple[Any, dict[str, Any]]]] = [
    (enqueued(b'{"to":1}'), _BIRTH | {"value": '{"to":1}'}),
    (
        enqueued(b"", encode_extras(_RICH, 1_000) + encode_replaces(22) + b"\x07\x02\x00ab"),
        _BIRTH | {"value": "", "due_ns": 1_005, "expires_ns": 9, "moments": 2, "key": "k",
         "headers": {"a": "é"}, "replaces": 22, "concurrency_key": "ab"},
    ),
    (
        enqueued(b"", encode_extras(Extras(due_ns=5, due_is_wall=True), 1_000), flags=6),
        _BIRTH | {"value": "", "due_ns": 5, "moments": 1, "flags": 7},
    ),
    (
        codec.encode_job(Kind.CLAIMED, 0, 2, 1, 2**64 - 1, None, 31, encode_lease(77)),
        _JOB | {"owner": "f" * 16, "token": None, "lease_ns": 77, "flags": 0},
    ),
    (codec.encode_job(Kind.SUCCEEDED, 0, 2, 1, 30), _JOB | {"flags": 0}),
    (succeeded(1, 30, b""), _JOB | {"attempt": 1, "value": ""}),
    (
        codec.encode_job(Kind.SUCCEEDED, 0, 2, 1, 30, b"42", 31, encode_key_hash(2**63)),
        _JOB | {"value": "42", "key_hash": -(2**63)},
    ),
    (
        codec.encode_job(Kind.DEAD, Cause.EXHAUSTED, 2, 1, 30, b"no", 31),
        _JOB | {"value": "no", "cause": "exhausted"},
    ),
    (
        codec.encode_job(Kind.CANCELLED, Cause.REPLACED, 0, 1, 0),
        _JOB | {"attempt": 0, "token": None, "cause": "replaced", "flags": 0},
    ),
    (
        codec.encode_job(Kind.EXPIRED, 99, 1, 1, 0),
        _JOB | {"attempt": 1, "token": None, "cause": "caller", "flags": 0},
    ),
    (
        codec.encode_back(Kind.RETRIED, Cause.EXHAUSTED, 2, 1, 30, 5_000, b"no", 31),
        _JOB | {"value": "no", "cause": "exhausted", "due_ns": 5_000, "moments": 0},
    ),
    (
        codec.encode_back(Kind.RELEASED, Cause.OWNER_LOST, 2, 1, 30, 0, b"", 31),
        _JOB | {"value": "", "cause": "owner_lost", "moments": 0},
    ),
    (
        encode_carried(Kind.CARRIED, Carried(1, State.SUCCEEDED, _BORN, 7, ended_ns=3), 31),
        _BIRTH | {"job": 1, "job_id": "00112233-1", "value": '{"to":1}', "enqueued_ns": 7,
         "ended_ns": 3, "state": "succeeded", "expires_ns": 1_005},
    ),
    (
        encode_carried(Kind.REQUEUED, _HELD, 31),
        _BIRTH | _JOB | {"owner": "f" * 16, "value": '{"to":1}', "state": "running", "due_ns": 5,
         "expires_ns": 1_005, "moments": 1, "enqueued_ns": 7, "ended_ns": 79, "history": b"hi",
         "lease_ns": 77, "result": "no"},
    ),
    (
        encode_carried(
            Kind.EDITED, Carried(1, State.SCHEDULED, _BORN, 7, due_ns=9, left_key=5), 31
        ),
        _BIRTH | {"job": 1, "job_id": "00112233-1", "value": '{"to":1}', "enqueued_ns": 7,
         "state": "scheduled", "due_ns": 9, "expires_ns": 1_005},
    ),
    (
        codec.encode_job(Kind.PURGED, 0, 2, 1, 0),
        _JOB | {"token": None, "flags": 0},
    ),
    (codec.encode_job(Kind.EXTENDED, 0, 2, 1, 30, None, 31, encode_lease(77)),
     _JOB | {"lease_ns": 77, "flags": 0}),
    (codec.encode_job(Kind.CANCEL_ASKED, 0, 2, 1, 30), _JOB | {"flags": 0}),
    (codec.encode_job(Kind.WAIT_BEGUN, 0, 2, 1, 30, None, 31, awaits_option(b"w")),
     _JOB | {"flags": 0}),
    (encode_step(Stepped("pâge", 3, Form.SLEEP, 0, began_ns=6, body=b"1"), 2, 1, 30, 31),
     _JOB | {"value": "1", "step": "pâge#3", "place": 0, "state": "sleep", "began_ns": 6}),
    (encode_step(Stepped("ship", 1, 99, 7, body=b"1"), 2, 1, 30, 31),
     _JOB | {"value": "1", "step": "ship#1", "place": 7}),
    (encode_signal(Stepped("paid", body=b"{}"), 1, 31),
     _JOB | {"value": "{}", "attempt": 0, "token": None, "step": "paid"}),
    (encode_queue(Kind.PAUSED, "mail", 31), {"queue": "mail"}),
    (encode_queue(Kind.RESUMED, "réseau", 31), {"queue": "réseau"}),
    (encode_tally(_LANE, 31), _NAMES),
    (encode_compacted(77, 31), {"token": 77}),
    (encode_moved(SourceRecord("s", SourceState(b"1", 7)), 31), {}),
    (encode_ticked(TickRecord("nightly", ScheduleState(7, 9, True, b"every 60")), 31), {}),
    (encode_rated(("mail.send", b"a"), Times(), 0, 31), {}),
    (encode_moved(SourceRecord("a", SourceState(b"[1]", 7)), 31), {}),
    (encode_moved(SourceRecord("a", SourceState(b"{}", 7)), 31, Kind.STEERED), {}),
    (codec.encode_clock(-5, 31), {"step_ns": -5}),
    (codec.encode(Kind.ACTED, 0, 1, 0, lsn=31, body=b"ana: purge"),
     _JOB | {"attempt": 0, "token": None, "value": "ana: purge"}),
    (codec.encode_owner(2**63, b'{"pid":1}', 31), {"owner": "8" + "0" * 15, "value": '{"pid":1}'}),
]  # fmt: skip


def _rows(segments: Segments, **rest: Any) -> list[Row]:
    return decoded_rows([segments.piece()], **rest)


def test_every_kind_of_record_has_these_columns(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    offset = segments.frame(*(record for record, _ in _GOLDEN)) + codec.FRAME_HEADER_SIZE
    rows = _rows(segments)
    time_ns = START_NS + 1_000_001
    for number, (record, shown) in enumerate(_GOLDEN):
        data = record if isinstance(record, bytes) else record(number + 1)
        kind = Kind(data[4])
        expected = dict.fromkeys(DETAILS.names) | {
            "device": "edge-7", "log_id": str(LOG_ID), "segment": 1, "offset": offset,
            "lsn": number + 1, "kind": name_of(kind), "ts_ns": time_ns, "flags": 1,
            "timestamp": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=124_456),
            "epoch": f"{EPOCH:016x}",
        }  # fmt: skip
        if kind is Kind.ENQUEUED:
            expected |= {"job": number + 1, "job_id": f"00112233-{number + 1}"}
        assert rows[number] == expected | shown, kind
        offset += len(data)


def test_every_kind_of_record_is_pinned() -> None:
    pinned = {Kind(r[4] if isinstance(r, bytes) else r(1)[4]) for r, _ in _GOLDEN}
    assert pinned == set(Kind)


def test_gathering_never_leaves_the_data() -> None:
    assert HEAD_SIZE <= PAD_SIZE


def test_only_the_columns_that_are_asked_for_come_in_that_order(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    segments.frame(*(record for record, _ in _GOLDEN))
    for names in (["lsn", "kind"], ["value", "due_ns", "device"], list(reversed(DETAILS.names))):
        schema = pa.schema([DETAILS.field(name) for name in names])
        [batch] = decode(segments.piece(), schema)
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        every = [{name: row[name] for name in names} for row in _rows(segments)]
        assert batch.to_pylist(maps_as_pydicts="strict") == every
    assert [batch.num_rows for batch in decode(segments.piece(), pa.schema([]))] == [len(_GOLDEN)]
    with pytest.raises(UsageError, match="there is no column 'colour': device, "):
        list(decode(segments.piece(), pa.schema([("colour", pa.string())])))


def test_batches_span_frames_and_have_no_more_than_the_rows_asked_for(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    for _ in range(30):
        segments.frame(enqueued(b"1"), enqueued(b"22"), claimed(1))
    batches = list(decode(segments.piece(), SCHEMA, rows_max=40))
    assert [batch.num_rows for batch in batches] == [30, 30, 30]
    lsns = [lsn for batch in batches for lsn in batch["lsn"].to_pylist()]
    assert lsns == list(range(1, 91))


def test_pieces_of_a_segment_give_together_what_the_whole_gives(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    borders = [segments.frame(enqueued(b"%d" % n), claimed(1)) for n in range(5)]
    end = segments.piece().end
    parts = [
        segments.piece(start, stop)
        for start, stop in zip([0, *borders[1:]], [*borders[1:], end], strict=True)
    ]
    assert decoded_rows(parts) == _rows(segments)


def test_payloads_and_headers_can_be_left_out(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    segments.frame(
        enqueued(b"secret", encode_extras(Extras(headers={"a": "b"}), 0)), succeeded(1, 2, b"42")
    )
    rows = _rows(segments, payload=False, headers=False)
    assert [(row["value"], row["headers"]) for row in rows] == [(None, None), ("42", None)]


def test_headers_come_as_every_reader_takes_them(tmp_path: Path) -> None:
    """Also where they are cut short, no text, or a name comes twice: then the last value counts."""

    def option(*texts: bytes) -> bytes:
        value = b"".join(len(text).to_bytes(2, "little") + text for text in texts)
        return bytes([Option.HEADERS]) + len(value).to_bytes(2, "little") + value

    cases: list[tuple[bytes, dict[str, str] | None]] = [
        (option(b"a", b"b", b"c", b"d"), {"a": "b", "c": "d"}),
        (b"", None),
        (option(), None),
        (option(b"a"), None),
        (option(b"", b""), {"": ""}),
        (option(b"a", b"b", b"c"), {"a": "b"}),
        (option(b"a", b"long")[:-2], {"a": "lo"}),
        (option(b"\xff", "é".encode()), {"\ufffd": "é"}),
        (option(b"x", b"y") + option(b"z", b"w"), {"z": "w"}),
    ]
    segments = Segments(tmp_path)
    segments.frame(*(enqueued(b"", options) for options, _ in cases))
    assert [row["headers"] for row in _rows(segments)] == [headers for _, headers in cases]
    twice = option(b"a", b"1", b"b", b"2", b"a", b"3")
    segments.frame(enqueued(b"", twice), enqueued(b""), enqueued(b"", cases[0][0]))
    shown = [row["headers"] for row in _rows(segments)]
    assert shown[len(cases) :] == [{"a": "3", "b": "2"}, None, cases[0][1]]


def test_bodies_come_as_they_were_given(tmp_path: Path) -> None:
    """Compressed; what does not read back is null, with the reason."""
    segments = Segments(tmp_path)
    big = b"[1,2,3]" * 1_000
    zlib, zstd = compress(big, "zlib"), compress(big, "zstd")
    born = enqueued(zlib[0], flags=zlib[1])(1)
    segments.frame(
        enqueued(zlib[0], flags=zlib[1]),
        enqueued(b"plain"),
        enqueued(zstd[0], flags=zstd[1]),
        enqueued(b"\xff" * 20, flags=int(Flag.ZLIB)),
        encode_carried(
            Kind.CARRIED, Carried(1, State.SUCCEEDED, born, 7, body=zstd[0], flags=zstd[1]), 5
        ),
    )
    rows = _rows(segments)
    text = big.decode()
    assert [row["value"] for row in rows] == [text, "plain", text, None, text]
    assert rows[4]["result"] == text
    assert [row["problem"] for row in rows[:3]] == [None] * 3
    assert "the limit is 104857600" in rows[3]["problem"]


def test_bytes_that_are_no_text_stand_beside_the_column_of_text(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    packed, flag = compress(b"\xff" * 6_000, "zlib")
    key = encode_extras(Extras(key=b"\xe9t\xe9"), 0)
    segments.frame(
        enqueued("é".encode()),
        enqueued(b"\xff\x00", key),
        enqueued(packed, flags=flag),
        succeeded(1, 2, b"\xc3"),
        encode_carried(
            Kind.CARRIED, Carried(1, State.SUCCEEDED, enqueued(b"a")(1), 7, body=b"\xff"), 6
        ),
    )
    rows = _rows(segments)
    assert [row["value"] for row in rows] == ["é", None, None, None, "a"]
    whole = b"\xff" * 6_000
    assert [row["value_bytes"] for row in rows] == [None, b"\xff\x00", whole, b"\xc3", None]
    assert (rows[4]["result"], rows[4]["result_bytes"]) == (None, b"\xff")
    assert rows[1]["key"] == r"\xe9t\xe9"
    plain = _rows(segments, schema=as_bytes(DETAILS))
    assert [row["value"] for row in plain] == ["é".encode(), b"\xff\x00", whole, b"\xc3", b"a"]
    assert (plain[1]["key"], plain[4]["result"]) == (b"\xe9t\xe9", b"\xff")


def test_numbers_without_sign_are_sixteen_digits(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    owners = [1, 2**64 - 1, 0xABCD, 2**63]
    segments.frame(enqueued(b"x"), *(claimed(1, owner) for owner in owners))
    assert [row["owner"] for row in _rows(segments)] == [None, *(f"{item:016x}" for item in owners)]


def test_large_unpacked_bodies_come_in_batches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.arrow.decoder.UNPACKED_BYTES_MAX", 10_000)
    segments = Segments(tmp_path)
    packed, flag = compress(b"x" * 6_000, "zlib")
    segments.frame(*(enqueued(packed, flags=flag) for _ in range(3)), enqueued(b"small"))
    batches = list(decode(segments.piece(), SCHEMA))
    assert [batch.num_rows for batch in batches] == [1, 1, 2]
    assert [batch.num_rows for batch in decode(segments.piece(), SCHEMA.empty_table().schema)]


def test_records_of_unknown_types_are_passed_on_or_refused(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    skippable = codec.PREFIX.pack(12, 200, 1, 0, 0)
    segments.frame(skippable, enqueued(b"x"))
    rows = _rows(segments)
    assert [row["kind"] for row in rows] == ["unknown", "enqueued"]
    assert {name for name, value in rows[0].items() if value is not None} == {
        "device", "log_id", "segment", "offset", "lsn", "kind", "timestamp", "ts_ns", "epoch",
        "flags",
    }  # fmt: skip
    segments.frame(codec.PREFIX.pack(12, 99, 1, 0, 0))
    with pytest.raises(FormatError, match=r"001\.log: record type 99 at lsn 3 is unknown"):
        _rows(segments)


def test_a_length_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for number, length in enumerate((0, 11, 31, 33, 2**32 - 1)):
        segments = Segments(tmp_path / str(number))
        segments.frame(enqueued(b"x"), codec.JOB.pack(length, Kind.CLAIMED, 0, 0, 0, 1, 1, 1))
        with pytest.raises(FormatError, match=f"lsn 2 has an impossible length of {length} bytes"):
            _rows(segments)
    segments.append(b"", 2**32 - 1)
    with pytest.raises(FormatError, match="impossible length"):
        _rows(segments)
