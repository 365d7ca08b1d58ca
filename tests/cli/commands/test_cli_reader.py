"""``taskq reader``: what began with ``taskq tail --reader`` can be looked at, moved and ended."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from taskq import TaskLog
from tests.cli.helpers import taskq, taskq_json


async def _fill(path: Path) -> None:
    async with TaskLog.open(path) as log:
        for number in range(5):
            await log.put(b"%d" % number)
        stream = log.stream(reader="billing", follow=False)
        async with stream:
            await anext(stream)
            await anext(stream)
            await stream.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a log of five jobs of which "billing" has read two."""
    asyncio.run(_fill(tmp_path))
    return tmp_path


def test_readers_are_listed_with_how_far_behind_they_are(path: Path) -> None:
    (answer,) = taskq_json("reader", "ls", "-d", path)
    size = answer.pop("lag_bytes")
    assert size > 0
    assert answer == {
        "name": "billing",
        "lsn": 3,
        "lag_records": 3,
        "alive": False,
        "problem": None,
    }
    heading, row = taskq("reader", "ls", "-d", path).stdout.splitlines()
    assert heading.split() == ["NAME", "NEXT", "LSN", "BEHIND", "BYTES", "STATE", "PROBLEM"]
    assert row.split()[:3] == ["billing", "3", "3"]
    assert row.endswith("idle")


@pytest.mark.parametrize(
    ("place", "lsn"), [("start", 1), ("end", 6), ("4", 4), ("2h", 1), ("2020-01-01T00:00", 1)]
)
def test_a_reader_goes_on_where_it_is_told_to(path: Path, place: str, lsn: int) -> None:
    result = taskq("reader", "seek", "billing", place, "-d", path)
    assert (result.exit_code, result.stdout) == (0, f"billing: goes on at lsn {lsn}\n")
    shown = taskq("tail", "--reader", "billing", "-n", "1", "-d", path).stdout
    assert shown.count("enqueued") == (lsn < 6)


def test_a_forgotten_reader_keeps_nothing(path: Path) -> None:
    assert taskq("reader", "forget", "billing", "-d", path).stdout == "billing: forgotten\n"
    assert taskq("reader", "ls", "-d", path).stdout == "Nobody reads this log under a name.\n"
    again = taskq("reader", "forget", "billing", "-d", path)
    assert again.exit_code == 2
    assert "has no reader 'billing'" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("seek", "billing", "soon"), "PLACE is 'soon': give a span back from now"),
        (("seek", "billing", "99"), "lsn 99 is still to come"),
        (("seek", "a/b", "start"), "becomes a file's name"),
        (("seek", "billing"), "Missing argument 'PLACE'"),
        (("forget",), "Missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_meant_is_refused(path: Path, words: tuple[str, ...], message: str) -> None:
    result = taskq("reader", *words, "-d", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert taskq_json("reader", "ls", "-d", path)[0]["lsn"] == 3


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["ls"],
            ["stats"],
            ["workers"],
            ["health"],
            ["verify"],
            ["peek"],
            ["schedules"],
            ["tail"],
        ),
        *(
            ["dead", "ls"],
            ["reader", "ls"],
            ["export"],
            ["show", "1"],
            ["why", "1"],
            ["timeline", "1"],
        ),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_leaves_a_copied_log_as_it_is(
    words: list[str], path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("copy"))
    before = _files(copy)
    taskq(*words, "-d", copy)
    assert _files(copy) == before


def _files(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(item.relative_to(path)): (item.stat().st_mtime_ns, item.read_bytes())
        for item in path.rglob("*")
        if item.is_file()
    }
