"""The bytes of the format: what is written today must be readable for ever, so they are pinned."""

import ast
import json
import re
import struct
import subprocess
import sys
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from taskq import TaskLog
from taskq.connection.connection import Connection
from taskq.core import kinds
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.folds.lanes import Lane
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.kinds import CARRYING
from taskq.core.model import LIVE_STATES, Durability, Extras, State
from taskq.core.parsing import Tag
from taskq.core.rates import Times
from taskq.core.records import CLAIM, TABLE, Body, Cause, Flag, Kind, Option
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.core.sources import SourceRecord, SourceState
from taskq.log.config import LogConfig
from taskq.log.format import codec
from taskq.log.format.carried import (
    Carried,
    encode_carried,
    encode_compacted,
    encode_lease,
    encode_queue,
    encode_tally,
    find_moment,
)
from taskq.log.format.flows import Stepped, awaits_option, encode_signal, encode_step
from taskq.log.format.notes import decode_rated, encode_moved, encode_rated, encode_ticked
from taskq.log.format.options import encode_extras, encode_key_hash, encode_replaces, rerouted
from taskq.log.format.record import Record
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.log.state.fold import Watch, fold_records
from taskq.log.state.job_history import Story
from taskq.testing.sandbox import FakeClock
from tests.log.golden.write import EXPECTED, HERE, said
from tests.tables import ROOT, specified

_LOG_ID: Final = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
_EPOCH: Final = 0x1122334455667788
#: The same, of a segment that follows one whose last frame is at 0x1238, with this CRC.
_LINKED: Final = (
    "7461736b716c6f67 0100 4000 38120000 1500000000000000 8877665544332211"
    "00112233445566778899aabbccddeeff 4d00000000000000 ff9210ff efbeadde"
)
_BODY: Final = "18000000 20 00 0000 00000000 00000000 fbffffffffffffff"
_FRAME: Final = (
    "544b51f3 18000000 01000000 0000 0000 1600000000000000 8877665544332211"
    "15cd5b0700000000 1400000000000000 de511fe4 a087364e" + _BODY
)
_SPEC: Final = EnqueueSpec("mail", "mail.send", 7, 3, Flag.DROP_RESULT)
_RICH: Final = Extras(
    due_ns=5, expires_ns=9, expires_is_wall=True, key=b"k", window_ns=7, headers={"a": "é"}
)
_TICKED: Final = TickRecord("nightly", ScheduleState(7, 9, True, b"every 60", b"{}"))
_MOVED: Final = SourceRecord("a", SourceState(b"[1]", 7))
_FORGOTTEN: Final = TickRecord("nightly", ScheduleState(7, 9), is_gone=True, has_rule=False)
_TIMES: Final = Times()
_TIMES.replace([(5, 2), (9, 1)], 3, 1_000_000)
_ETA: Final = Extras(due_ns=5, due_is_wall=True)
_SHORT_LIVED: Final = Extras(expires_ns=5)


def _enqueued(extras: Extras | None, more: bytes = b"") -> bytes:
    options = (encode_extras(extras, 1_000) if extras is not None else b"") + more
    tail = codec.enqueue_tail(
        _SPEC.priority, int(_SPEC.flags), _SPEC.attempts, 4, 9, _SPEC.route, options
    )
    return codec.encode_checked(tail, b'{"to":1}', 31)


