from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from taskq_plugins.spark.chartdata import ChartData, Span, densest
from taskq_plugins.spark.charts import draw, spoken
from taskq_plugins.spark.errors import PackageMissing
from taskq_plugins.spark.lake.errors import LakeError
from tests.pipeline.lakes import fill

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000
START = datetime(2024, 5, 1, tzinfo=UTC)
FIRST = int(START.timestamp()) // 3_600
PNG = b"\x89PNG\r\n\x1a\n"


def hour(number: int, **told: object) -> dict[str, Any]:
    return {"hour": START + timedelta(hours=number)} | told


def attempt(number: int, wait: int | None, run: int | None) -> dict[str, Any]:
    ended_ns = (FIRST + number) * 3_600 * SECOND + 5
    return {"ended_ns": ended_ns, "wait_ns": wait, "run_ns": run}


ROLLUP = [
    hour(0, settled=7, succeeded=4, dead=2, cancelled=1, attempts_ended=9, attempts_dead=2,
         attempts_succeeded=4, attempts_retried=1, attempts_lost=1, attempts_released=1),
    hour(0, settled=1, expired=1, task="app.other"),
    hour(2, settled=1, succeeded=1),
    hour(-400_000, settled=3, attempts_ended=2),
]  # fmt: skip


def test_the_hours_are_whole_and_those_of_wrong_clocks_are_counted(tmp_path: Path) -> None:
    data = ChartData(fill(tmp_path, rollup_hour=ROLLUP, attempts=[], failures=[], device_lag=[]))
    span = data.span(hours_max=100)
    assert span == Span(FIRST, FIRST + 2, 5)
    assert [tuple(one)[1:] for one in data.hours(span)] == [
        (4, 2, 2, 4, 8),
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
    ]
    data.close()


@pytest.mark.parametrize("others", [2, 0])
def test_devices_whose_clocks_are_ahead_are_left_out_if_they_are_few(
    tmp_path: Path, others: int
) -> None:
    rows = [*ROLLUP, hour(26, device="d2", succeeded=9, settled=9)]
    lag = [{"device": "d2", "clock": "ahead"}, *[{"clock": "ok"}] * others]
    tries = [attempt(0, SECOND, SECOND), attempt(0, SECOND, SECOND) | {"device": "d2"}]
    data = ChartData(fill(tmp_path, rollup_hour=rows, attempts=tries, failures=[], device_lag=lag))
    span = data.span(hours_max=100)
    assert span == (Span(FIRST, FIRST + 2, 14) if others else Span(FIRST, FIRST + 26, 5))
    data.close()


def test_spreads_are_those_of_the_raw_attempts(tmp_path: Path) -> None:
    waits = [SECOND * n for n in (3, 1, 4, 1, 5, 9, 2, 6)]
    rows = [
        *(attempt(0, wait, wait // 2) for wait in waits),
        attempt(0, -SECOND, None),
        attempt(2, None, SECOND),
        attempt(9, SECOND, SECOND),
    ]
    data = ChartData(fill(tmp_path, rollup_hour=ROLLUP, attempts=rows, failures=[], device_lag=[]))
    first, second, third = data.spreads(Span(FIRST, FIRST + 2, 0))
    assert first.wait == pytest.approx(tuple(np.percentile(waits, [50, 95, 99]) / SECOND))
    assert first.run == pytest.approx(tuple(np.percentile(waits, [50, 95, 99]) / 2 / SECOND))
    assert second[1:] == ((), ())
    assert third[1:] == ((), (1.0, 1.0, 1.0))
    data.close()


def test_the_span_is_the_stretch_in_which_most_happened() -> None:
    counts = [(0, 5), (1_000, 10), (1_050, 1), (9_000, 8)]
    assert densest(counts, 500) == Span(1_000, 1_050, 13)
    assert densest(counts, 10) == Span(1_041, 1_050, 23)
    assert densest([], 10) is None


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    rows = [attempt(n, 0 if n else SECOND, SECOND) for n in range(3)]
    failures: list[dict[str, Any]] = [
        {"pattern": "odd $ and \\frac{ of <str>" * 9, "poison": True},
        {"task": None, "failed_attempts": 0},
    ]
    lake = fill(
        tmp_path / "lake", rollup_hour=ROLLUP, attempts=rows, failures=failures, device_lag=[]
    )
    paths = draw(lake, tmp_path / "new" / "pictures")
    assert [path.name for path in paths] == ["throughput.png", "waits_and_runs.png", "failures.png"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)


def test_of_an_empty_lake_there_is_no_picture(tmp_path: Path) -> None:
    lake = fill(tmp_path, rollup_hour=[], attempts=[], failures=[], device_lag=[])
    assert draw(lake, tmp_path / "pictures") == []


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    lake = fill(tmp_path, attempts=[], failures=[], device_lag=[])
    with pytest.raises(LakeError, match="there is no table 'rollup_hour'"):
        draw(lake, tmp_path / "pictures")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = fill(tmp_path, attempts=[])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PackageMissing, match=r'pip install "taskq-local\[charts\]"'):
        draw(lake, tmp_path)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (0.0123, "12.3 ms"),
        (1, "1 s"),
        (90, "1.5 min"),
        (1e-5, "10 µs"),
        (4e4, "11.1 h"),
        (86_400, "1 d"),
    ],
)
def test_spans_are_spoken_in_their_largest_unit(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
