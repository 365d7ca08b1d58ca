"""Print views as text for people and as JSON for programs."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from taskq import values, views
from taskq.text import flat, printable

T = TypeVar("T")
#: Spaces between two columns of a table.
_GAP: Final = 2
#: Optional columns are dropped before others are cut below this width.
_READABLE_WIDTH: Final = 16
#: No column is cut below this width, however narrow the terminal.
_SHRUNK_WIDTH: Final = 6
#: Least characters of a cut heading over numbers.
_HEADING_WIDTH: Final = 4
_STATE_STYLES: Final[dict[str, dict[str, Any]]] = {
    "scheduled": {"fg": "yellow"},
    "ready": {"fg": "cyan"},
    "running": {"fg": "blue"},
    "succeeded": {"fg": "green"},
    "dead": {"fg": "red"},
    "expired": {"fg": "magenta"},
    "cancelled": {"dim": True},
}


def duration(nanoseconds: int) -> str:
    """Return a duration in its largest suitable unit: ``3m``, ``2d``, ``0s``."""
    return values.spoken(nanoseconds)


def when(moment_ns: int, now_ns: int) -> str:
    """Return a moment relative to now: ``3m ago``, ``in 2h``; empty for never."""
    if not moment_ns:
        return ""
    text = duration(moment_ns - now_ns)
    return f"in {text}" if moment_ns > now_ns else f"{text} ago"


#: The key of ``--utc`` among the values of a command's context.
UTC_WANTED: Final = "taskq.utc"


def moment(moment_ns: int, timespec: str = "milliseconds") -> str:
    """Return a moment in this machine's zone, in UTC with ``--utc``; empty for never."""
    text = views.moment(moment_ns)
    if text is None:
        return ""
    return local(datetime.fromisoformat(text)).replace(tzinfo=None).isoformat(" ", timespec)


def local(at: datetime) -> datetime:
    """Return the same moment in the zone of the output."""
    context = click.get_current_context(silent=True)
    is_utc = context is not None and context.meta.get(UTC_WANTED, False)
    return at.astimezone(UTC if is_utc else None)


def zone(moment_ns: int = 0) -> str:
    """Return the zone of shown moments, at that time or now: ``CET, UTC+01:00``."""
    text = views.moment(moment_ns)
    at = local(datetime.now(UTC) if text is None else datetime.fromisoformat(text))
    name, offset = at.strftime("%Z"), at.isoformat()[-6:]
    return name if name == "UTC" else f"{name}, UTC{offset}"


def due(due_ns: int, now_ns: int) -> str:
    """Return the time or the jobs that a job waits for: ``due in 2h``."""
    return (
        f"due {when(due_ns, now_ns)}"
        if due_ns < values.TIME_NS_MAX
        else "waits for jobs or a signal"
    )


def person() -> str:
    """Return the name of this machine's user, for the record of their changes."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        return f"user {os.getuid()}"


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for people, without terminal controls: parts of it come from strangers.

    Make parts with newlines ``flat`` first, or they could forge lines.
    """
    click.echo(printable(text), err=err, nl=nl)


def body_text(body: bytes) -> str:
    """Return a payload for people: indented JSON, else text, else Python's bytes literal."""
    return _as_json(body) or _as_text(body)


def body_block(body: bytes) -> str:
    """Return a payload for below a heading: text is indented, and JSON is on one line.

    No line can be mistaken for a heading or a fact.
    """
    return _as_json(body) or indented(_as_text(body))


def _as_json(body: bytes) -> str:
    try:
        return printable(json.dumps(values.parse_json(body), indent=2, ensure_ascii=False))
    except ValueError:
        return ""


def _as_text(body: bytes) -> str:
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return repr(body)


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def progress(view: views.ProgressView | None, now_ns: int) -> str:
    """Return a job's progress for people; "" without a report."""
    if view is None:
        return ""
    words = [f"{view.fraction:.0%}", view.message, f"({when(view.at_ns, now_ns)})"]
    return " ".join(word for word in words if word)


def process(owner_number: int, pid: int, name: str) -> str:
    if pid:
        return f"{pid} {name}".strip()
    return views.owner(owner_number) if owner_number else ""