_STEP: Final = Stepped("page", 3, Form.STEP, 2, began_ns=7, body=b"1", first=32, jobs=2)
_SIGNAL: Final = Stepped("paid", once="evt", body=b"{}")
_WAITS: Final = (Wait(Form.EVENT, "paid", 1, 99),)
_LANE: Final = Lane(0, b"\x04\x09mailmail.send", 7)
_LANE.succeeded, _LANE.dead, _LANE.cancelled, _LANE.expired = 1, 2, 3, 4
_WAITING: Final = Carried(22, State.READY, _enqueued(None), 7)
_OLD: Final = Carried(22, State.READY, _enqueued(_SHORT_LIVED), 7, expires_ns=77)
_UNWANTED: Final = Carried(
    22, State.RUNNING, _enqueued(None), 7, attempt=2, token=30, claim=(8, 0xABCD),
    cancel_wanted=True,
)  # fmt: skip
_HELD: Final = Carried(
    22, State.RUNNING, _enqueued(None), 7, attempt=2, token=30, due_ns=5, due_is_wall=True,
    claim=(8, 0xABCD), lease_ns=77, key_until_ns=78, ended_ns=79, history=b"hi", body=b"no",
)  # fmt: skip
_EDITED: Final = Carried(
    22, State.SCHEDULED, rerouted(_enqueued(Extras(key=b"k")), 22, 7, b"mail"), 7, due_ns=5,
    left_key=0x0102030405060708,
)  # fmt: skip


#: name -> record, as it is written today
RECORDS: Final = {
    "enqueued": _enqueued(None),
    "enqueued with every option": _enqueued(_RICH),
    "enqueued for a moment": _enqueued(_ETA),
    "enqueued, and expiring after a while": _enqueued(_SHORT_LIVED),
    "enqueued in place of another": _enqueued(Extras(key=b"k"), encode_replaces(22)),
    "claimed": codec.encode_job(Kind.CLAIMED, 0, 2, 22, 0xABCD),
    "succeeded without a result": codec.encode_job(Kind.SUCCEEDED, 0, 2, 22, 30),
    "succeeded": codec.encode_job(Kind.SUCCEEDED, 0, 2, 22, 30, b"42", 31),
    "succeeded, and its key is free": codec.encode_job(
        Kind.SUCCEEDED, 0, 2, 22, 30, b"42", 31, encode_key_hash(0x0102030405060708)
    ),
    "dead": codec.encode_job(Kind.DEAD, Cause.EXHAUSTED, 3, 22, 30, b"no", 31),
    "cancelled": codec.encode_job(Kind.CANCELLED, Cause.CALLER, 0, 22, 0),
    "expired": codec.encode_job(Kind.EXPIRED, Cause.CALLER, 1, 22, 0),
    "retried": codec.encode_back(Kind.RETRIED, Cause.EXHAUSTED, 2, 22, 30, 5_000, b"no", 31),
    "released": codec.encode_back(Kind.RELEASED, Cause.DRAIN, 1, 22, 30, 0, b"", 31),
    "claimed with a deadline": codec.encode_job(
        Kind.CLAIMED, 0, 2, 22, 0xABCD, None, 31, encode_lease(77)
    ),
    "carried": encode_carried(Kind.CARRIED, _WAITING, 31),
    "carried, with an expiry that the clock moved": encode_carried(Kind.CARRIED, _OLD, 31),
    "carried, and not wanted any more": encode_carried(Kind.CARRIED, _UNWANTED, 31),
    "edited, and its key is of another queue": encode_carried(Kind.EDITED, _EDITED, 31),
    "requeued, with all that a carried job can have": encode_carried(Kind.REQUEUED, _HELD, 31),
    "purged": codec.encode_job(Kind.PURGED, Cause.CALLER, 0, 22, 0),
    "extended": codec.encode_job(Kind.EXTENDED, 0, 2, 22, 30, None, 31, encode_lease(77)),
    "begins to wait": codec.encode_job(
        Kind.WAIT_BEGUN, 0, 2, 22, 30, None, 31, awaits_option(b"waits")
    ),
    "paused": encode_queue(Kind.PAUSED, "mail", 31),
    "resumed": encode_queue(Kind.RESUMED, "mail", 31),
    "tallied": encode_tally(_LANE, 31),
    "compacted": encode_compacted(0xABCD, 31),
    "asked to cancel": codec.encode_job(Kind.CANCEL_ASKED, 0, 2, 22, 30),
    "ticked, with its rule": encode_ticked(_TICKED, 31),
    "ticked, and forgotten": encode_ticked(_FORGOTTEN, 31),
    "ingested": encode_moved(_MOVED, 31),
    "steered": encode_moved(_MOVED, 31, Kind.STEERED),
    "enqueued with a concurrency key": _enqueued(Extras(concurrency_key=b"a")),
    "a step that enqueued jobs": encode_step(_STEP, 1, 22, 30, 31),
    "a signal": encode_signal(_SIGNAL, 22, 31),
    "released, and waits within its run": codec.encode_back(
        Kind.RELEASED, Cause.WAITS, 0, 22, 30, 99, b"", 31, awaits_option(pack_waits(_WAITS))
    ),
    "rated": encode_rated(("send", b"a"), _TIMES, 100, 31),
    "clock": codec.encode_clock(-5, 31),
    "owner": codec.encode_owner(0xABCD, b"{}", 31),
    "acted": codec.encode(Kind.ACTED, 0, 1, 0, lsn=31, body=b"ana: purge"),
}
#: Name -> its bytes and fields: ``python -m tests.log.format.test_golden`` writes them anew.
_PINNED: Final = HERE / "records.json"


