"""Rows, bars and progress on a terminal, and as JSON."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from taskq.cli import render
from taskq.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from taskq_plugins.spark.lake.query import Bar

_LABEL_WIDTH_MAX: Final = 48
_BAR_WIDTH: Final = 50
_FULL: Final = "█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def text(value: object) -> str:
    """Return one value in a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "backslashreplace"))
    return json.dumps(value, default=as_json) if isinstance(value, (list, dict)) else str(value)


def as_json(value: object) -> object:
    """Return what JSON has no word for: times in ISO 8601, bytes as text or in base64."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value)


def print_rows(rows: pa.Table) -> None:
    """Print rows under their columns; what may be long is cut to fit a terminal."""
    columns: list[str] = []
    for field in rows.schema:
        is_number = str(field.type) in {"int32", "int64", "double"}
        columns.append(f">{field.name}" if is_number else f"{field.name}~")
    cells = ([text(value) for value in row.values()] for row in rows.to_pylist())
    render.print_table(columns, cells)


def print_json_rows(rows: pa.Table) -> None:
    """Print rows as one JSON list."""
    render.echo(json.dumps(_plain(rows.to_pylist()), indent=2, default=as_json))


def _plain(value: Any) -> Any:
    """Return maps as objects: Arrow gives them as pairs."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        pairs = [item for item in value if isinstance(item, tuple)]
        return dict(pairs) if pairs else [_plain(item) for item in value]
    return value


def print_bars(title: str, bars: Sequence[Bar]) -> None:
    """Draw a bar a line: what went well in green, what did not behind it in red."""
    from rich.console import Console  # noqa: PLC0415 - as in render
    from rich.text import Text  # noqa: PLC0415

    console = Console(
        color_system="auto" if sys.stdout.isatty() else None, soft_wrap=True, highlight=False
    )
    largest = max((bar.good + bar.bad for bar in bars), default=0.0)
    labels = [printable(bar.label)[:_LABEL_WIDTH_MAX] for bar in bars]
    width = max(map(len, labels), default=0)
    console.print(Text(f"{title} (■ bad in red, the scale ends at {largest:,.0f})", style="bold"))
    for label, bar in zip(labels, bars, strict=True):
        line = Text(f"{label:<{width}}  ")
        scale = _BAR_WIDTH / largest if largest else 0.0
        good = round(bar.good * scale * 8)
        line.append(_bar(good), style="green")
        line.append(_bar(round((bar.good + bar.bad) * scale * 8) - good), style="red")
        line.append(f" {bar.good:,.0f}")
        if bar.bad:
            line.append(f" + {bar.bad:,.0f} bad", style="red")
        console.print(line)


def _bar(eighths: int) -> str:
    whole, rest = divmod(max(eighths, 0), 8)
    return _FULL * whole + (_EIGHTHS[rest] if rest else "")
