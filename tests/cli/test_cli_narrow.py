"""Tables on a terminal: a job is one line, whatever its width and whatever stands in the log."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskq import TaskLog
from taskq.cli import render
from tests.cli.helpers import taskq
from tests.effort import grows, some

if TYPE_CHECKING:
    from pathlib import Path

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
JOBS = 6


async def _fill(path: Path) -> list[str]:
    ids = []
    async with TaskLog.open(path, name="a-worker-of-this-machine") as log:
        for i in range(JOBS):
            queue = f"newsletters-and-{'other-' * (i % 4)}mails"
            ids.append(await log.put(b'{"text":"%s"}' % (b"x" * 80), queue=queue, attempts=1))
        for delivery in await log.claim(3):
            await log.nack(delivery, f"ValueError: {'the server refused it ' * 4}")
    return ids


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a log whose names, payloads and reasons are all too long for a table."""
    path = tmp_path_factory.mktemp("wide") / "queue"
    return path, asyncio.run(_fill(path))


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(
    ("command", "rows"),
    [("ls", JOBS), ("peek", 3), ("dead ls", 3), ("tail -n 200", 13), ("stats", 5)],
)
def test_a_job_is_one_line_of_a_narrow_terminal_and_its_id_is_whole(
    wide: tuple[Path, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    rows: int,
    columns: int,
) -> None:
    path, ids = wide
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = _STYLE.sub("", taskq(*command.split(), path).stdout).splitlines()
    if command == "stats":
        lines = lines[: lines.index("")]
    assert all(len(line) <= columns for line in lines)
    assert len(lines) - (not command.startswith("tail")) == rows
    if command == "ls":
        assert [line.split()[0] for line in lines[1:]] == ids[::-1]


COLUMNS = st.lists(
    st.tuples(st.sampled_from(["", ">"]), st.text("ABC", min_size=1, max_size=12),
              st.sampled_from(["", "~", "?", "~?", "??"])).map("".join),
    min_size=1, max_size=9,
)  # fmt: skip


@given(COLUMNS, st.data(), st.integers(40, 120))
@grows
@settings(
    max_examples=some(33, 100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_table_fits_whenever_what_must_stay_does(
    capsys: pytest.CaptureFixture[str], columns: list[str], data: st.DataObject, limit: int
) -> None:
    """Columns that may not be cut are whole, and each row is a line of at most that width."""
    cells = st.text("abc déf漢", max_size=30)
    row = st.tuples(*(cells for _ in columns))
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "on_terminal", lambda: True)
        patch.setenv("COLUMNS", str(limit))
        render.print_table(columns, rows)
    lines = _STYLE.sub("", capsys.readouterr().out).splitlines()
    kept = [(i, name) for i, name in enumerate(columns) if "?" not in name]
    whole = [i for i, name in kept if "~" not in name]
    least = sum(
        render.cell_width(columns[i].strip(">~?"), *(row[i] for row in rows)) for i in whole
    )
    may_be_cut = [i for i, name in kept if "~" in name]
    least += sum(
        max(4, render.cell_width(*(row[i] for row in rows))) if columns[i].startswith(">") else 6
        for i in may_be_cut
    )
    assert len(lines) == len(rows) + 1
    if least + 2 * (len(kept) - 1) <= limit:
        assert all(render.cell_width(line.rstrip()) <= limit for line in lines)
    for i in whole:
        assert all(row[i].strip() in line for row, line in zip(rows, lines[1:], strict=True))