def test_a_segment_header_with_a_link_has_these_bytes() -> None:
    header = codec.SegmentHeader(21, _EPOCH, _LOG_ID.bytes, 77, codec.Link(0x1238, 0xDEADBEEF))
    data = codec.encode_segment_header(header)
    assert data == bytes.fromhex(_LINKED)
    assert codec.decode_segment_header(data, "x") == header
    assert struct.unpack_from("<I", data, 56)[0] == zlib.crc32(data[:56], 0xDEADBEEF)
    for at in range(len(data)):
        rotten = bytearray(data)
        rotten[at] ^= 1
        assert codec.decode_segment_header(bytes(rotten), "x") is None


def test_a_frame_has_these_bytes() -> None:
    """Its CRCs start from (log id, first lsn of the segment, its own offset), as specified."""
    seed = codec.segment_seed(_LOG_ID, 21)
    body = bytes.fromhex(_BODY)
    data = codec.encode_frame(body, 1, 22, _EPOCH, 123_456_789, 20, seed, 64)
    assert data == bytes.fromhex(_FRAME)
    place = zlib.crc32(_LOG_ID.bytes + struct.pack("<QQ", 21, 64))
    assert struct.unpack_from("<II", data, 48) == (
        zlib.crc32(data[56:80], place),
        zlib.crc32(data[:52], place),
    )
    header = codec.decode_frame_header(data, 0, seed, 64)
    assert header is not None
    assert header[:6] == (24, 1, 22, _EPOCH, 123_456_789, 20)
    assert header.size == len(data) == 80
    assert codec.body_is_whole(data[56:80], header, seed, 64)


def _option(data: bytes, tag: Option) -> int:
    """Return a number among the options of a record that holds no other one."""
    fixed, size = codec.FIXED_SIZES[data[4]], codec.PREFIX.unpack_from(data)[3]
    if data[4] == Kind.ENQUEUED:
        fixed += data[14] + data[15]
    return 0 if data[4] in CARRYING else find_moment(data, fixed, size, tag)


#: Records that only the engine's folds read.
_OPTIONS: Final[dict[str, Callable[[bytes], object]]] = {
    "key_hash": lambda data: _option(data, Option.KEY_HASH),
    "replaces": lambda data: _option(data, Option.REPLACES),
    "rated": lambda data: tuple(decode_rated(data)[1].pairs()) if data[4] == Kind.RATED else (),
}


_FIELDS: Final = (
    "type", "job", "flags", "token", "attempt", "attempts_max", "due_ns", "expires_ns", "lease_ns",
    "step_ns", "queue", "task", "cause", "priority", "extras", "body", "carried", "ticked",
    "moved", "step", "lines", "awaits",
)  # fmt: skip


