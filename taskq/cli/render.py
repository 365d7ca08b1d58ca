"""Views as text for people and as JSON for programs."""

from __future__ import annotations

import base64
import io
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from taskq.core.durations import spoken
from taskq.core.model import SECOND_NS, TIME_NS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskq.core.model import AttemptView, JobView
    from taskq.log.progressfile import Told

#: Columns between two columns of a table.
_GAP: Final = 2
#: A column is not cut below this, however narrow the terminal.
_SHRUNK_WIDTH: Final = 12
_STATE_STYLES: Final = {
    "scheduled": "yellow",
    "ready": "cyan",
    "running": "blue",
    "succeeded": "green",
    "dead": "red",
    "expired": "magenta",
    "cancelled": "dim",
}


def duration(nanoseconds: int) -> str:
    """A length of time in its largest unit that fits: ``3m``, ``2d``, ``0s``."""
    return spoken(nanoseconds)


def when(moment_ns: int, now_ns: int) -> str:
    """A moment as people say it: ``3m ago``, ``in 2h``; empty for never."""
    if not moment_ns:
        return ""
    text = duration(moment_ns - now_ns)
    return f"in {text}" if moment_ns > now_ns else f"{text} ago"


def due(due_ns: int, now_ns: int) -> str:
    """What a job waits for: ``due in 2h``, or other jobs where no moment was given."""
    return f"due {when(due_ns, now_ns)}" if due_ns < TIME_NS_MAX else "waits for inputs"


def moment(moment_ns: int) -> str | None:
    """A moment in ISO 8601, UTC, to the microsecond; None for never."""
    if not 0 < moment_ns < TIME_NS_MAX:
        return None
    seconds, rest = divmod(moment_ns, SECOND_NS)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000).isoformat()


def owner(number: int) -> str:
    """An owner as its files are named. Text, since it may exceed what JSON readers keep exact."""
    return f"{number:016x}"


def printable(text: str) -> str:
    """The text with its control characters escaped: a payload must not drive the terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def body_text(body: bytes) -> str:
    """A payload for people: JSON with indents, else text, else the bytes as Python writes them."""
    try:
        return printable(json.dumps(json.loads(body), indent=2, ensure_ascii=False))
    except ValueError:
        pass
    try:
        return printable(body.decode())
    except UnicodeDecodeError:
        return repr(body)


def body_json(body: bytes | None) -> dict[str, Any] | None:
    """A payload for programs: ``encoding`` says whether ``data`` is JSON, text or base64."""
    if body is None:
        return None
    try:
        return {"encoding": "json", "data": json.loads(body)}
    except ValueError:
        pass
    try:
        return {"encoding": "text", "data": body.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(body).decode()}


def job_json(job: JobView) -> dict[str, Any]:
    """One job's facts without its bodies and attempts: an entry of ``ls --json``."""
    return {
        "id": job.job_id,
        "state": job.state.name.lower(),
        "queue": job.queue,
        "task": job.task or None,
        "priority": job.priority,
        "attempt": job.attempt,
        "attempts_max": job.attempts_max or None,
        "enqueued_at": moment(job.enqueued_ns),
        "due_at": moment(job.due_ns),
        "expires_at": moment(job.expires_ns),
        "settled_at": moment(job.settled_ns),
        "key": None if job.key is None else job.key.decode(errors="backslashreplace"),
        "headers": job.headers,
        "reason": job.reason or None,
    }


def progress(told: Told | None, now_ns: int) -> str:
    """How far a job is, for people; "" where it did not tell."""
    if told is None:
        return ""
    words = [f"{told.fraction:.0%}", told.message, f"({when(told.at_ns, now_ns)})"]
    return " ".join(word for word in words if word)


def progress_json(told: Told | None) -> dict[str, Any] | None:
    """The same for programs."""
    if told is None:
        return None
    return {"fraction": told.fraction, "message": told.message, "at": moment(told.at_ns)}


def attempt_json(attempt: AttemptView) -> dict[str, Any]:
    """One delivery of a job, for programs."""
    return {
        "number": attempt.number,
        "owner": owner(attempt.owner),
        "started_at": moment(attempt.started_ns),
        "ended_at": moment(attempt.ended_ns),
        "outcome": attempt.outcome or None,
        "reason": attempt.reason or None,
        "error": attempt.error or None,
        "message": attempt.message or None,
        "fingerprint": attempt.fingerprint or None,
    }


def process_json(attempt: AttemptView) -> dict[str, str | int | None]:
    """The process that made an attempt, for programs."""
    return {
        "pid": attempt.pid or None,
        "worker": attempt.worker or None,
        "host": attempt.host or None,
    }


def process(owner_number: int, pid: int, name: str) -> str:
    """A process for people: pid and name if they are known, else its number."""
    if pid:
        return f"{pid} {name}".strip()
    return owner(owner_number) if owner_number else ""


def print_json(document: object) -> None:
    """Print one document; not ASCII is escaped, so that any terminal and pipe takes it."""
    click.echo(json.dumps(document, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their headings: coloured on a terminal, plain and never cut in a pipe.

    A heading that starts with ``>`` is of numbers, flush right. One that ends in ``~`` may be cut
    to fit a narrow terminal; ids and numbers never are.
    """
    # Imported here because rich takes longer to import than most commands take to run.
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    titles = [column.strip(">~") for column in columns]
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    piped = not sys.stdout.isatty()
    if not piped:
        _fit(widths, [column.endswith("~") for column in columns], Console().width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for column, title, width in zip(columns, titles, widths, strict=True):
        side: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(title, justify=side, width=width, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in row))
    if not piped:
        Console(width=_total(widths)).print(table)
        return
    text = io.StringIO()
    Console(file=text, width=_total(widths), color_system=None).print(table)
    for line in text.getvalue().splitlines():
        click.echo(line.rstrip())


def _fit(widths: list[int], may_shrink: Sequence[bool], limit: int) -> None:
    """Narrow the widest of the columns that may shrink, until the table fits or they are small."""
    for _ in widths:
        excess = _total(widths) - limit
        wide = max(
            (i for i, may in enumerate(may_shrink) if may), key=widths.__getitem__, default=0
        )
        if excess <= 0 or not may_shrink[wide]:
            return
        widths[wide] = max(min(widths[wide], _SHRUNK_WIDTH), widths[wide] - excess)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print ``name  value`` lines, leaving out those without a value."""
    known = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"{name:<{width}}  {printable(value)}")


def precise(nanoseconds: int) -> str:
    """How long something took, with the digits that matter: ``12ms``, ``3.4s``, ``5m``."""
    milliseconds = max(nanoseconds, 0) / 1e6
    if milliseconds < 10:  # noqa: PLR2004
        return f"{milliseconds:.1f}ms"
    if milliseconds < 1_000:  # noqa: PLR2004
        return f"{milliseconds:.0f}ms"
    if milliseconds < 60_000:  # noqa: PLR2004
        return f"{milliseconds / 1e3:.1f}s"
    return duration(nanoseconds)


def size(count: int) -> str:
    """A count of bytes in binary units: ``512 B``, ``3.4 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:  # noqa: PLR2004
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"
