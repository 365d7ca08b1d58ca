"""Pictures of a lake: throughput and failure rate, waits and runs, what fails most.

They are drawn without a screen and without Java. Colours are those of Okabe and Ito, which people
who see fewer colours tell apart; wherever it matters shapes or words say the same.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from taskq_plugins.spark.chartdata import (
    FAILURES_MAX,
    PERCENTS,
    ChartData,
    Span,
)
from taskq_plugins.spark.errors import missing_package

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from taskq_plugins.spark.chartdata import Failure, Hour, Spread
    from taskq_plugins.spark.lake import Lake

#: Hours in one picture unless told otherwise: two weeks.
HOURS_DEFAULT: Final = 24 * 14
DOTS_PER_INCH: Final = 144
_WIDTH_INCHES: Final = 10.0
_BLUE: Final = "#0072B2"
_RED: Final = "#D55E00"
_GREEN: Final = "#009E73"
_GREY: Final = "#B4B4B4"
_INK: Final = "#333333"
_PALE: Final = "#E4E4E4"
_LABEL_CHARACTERS: Final = 44
_LINEAR_SECONDS: Final = 1e-3
#: Steps of a scale of time that people know; every other one where there is room for few.
_TICKS_SECONDS: Final = (
    *(1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30),
    *(60, 180, 600, 1_800, 3_600, 10_800, 36_000, 86_400, 259_200, 864_000, 2_592_000),
)
_TICKS_MAX: Final = 8
#: A name of a task or a reason may hold a dollar sign, which would begin a formula.
_STYLE: Final[Any] = {
    "text.parse_math": False,
    "font.size": 10,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _PALE,
    "hatch.linewidth": 0.7,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw(lake: Lake, directory: Path, hours_max: int = HOURS_DEFAULT) -> list[Path]:
    """Draw a lake's pictures as PNG files into a directory; returns their paths.

    Args:
        lake: with the tables rollup_hour, attempts, failures and device_lag.
        directory: made when it is missing.
        hours_max: how many hours back the pictures go.

    Raises:
        PackageMissing: matplotlib is not installed.
        LakeError: a table is missing.
        OSError: a picture cannot be written.
    """
    _require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415 - an extra of its own, and slow to import

    directory.mkdir(parents=True, exist_ok=True)
    data = ChartData(lake)
    try:
        with mpl.rc_context(_STYLE):
            return _draw_all(data, directory, hours_max)
    finally:
        data.close()


def _require_matplotlib() -> None:
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415
    except ImportError as error:
        raise missing_package(error, "a chart") or error from error


def _draw_all(data: ChartData, directory: Path, hours_max: int) -> list[Path]:
    span = data.span(hours_max)
    paths: list[Path] = []

    def keep(name: str, figure: Figure) -> None:
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=DOTS_PER_INCH)
        paths.append(path)

    if span is not None:
        keep("throughput", _throughput(data.hours(span), span))
        keep("waits_and_runs", _spreads(data.spreads(span), span))
    failures = data.failures()
    if failures:
        keep("failures", _failures(failures))
    return paths


def _figure(height_inches: float, rows: int, title: str) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    # No pyplot: it keeps figures, and asks for a screen.
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)
    return figure, [row[0] for row in axes]


def _throughput(hours: Sequence[Hour], span: Span) -> Figure:
    figure, (jobs, rates) = _figure(6.4, 2, "Throughput and failures, by the hour")
    times = [_time(one.hour) for one in hours]
    width = 0.86 / 24
    below = [0] * len(hours)
    parts: tuple[tuple[str, str, str, Callable[[Hour], int]], ...] = (
        ("succeeded", _BLUE, "", lambda one: one.succeeded),
        ("dead", _RED, "////", lambda one: one.dead),
        ("cancelled or expired", _GREY, "....", lambda one: one.withdrawn),
    )
    for label, colour, hatch, count in parts:
        counts = [count(one) for one in hours]
        if any(counts):
            jobs.bar(
                times, counts, width, bottom=below, align="edge", color=colour, hatch=hatch,
                edgecolor="white", linewidth=0.3, label=label,
            )  # fmt: skip
        below = [low + count for low, count in zip(below, counts, strict=True)]
    jobs.set_title("Jobs settled")
    jobs.set_ylabel("jobs per hour")
    _legend(jobs)
    middle = [_time(one.hour + 0.43) for one in hours]
    lines: tuple[tuple[str, str, str, str, Callable[[Hour], tuple[int, int]]], ...] = (
        ("attempts that failed", _INK, "-", "o",
         lambda one: (one.attempts_failed, one.attempts_counted)),
        ("jobs that died", _RED, "--", "s", lambda one: (one.dead, one.dead + one.succeeded)),
    )  # fmt: skip
    for label, colour, line, marker, counted in lines:
        shares = [100 * part / whole if whole else float("nan")
                  for part, whole in map(counted, hours)]  # fmt: skip
        rates.plot(middle, shares, line, color=colour, label=label, marker=marker,
                   markersize=_marker_size(span), linewidth=1.4)  # fmt: skip
    rates.set_title("Failure rate")
    rates.set_ylabel("percent")
    rates.set_ylim(bottom=0)
    _legend(rates)
    _time_axis(rates, span)
    return figure


def _spreads(spreads: Sequence[Spread], span: Span) -> Figure:
    figure, axes = _figure(6.8, 2, "Waits and runs, by the hour")
    times = [_time(one.hour + 0.5) for one in spreads]
    looks = ((_GREEN, "-", "o"), (_BLUE, "--", "s"), (_RED, ":", "^"))
    values: tuple[tuple[str, list[tuple[float, ...]]], ...] = (
        ("Wait: from when an attempt could run to its claim", [one.wait for one in spreads]),
        ("Run: from the claim to the end", [one.run for one in spreads]),
    )
    for at, (title, rows) in zip(axes, values, strict=True):
        for rank, (percent, (colour, line, marker)) in enumerate(zip(PERCENTS, looks, strict=True)):
            shown = [row[rank] if row else float("nan") for row in rows]
            at.plot(times, shown, line, color=colour, marker=marker, linewidth=1.5,
                    markersize=_marker_size(span), label=f"{percent} % within")  # fmt: skip
        at.set_title(title)
        _scale_of_seconds(at, [value for row in rows for value in row])
        at.set_ylabel("logarithmic scale")
        _legend(at)
    _time_axis(axes[-1], span)
    return figure


def _scale_of_seconds(at: Axes, values: Sequence[float]) -> None:
    """A logarithmic scale, linear below a millisecond where there are waits of nothing."""
    low, high = min(values, default=_LINEAR_SECONDS), max(values, default=_LINEAR_SECONDS)
    if low > 0:
        at.set_yscale("log")
        bottom, top = low / 2, high * 2
    else:
        at.set_yscale("symlog", linthresh=_LINEAR_SECONDS, linscale=0.5)
        # A little below 0, or else the line of those that did not wait would hide in the axis.
        bottom, top = -_LINEAR_SECONDS / 4, max(high, _LINEAR_SECONDS) * 2
    ticks = [tick for tick in _TICKS_SECONDS if (bottom if low > 0 else _LINEAR_SECONDS) <= tick]
    ticks = [tick for tick in ticks if tick <= top]
    if len(ticks) > _TICKS_MAX:
        ticks = [tick for tick in ticks if tick in _TICKS_SECONDS[::2]]
    at.set_yticks(ticks if low > 0 else [0, *ticks])
    at.minorticks_off()
    at.set_ylim(bottom, top)
    at.yaxis.set_major_formatter(lambda seconds, _: spoken(seconds))


def _failures(failures: Sequence[Failure]) -> Figure:
    height = 1.5 + 0.62 * len(failures)
    figure, (at,) = _figure(height, 1, f"What fails most (at most {FAILURES_MAX} kinds)")
    rows = range(len(failures))
    longest = max(one.failed_attempts for one in failures) or 1
    for poison, colour, hatch in ((False, _BLUE, ""), (True, _RED, "////")):
        chosen = [(row, one) for row, one in zip(rows, failures, strict=True)
                  if one.poison is poison]  # fmt: skip
        if chosen:
            at.barh([row for row, _ in chosen], [one.failed_attempts for _, one in chosen],
                    0.62, color=colour, hatch=hatch, edgecolor="white", linewidth=0.3,
                    label="poison: a call that died in two places" if poison else "other",
            )  # fmt: skip
    for row, one in zip(rows, failures, strict=True):
        text = f" {one.failed_attempts:,}  ({one.dead_jobs:,} dead, {_devices(one.devices)})"
        at.text(one.failed_attempts, row, text, va="center", fontsize=9)
    at.set_yticks(rows, [_label(one) for one in failures], fontsize=9)
    at.tick_params(axis="y", length=0)
    at.invert_yaxis()
    at.set_xlim(0, longest * 1.38)
    at.set_xlabel("failed attempts")
    at.grid(visible=False, axis="y")
    at.grid(visible=True, axis="x")
    if any(one.poison for one in failures):
        at.legend(loc="lower right", frameon=False)
    return figure


def _label(failure: Failure) -> str:
    task, pattern = failure.task, failure.pattern
    if len(task) > _LABEL_CHARACTERS:
        task = f"…{task[1 - _LABEL_CHARACTERS :]}"
    if len(pattern) > _LABEL_CHARACTERS:
        pattern = f"{pattern[: _LABEL_CHARACTERS - 1].rstrip()}…"
    return f"{task}\n{pattern}"


def _devices(count: int) -> str:
    return f"{count:,} device{'' if count == 1 else 's'}"


def _time(hour: float) -> float:
    """Days since 1970: what matplotlib reckons dates in."""
    return hour / 24


def _marker_size(span: Span) -> float:
    """Marks of single hours vanish where there are many."""
    few, many = 48, 200
    count = span.last - span.first + 1
    return 4.0 if count <= few else 2.0 if count <= many else 0.0


def _time_axis(at: Axes, span: Span) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415 - as above

    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    at.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    at.xaxis.set_major_formatter(formatter)
    at.set_xlim(_time(span.first - 0.5), _time(span.last + 1.5))
    note = "hour (UTC, by the devices' clocks)"
    if span.left_out:
        note += f"; {span.left_out:,} jobs and attempts of wrong clocks or other times left out"
    at.set_xlabel(note)


def _legend(at: Axes) -> None:
    at.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, borderpad=0)


def spoken(seconds: float) -> str:
    """A length of time in its largest unit: ``0``, ``10 ms``, ``3 s``, ``2 min``, ``28 h``."""
    if seconds <= 0:
        return "0"
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * 0.999:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
