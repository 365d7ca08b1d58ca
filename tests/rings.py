"""Run a ring of slow tests, outside the checks of a change, and keep its last time and result.

    python -m tests.rings                  # list due rings
    python -m tests.rings slow-engine      # run this ring, and write its row of tests/rings.md

A ring is due when its last run is older than the newest commit by seven days.
"""

import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "tests/rings.md"
DUE: Final = timedelta(days=7)
_SLOW: Final = "pytest -m slow -n 2 --dist loadgroup"
_HEAVY: Final = ("pipeline", "fleet", "hub", "processes", "log", "core", "native", "machine")
RINGS: Final = {
    "slow-engine": f"{_SLOW} tests/log tests/core tests/native tests/machine",
    "slow-processes": f"{_SLOW} tests/processes tests/hub",
    "slow-pipeline": f"{_SLOW} tests/pipeline tests/fleet",
    "slow-others": f"{_SLOW} tests {' '.join(f'--ignore tests/{name}' for name in _HEAVY)}",
    "extras": ".ci/extras",
    "fallbacks": ".ci/fallbacks each",
    "lowest": ".ci/lowest",
    "narrow": ".ci/narrow",
    "windows": ".ci/windows",
    "native": ".ci/native",
    "pythons": ".ci/pythons",
}
#: Last lines of pytest; what tests print may have such words, too.
_SUMMARY: Final = re.compile(r"^=* ?\d+ [a-z]+\b.* in \d[\d.]*s\b", re.MULTILINE)
_ROW: Final = re.compile(r"^\| (\S+) \| (\d\S+) \| (.*) \|$", re.MULTILINE)


def last_runs() -> dict[str, tuple[str, str]]:
    return {name: (day, rest) for name, day, rest in _ROW.findall(TABLE.read_text())}


def due() -> list[str]:
    try:
        newest = datetime.fromisoformat(_git("log", "-1", "--format=%cI"))
    except (OSError, ValueError, subprocess.CalledProcessError):  # a tree without its history
        newest = datetime.now(UTC)
    since = f"{newest.astimezone(UTC) - DUE:%Y-%m-%d}"
    days = {name: day for name, (day, _) in last_runs().items()}
    return [name for name in RINGS if days.get(name, "") < since]


def run(name: str) -> bool:
    commit, begin = _git("rev-parse", "--short", "HEAD"), time.monotonic()
    ended = subprocess.run(
        ("bash", "-c", RINGS[name]), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    sys.stdout.write(ended.stdout)
    summaries = "\n".join(_SUMMARY.findall(ended.stdout))
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", summaries)
    result = ", ".join(["red" if ended.returncode else "green", *counts])
    minutes = (time.monotonic() - begin) / 60
    rows = last_runs()
    rows[name] = (f"{datetime.now(UTC):%Y-%m-%d}", f"{commit} | {minutes:.0f} | {result}")
    lines = [f"| {ring} | {' | '.join(rows[ring])} |" for ring in RINGS if ring in rows]
    head = TABLE.read_text().partition("|\n|---")[0]
    TABLE.write_text("\n".join([f"{head}|", "|---|---|---|---|---|", *lines, ""]))
    return ended.returncode == 0


def _git(*words: str) -> str:
    return subprocess.run(
        ("git", *words), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(RINGS)), metavar="[RING]…")
def main(names: tuple[str, ...]) -> None:
    if not names and (late := due()):
        click.echo(f"not run for seven days of commits: {', '.join(late)} (python -m tests.rings)")
    if not all([*map(run, names)]):
        sys.exit(1)


if __name__ == "__main__":
    main()