def _pinned(data: bytes) -> dict[str, str]:
    """The bytes of a record, and every value read from them."""
    record = Record(data, 31, 8, 9)
    values = {name: getattr(record, name) for name in _FIELDS}
    values |= {name: read(data) for name, read in _OPTIONS.items()}
    return {
        "bytes": data.hex(),
        **{name: repr(it) for name, it in values.items() if it or name == "body"},
    }


def test_each_kind_of_record_has_the_pinned_bytes_and_reads_back() -> None:
    pinned = json.loads(_PINNED.read_text(encoding="utf-8"))
    assert {name: _pinned(data) for name, data in RECORDS.items()} == pinned
    assert {data[4] for data in RECORDS.values()} == set(Kind)
    for data in RECORDS.values():
        if data[8] & Flag.CHECKED:
            assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4], 31)


GOLDEN = sorted(path.stem for path in HERE.glob("*.zip"))


async def opened(name: str, path: Path) -> None:
    with zipfile.ZipFile(HERE / f"{name}.zip") as source:
        source.extractall(path)
    expected = json.loads((path / EXPECTED).read_text())
    assert expected["jobs"]
    assert said(path, expected["seconds"]) == expected
    clock = FakeClock(expected["seconds"])
    with LogReader.open(str(path), clock) as reader:
        assert not reader.verify().damage
    # The machine's speed would decide otherwise which lsn is known to be on disk.
    config = LogConfig(clock=clock, durability=Durability.OS)
    async with TaskLog(Connection(str(path), config)) as log:
        ready = sum(row[2] + row[3] for row in expected["queues"] if not row[8])
        assert len(await log.claim(1_000)) == ready, "those that ran are given back"
        assert await log.put(b"goes on")


@pytest.mark.parametrize("name", GOLDEN)
async def test_a_log_of_an_older_version_says_what_it_said_and_goes_on(
    name: str, tmp_path: Path
) -> None:
    await opened(name, tmp_path)


#: Source files that may know a kind by its name.
FILES_MAX: Final = 10
#: Enumerations of their own, whose members are called as some kinds are.
OTHERS: Final = {"State", "Why", "Op", "Body"}
NOW: Final = 10**18


def test_the_specification_has_the_table_of_kinds() -> None:
    source = Path(codec.__file__).read_text(encoding="utf-8")
    assert specified(source) == source


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names of kinds in some code, without the underscores of private constants."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and child.name in OTHERS:
            continue
        if isinstance(child, ast.Name):
            yield child.id.strip("_")
        elif isinstance(child, ast.Attribute):
            of = child.value  # ``State.DEAD``, or ``model.State.DEAD``
            if getattr(of, "id", getattr(of, "attr", None)) not in OTHERS:
                yield child.attr.strip("_")
        yield from names_in(child)


def test_at_most_ten_source_files_know_a_kind_by_its_name() -> None:
    """All others ask what its records do, so that a new kind is a row and not a search."""
    folders = ("taskq", "workers", "plugins", "examples")
    sources = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    known = set(Kind.__members__)
    spelled = re.compile("|".join(known))
    knowing = [
        path.relative_to(ROOT).as_posix()
        for path in sources
        if spelled.search(text := path.read_text(encoding="utf-8"))
        and known.intersection(names_in(ast.parse(text)))
    ]
    assert 0 < len(knowing) <= FILES_MAX, sorted(knowing)


def test_a_kind_that_is_added_to_the_table_is_known_to_all(tmp_path: Path) -> None:
    """It ends a job: that is folded, counted, told of, streamed, and stands in the tables."""
    pytest.importorskip("duckdb", reason="needs the extra sql")
    program = ROOT / "tests/samples/new_kind.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path / "log"], capture_output=True, text=True, check=False
    )
    assert not done.stderr
    seen = json.loads(done.stdout)
    assert (seen["state"], seen["counted"], seen["reason"]) == ("cancelled", 1, "no use")
    event = seen["timeline"][-1]
    assert (event["kind"], event["reason"], event["cause"]) == ("abandoned", "no use", "caller")
    assert event["owner"] == seen["timeline"][1]["owner"]
    streamed = seen["tail"][-1]
    assert (streamed["kind"], streamed["queue"], streamed["reason"]) == (
        "abandoned", "mail", "no use",
    )  # fmt: skip
    assert [row["kind"] for row in seen["records"]] == ["enqueued", "owner", "claimed", "abandoned"]
    assert seen["records"][-1]["value"] == "no use"
    assert seen["jobs"] == [{"state": "cancelled", "reason": "no use"}]


