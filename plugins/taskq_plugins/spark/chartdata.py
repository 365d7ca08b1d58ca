"""What the pictures show, read from a lake by duckdb: no Java, and no percentile of percentiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import duckdb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskq_plugins.spark.lake import Lake

PERCENTS: Final = (50, 95, 99)
#: Hours without anything that make two stretches of time of one: more than a long weekend.
GAP_HOURS_MAX: Final = 96
#: Kinds of failure in one picture.
FAILURES_MAX: Final = 10
HOUR_SECONDS: Final = 3_600
_HOUR_NS: Final = HOUR_SECONDS * 1_000_000_000
_SECOND_NS: Final = 1e9
#: Devices whose clocks are known to be ahead. Their hours are not those of the others; were they
#: half of the fleet, it would rather be the hub whose clock is wrong.
_AHEAD: Final = """
    CREATE VIEW ahead AS
    SELECT DISTINCT device FROM device_lag WHERE clock = 'ahead' AND 0.5 > (
        SELECT count(*) FILTER (clock = 'ahead') / count(*) FROM device_lag
    );
    CREATE VIEW rollup AS SELECT * FROM rollup_hour WHERE device NOT IN (FROM ahead);
    CREATE VIEW attempt AS SELECT * FROM attempts WHERE device NOT IN (FROM ahead);
"""


class Span(NamedTuple):
    """The hours that are drawn, both inclusive, as numbers of hours since 1970.

    ``left_out`` counts the attempts and jobs that are not drawn: those of devices whose clocks are
    ahead, and those of other hours.
    """

    first: int
    last: int
    left_out: int


class Hour(NamedTuple):
    """One hour of the fleet: jobs settled by outcome, and attempts."""

    hour: int
    succeeded: int
    dead: int
    withdrawn: int
    attempts_failed: int
    attempts_counted: int


class Spread(NamedTuple):
    """Percentiles (as ``PERCENTS``) of one hour's attempts, in seconds; empty: none is known."""

    hour: int
    wait: tuple[float, ...]
    run: tuple[float, ...]


class Failure(NamedTuple):
    """One kind of failure."""

    task: str
    pattern: str
    failed_attempts: int
    dead_jobs: int
    devices: int
    poison: bool


class ChartData:
    """A lake, asked for what the pictures show.

    Raises:
        LakeError: a table is missing.
    """

    def __init__(self, lake: Lake) -> None:
        self._duck = duckdb.connect(":memory:")
        self._duck.execute("SET TimeZone = 'UTC'; SET enable_external_access = false")
        for table in ("rollup_hour", "attempts", "failures", "device_lag"):
            self._duck.register(table, lake.dataset(table))
        self._duck.execute(_AHEAD)

    def close(self) -> None:
        """Let the memory go."""
        self._duck.close()

    def span(self, hours_max: int) -> Span | None:
        """The stretch of time in which most happened, its last hours; None: nothing happened."""
        counted = "coalesce(sum(settled + attempts_ended), 0)::BIGINT"
        found = self._duck.execute(
            f"SELECT epoch(hour)::BIGINT // ? AS hour, {counted} AS counted "  # noqa: S608 - ours
            "FROM rollup GROUP BY 1 HAVING counted > 0 ORDER BY 1",
            [HOUR_SECONDS],
        ).fetchall()
        span = densest(found, hours_max)
        if span is None:
            return None
        (ahead,) = self._duck.execute(
            f"SELECT {counted} FROM rollup_hour WHERE device IN (FROM ahead)"  # noqa: S608 - ours
        ).fetchall()[0]
        return span._replace(left_out=span.left_out + ahead)

    def hours(self, span: Span) -> list[Hour]:
        """Every hour of the span, also those in which nothing happened."""
        found = self._duck.execute(
            "SELECT epoch(hour)::BIGINT // ?, sum(succeeded)::BIGINT, sum(dead)::BIGINT, "
            "sum(cancelled + expired)::BIGINT, "
            "sum(attempts_retried + attempts_dead + attempts_lost)::BIGINT, "
            "sum(attempts_retried + attempts_dead + attempts_lost + attempts_succeeded)::BIGINT "
            "FROM rollup GROUP BY 1",
            [HOUR_SECONDS],
        ).fetchall()
        told = {row[0]: Hour(*row) for row in found}
        return [told.get(hour, Hour(hour, 0, 0, 0, 0, 0)) for hour in _every(span)]

    def spreads(self, span: Span) -> list[Spread]:
        """Percentiles of the raw attempts of every hour of the span."""
        quantiles = ", ".join(str(percent / 100) for percent in PERCENTS)
        # Numbers of our own, and no text of anybody else.
        wait, run = (
            f"quantile_cont({name}_ns, [{quantiles}]) FILTER ({name}_ns >= 0)"
            for name in ("wait", "run")
        )
        found = self._duck.execute(
            f"SELECT ended_ns // ?, {wait}, {run} FROM attempt "  # noqa: S608
            "WHERE ended_ns >= ? AND ended_ns < ? GROUP BY 1",
            [_HOUR_NS, span.first * _HOUR_NS, (span.last + 1) * _HOUR_NS],
        ).fetchall()
        told = {row[0]: Spread(row[0], _seconds(row[1]), _seconds(row[2])) for row in found}
        return [told.get(hour, Spread(hour, (), ())) for hour in _every(span)]

    def failures(self) -> list[Failure]:
        """The kinds with the most failed attempts, the worst first."""
        found = self._duck.execute(
            "SELECT coalesce(task, '(bytes)'), pattern, failed_attempts, dead_jobs, devices, "
            "poison FROM failures ORDER BY failed_attempts DESC, dead_jobs DESC, fingerprint "
            "LIMIT ?",
            [FAILURES_MAX],
        ).fetchall()
        return [Failure(*row) for row in found]


def densest(counts: Sequence[tuple[int, int]], hours_max: int) -> Span | None:
    """Of stretches of hours without a long gap, the one that counts most; its last hours.

    A device whose clock stands in 1970 would else draw fifty years of nothing.

    Args:
        counts: (hour, how much happened), rising.
        hours_max: the span's length at most.
    """
    stretches: list[list[tuple[int, int]]] = []
    for hour, count in counts:
        if not stretches or hour - stretches[-1][-1][0] > GAP_HOURS_MAX:
            stretches.append([])
        stretches[-1].append((hour, count))
    if not stretches:
        return None
    best = max(stretches, key=lambda stretch: sum(count for _, count in stretch))
    last = best[-1][0]
    first = max(best[0][0], last - hours_max + 1)
    shown = sum(count for hour, count in best if hour >= first)
    return Span(first, last, sum(count for _, count in counts) - shown)


def _every(span: Span) -> range:
    return range(span.first, span.last + 1)


def _seconds(values: Sequence[float] | None) -> tuple[float, ...]:
    return () if values is None else tuple(value / _SECOND_NS for value in values)
