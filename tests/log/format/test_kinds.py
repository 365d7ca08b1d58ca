"""The table of kinds is the only truth: about layouts, states, options, for code and documents."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from taskq.core import kinds
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.model import LIVE_STATES, State
from taskq.core.parsing import Tag
from taskq.core.records import CLAIM, TABLE, Body, Flag, Kind, Option
from taskq.log.format import codec
from taskq.log.format.frames import Frame
from taskq.log.format.options import each_option
from taskq.log.format.record import Record, places
from taskq.log.read.reader import LogReader
from taskq.log.segments.indexes import SegmentIndexes
from taskq.log.state.fold import Watch, fold_records
from taskq.log.state.job_history import Story
from tests.log.golden.write import HERE
from tests.tables import ROOT, specified

#: Source files that may know a kind by its name.
FILES_MAX: Final = 10
#: Enumerations of their own, whose members are called as some kinds are.
OTHERS: Final = {"State", "Why", "Op", "Body"}
NOW: Final = 10**18


def test_the_specification_has_the_table_of_kinds() -> None:
    source = Path(codec.__file__).read_text(encoding="utf-8")
    assert specified(source) == source


# -- users of a kind's name -----------------------------------------------------------------------


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
    assert len(knowing) <= FILES_MAX, sorted(knowing)


def test_a_kind_that_is_added_to_the_table_is_known_to_all(tmp_path: Path) -> None:
    """It ends a job: that is folded, counted, told of, streamed, and stands in the tables."""
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


# -- loops that are unrolled -----------------------------------------------------------------------


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
def test_the_loops_and_the_story_do_what_the_table_says(
    before: State, kind: int, states: tuple[State, ...], jobs: int, *, is_alone: bool
) -> None:
    for due_ns, state in zip((0, NOW + 9), states, strict=False):
        written = Written(jobs, before)
        written.add(kind, due_ns)
        live, stories = written.states(is_alone=is_alone)
        known = state in LIVE_STATES or state is State.DEAD
        assert live == [state if known else State.ABSENT] * jobs
        assert stories == [state] * jobs


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("*.zip")))
def test_records_have_the_options_that_the_table_gives_them(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(HERE / f"{name}.zip") as source:
        source.extractall(tmp_path)
    with LogReader.open(str(tmp_path)) as reader:
        journal = reader.journal
        for _, frame in journal.frames(journal.start()):
            assert isinstance(frame, Frame)
            for _, at, length in places(frame):
                record = frame.data[at : at + length]
                _, kind, _, size, _ = codec.PREFIX.unpack_from(record)
                start = codec.FIXED_SIZES[kind]
                if kind in kinds.BIRTHS:
                    start += record[codec.QUEUE_SIZE_AT] + record[codec.QUEUE_SIZE_AT + 1]
                tags = {tag for tag, _ in each_option(record, start, size)}
                assert tags <= set(TABLE[kind].options), (kind, tags)


def test_all_that_is_shown_of_a_job_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(HERE / "compacted.zip") as source:
        source.extractall(tmp_path)
    looked: list[int] = []
    about = SegmentIndexes.about

    def counted(indexes: SegmentIndexes, job: int) -> Iterator[object]:
        looked.append(job)
        return about(indexes, job)

    monkeypatch.setattr(SegmentIndexes, "about", counted)
    with LogReader.open(str(tmp_path)) as reader:
        job = reader.jobs({State.SUCCEEDED}, None, None, 1)[0]
        looked.clear()
        assert reader.find_job(job.job_id) == job.lsn
        assert reader.job(job.lsn) is not None
        assert reader.ties(job.lsn) is not None
        assert reader.progress(job.lsn) is None
        assert reader.timeline(job.lsn)
        assert reader.why(job.lsn) is not None
    assert looked == [job.lsn]