def count_of(count: int, noun: str = "job") -> str:
    """Return ``1 job``, ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def attempts(job: views.JobView) -> str:
    return f"{job.attempt}/{job.attempts_max}" if job.attempts_max else str(job.attempt)


def served(process: views.OwnerView) -> str:
    if any(serving.queues is None for serving in process.serves):
        return "all queues"
    return ", ".join(sorted({name for serving in process.serves for name in serving.queues or ()}))


def print_json(document: object) -> None:
    """Print one document; only ASCII is printed unescaped, which any terminal and pipe accepts."""
    click.echo(json.dumps(document, indent=2))


def print_outcome(document: object, line: str, *, as_json: bool) -> None:
    """Print the result of a change: one document, or a line for people."""
    if as_json:
        print_json(document)
    else:
        echo(line)


def print_list(
    items: Sequence[T],
    document: Callable[[T], object],
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    nothing: str,
    as_json: bool,
) -> None:
    """Print items as one document, or as a table for people; ``nothing`` if there are no items."""
    if as_json:
        print_json(list(map(document, items)))
    elif not items:
        echo(nothing)
    else:
        print_table(columns, map(row, items))


def on_terminal() -> bool:
    """Return whether a person reads the output, on a terminal with a line width."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their headings: coloured on a terminal, plain and never cut in a pipe.

    A row is one line. A heading with a leading ``>`` is for numbers, aligned right. To fit a narrow
    terminal, columns with ``~`` in the heading may be cut (only the heading, for numbers). Columns
    with ``?`` may be dropped: most ``?`` first, then from the right.
    """
    titles = [column.strip(">~?") for column in columns]
    cells = [[printable(cell.replace("\n", " ")) for cell in row] for row in rows]
    inside = [cell_width(*column) for column in zip(*cells, strict=True)] or [0] * len(titles)
    widths = [max(cell_width(title), width) for title, width in zip(titles, inside, strict=True)]
    shown = list(range(len(columns)))
    if on_terminal():
        shown = _fit(columns, widths, inside, terminal_width())
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    for row in (titles, *cells):
        line = ""
        for i in shown:
            text = _cell(row[i], widths[i], is_number=columns[i].startswith(">"))
            style = {"bold": True} if row is titles else _STATE_STYLES.get(row[i])
            # click leaves styles out of pipes.
            line += text if is_plain or not style else click.style(text, **style)
            line += " " * _GAP
        click.echo(line.rstrip())


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def _cell(text: str, width: int, *, is_number: bool) -> str:
    if cell_width(text) > width:
        text = cut(text, width)
    spaces = " " * (width - cell_width(text))
    return spaces + text if is_number else text + spaces


def cut(text: str, width: int) -> str:
    """Return a longer text cut to this number of columns, with an ellipsis."""
    if text.isascii():
        return f"{text[: width - 1]}…"
    from rich.cells import set_cell_size  # noqa: PLC0415 - takes longer to import than most runs

    return f"{set_cell_size(text, width - 1)}…"


def _fit(columns: Sequence[str], widths: list[int], inside: Sequence[int], limit: int) -> list[int]:
    shown = list(range(len(columns)))
    cut = [i for i in shown if "~" in columns[i]]
    headings = {i: max(inside[i], _HEADING_WIDTH) for i in cut if columns[i].startswith(">")}
    texts = [i for i in cut if i not in headings]
    readable = dict.fromkeys(texts, _READABLE_WIDTH)
    spare = sorted((column.count("?"), i) for i, column in enumerate(columns) if "?" in column)
    least = [min(width, (readable | headings).get(i, width)) for i, width in enumerate(widths)]
    while spare and _total(least[i] for i in shown) > limit:
        shown.remove(spare.pop()[1])
    for floors in (readable, headings, dict.fromkeys(texts, _SHRUNK_WIDTH)):
        _shrink(floors, shown, widths, limit)
    return shown


def _shrink(floors: Mapping[int, int], shown: Sequence[int], widths: list[int], limit: int) -> None:
    """Narrow columns, always the widest, at most to their floors."""
    for i in floors:
        widths[i] = min(widths[i], max(floors[i], limit))
    while _total(widths[i] for i in shown) > limit:
        wider = [i for i in shown if i in floors and widths[i] > floors[i]]
        if not wider:
            return
        widths[max(wider, key=widths.__getitem__)] -= 1


def _total(widths: Iterable[int]) -> int:
    every = list(widths)
    return sum(every) + _GAP * (len(every) - 1)


def cell_width(*texts: str) -> int:
    if all(map(str.isascii, texts)):
        return max(map(len, texts), default=0)
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    return max(map(cell_len, texts), default=0)


def cut_line(text: str) -> str:
    if not on_terminal():
        return text
    width = terminal_width()
    return text if cell_width(text) <= width else f"{cut(text, width)[:-1].rstrip()}…"


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print ``name  value`` lines, except for empty values."""
    known = [(flat(name), flat(value)) for name, value in facts if value]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        echo(f"{name:<{width}}  {value}")


def precise(nanoseconds: int) -> str:
    """Return a duration with its significant digits: ``12ms``, ``3.4s``, ``5m``."""
    milliseconds = max(nanoseconds, 0) / 1e6
    if milliseconds < 10:  # noqa: PLR2004
        return f"{milliseconds:.1f}ms"
    if milliseconds < 1_000:  # noqa: PLR2004
        return f"{milliseconds:.0f}ms"
    if milliseconds < 60_000:  # noqa: PLR2004
        return f"{milliseconds / 1e3:.1f}s"
    return duration(nanoseconds)


def size(count: int) -> str:
    """Return a count of bytes in binary units: ``512 B``, ``3.4 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:  # noqa: PLR2004
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"