class Written:
    """Records that bring some jobs, by lsn, into a state and let something happen to them."""

    def __init__(self, jobs: int, before: State) -> None:
        self.jobs = range(1, jobs + 1)
        self.records: list[bytes] = []
        due = codec.option(Option.DUE, (NOW + 9).to_bytes(8, "little"))
        options = due if before is State.SCHEDULED else b""
        for _ in self.jobs:
            tail = codec.enqueue_tail(5, Flag.CHECKED, 3, 1, 1, b"qt", options)
            self.records.append(codec.encode_checked(tail, b"{}", len(self.records) + 1))
        for kind in self.way_to(before):
            self.add(kind)

    @staticmethod
    def way_to(state: State) -> list[int]:
        claimed = [int(kinds.CLAIM)] * (state in {State.RUNNING, State.DEAD})
        return claimed + [int(kinds.DEATH)] * (state is State.DEAD)

    def add(self, kind: int, due_ns: int = 0) -> None:
        row = TABLE[kind]
        for job in self.jobs:
            if row.layout is CLAIM or row.body is Body.RESULT:
                self.records.append(codec.encode_job(kind, 0, 1, job, job))
            else:
                lsn, due = len(self.records) + 1, (due_ns,) * ("due_ns" in row.layout.names)
                self.records.append(codec.encode(kind, 1, job, job, *due, lsn=lsn))

    def states(self, *, is_alone: bool) -> tuple[list[State], list[State]]:
        data = b"".join(self.records)
        header = codec.FrameHeader(len(data), len(self.records), 1, 7, NOW, 1, 0)
        agenda, dedup = Agenda(), None if is_alone else Dedup()
        agenda.begin_frame(1, NOW)
        fold_records(data, 0, len(data), header, 0, agenda, dedup, None if is_alone else Watch())
        stories: dict[int, Story] = {}
        for lsn, data in enumerate(self.records, 1):
            record = Record(data, lsn, 7, NOW)
            if record.type in kinds.BIRTHS:
                stories[record.job] = Story(Tag("tag"), record)
            else:
                stories[record.job].add(record)
        live = [
            State.DEAD if agenda.dead.find(job) is not None else agenda.table.state(job)
            for job in self.jobs
        ]
        return live, [stories[job].state for job in self.jobs]


MOVES: Final = [
    (before, kind, states)
    for (before, kind), states in kinds.TRANSITIONS.items()
    if kind in kinds.OF_JOBS - kinds.CARRYING
]


@pytest.mark.parametrize("is_alone", [True, False], ids=["agenda", "all facets"])
@pytest.mark.parametrize("jobs", [1, 9], ids=["one job", "a run"])
@pytest.mark.parametrize(
    ("before", "kind", "states"),
    MOVES,
    ids=[f"{state}-{kinds.name_of(kind)}" for state, kind, _ in MOVES],
)
def test_the_folds_and_a_jobs_history_follow_the_transition_table(
    before: State, kind: int, states: tuple[State, ...], jobs: int, *, is_alone: bool
) -> None:
    for due_ns, state in zip((0, NOW + 9), states, strict=False):
        written = Written(jobs, before)
        written.add(kind, due_ns)
        live, stories = written.states(is_alone=is_alone)
        known = state in LIVE_STATES or state is State.DEAD
        assert live == [state if known else State.ABSENT] * jobs
        assert stories == [state] * jobs


if __name__ == "__main__":
    pinned = {name: _pinned(data) for name, data in RECORDS.items()}
    _PINNED.write_text(json.dumps(pinned, indent=1) + "\n", encoding="utf-8")
