"""Show calls to people: bodies without secrets, arguments as a table and as code, and as a form."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.cli import render
from taskq.text import printable
from taskq.values import parse_json
from taskq_plugins.web.problems import Problem

if TYPE_CHECKING:
    from taskq import Call, Task
    from taskq.views import JobView

_LINE_CHARACTERS_MAX: Final = 160
#: Of a payload or result that is shown, and of one that is looked into.
_BODY_CHARACTERS_MAX: Final = 65_536
_READ_BYTES_MAX: Final = 4 << 20
#: Arguments of a call that are shown as a table, and characters of each.
_ROWS_MAX: Final = 30
_CELL_MAX: Final = 300


class FormField(NamedTuple):
    """One parameter; ``kind`` is that of the input, and it may be left empty unless required."""

    name: str
    kind: str
    says: str
    is_required: bool


def fields_of(task: Task[..., Any] | None) -> list[FormField]:
    """Return what a call of a task is made of, but for ``*args`` and ``**kwargs``."""
    if task is None:
        return []
    hints = task.signature.hints()
    return [
        FormField(
            name,
            _kind(hints.get(name)),
            str(parameter).partition(":")[2].strip(),
            parameter.default is parameter.empty,
        )
        for name, parameter in task.signature.signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def call_of(task: Task[..., Any] | None, form: Mapping[str, str]) -> Call[Any]:
    """Return the call that a form asks for; its arguments are checked as any.

    Raises:
        Problem: there is no such task.
        InvalidCall: an argument is wrong.
    """
    if task is None:
        raise Problem(HTTPStatus.NOT_FOUND, "this program has no such task: load the page again")
    arguments: dict[str, Any] = {}
    for field in fields_of(task):
        text = form.get(field.name, "")
        if text or (field.is_required and field.kind == "text"):
            arguments[field.name] = text if field.kind == "text" else _value(text)
    return task.call(**arguments)


def _kind(hint: object) -> str:
    if hint is str:
        return "text"
    return "number" if hint in (int, float) else "json"


def _value(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError:
        return text  # a date, say


def line(text: str) -> str:
    first = printable(text.partition("\n")[0])
    return first if len(first) <= _LINE_CHARACTERS_MAX else f"{first[:_LINE_CHARACTERS_MAX]}…"


def as_it_is(value: Any, _name: str = "") -> Any:
    return value


def shown_body(body: bytes, cleaned: Callable[[Any], Any]) -> str:
    if len(body) > _READ_BYTES_MAX:
        return f"({len(body)} bytes)"
    try:
        text = json.dumps(cleaned(parse_json(body)), indent=2, ensure_ascii=False)
    except ValueError:
        text = cleaned(render.body_text(body))
    if len(text) <= _BODY_CHARACTERS_MAX:
        return printable(text)
    return f"{printable(text[:_BODY_CHARACTERS_MAX])}… ({len(body)} bytes)"


def table_of(job: JobView, cleaned: Callable[[Any], Any]) -> list[tuple[str, str]]:
    """Return the arguments of a call as rows; none where they are no plain values, or long."""
    values = cleaned(job.arguments or {})
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in values.items()]
    is_flat = not any(isinstance(value, dict | list) for value in values.values())
    are_short = all(len(text) <= _CELL_MAX for _, text in rows)
    return rows if is_flat and are_short and len(rows) <= _ROWS_MAX else []


def code_of(job: JobView, cleaned: Callable[[Any], Any], *, takes: bool = False) -> str:
    """Return what enqueues the same call, as Python; "" for bytes, and for a call that is long.

    A job that ``takes`` the results of others is a step of a flow: its first argument is not here.
    """
    if job.arguments is None or len(job.payload) > _LINE_CHARACTERS_MAX * 10:
        return ""
    values = cleaned(job.arguments)
    given = list(map(repr, values.pop("*", ())))
    values |= values.pop("**", {})
    given += [f"{name}={value!r}" for name, value in values.items()]
    name = re.sub(r"\W", "_", job.task.rpartition(".")[2])
    if keyword.iskeyword(name) or not name.isidentifier():
        name = f"{name}_"
    arguments = ", ".join(given)
    return f"{name}.step({arguments})" if takes else f"await {name}.enqueue({arguments})"
