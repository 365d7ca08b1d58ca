"""A form for each task, made from its annotations."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from taskq.values import parse_json
from taskq_plugins.web.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskq import Call, Task


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
