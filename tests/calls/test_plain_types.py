"""Arguments of plain types are checked by pydantic's core alone, as pydantic itself would."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NotRequired, Optional

import pytest
from pydantic import TypeAdapter
from pydantic_core import ValidationError

from taskq.calls.arguments import _typed_dict
from taskq.calls.serialization import compiled, compiled_fields, plain_schema

PLAIN: list[Any] = [str, int, float, bool, Any, None, type(None)]
OPTIONAL: list[Any] = [*(Optional.__getitem__(item) for item in PLAIN), str | None, int | None]
NOT_PLAIN: list[Any] = [bytes, list[int], dict[str, int], str | int, str | int | None, Path]
VALUES: list[Any] = [
    *("", "5", "true", "é", 0, 1, 5, -(2**70), 2.0, 0.5, float("inf"), True, False, None),
    *(b"x", [], [1], {}, {"a": b"x"}, (1,), object),
]


@pytest.mark.parametrize("hint", [*PLAIN, *OPTIONAL], ids=repr)
def test_the_schema_of_a_plain_type_is_the_one_that_pydantic_makes(hint: Any) -> None:
    assert plain_schema(hint) == TypeAdapter(hint).core_schema


@pytest.mark.parametrize("hint", [*NOT_PLAIN, [], {}], ids=repr)
def test_what_is_not_plain_is_left_to_pydantic(hint: Any) -> None:
    assert plain_schema(hint) is None
    assert compiled_fields({"a": str, "b": hint}) is None


@pytest.mark.parametrize("hint", [*PLAIN, *OPTIONAL], ids=repr)
def test_plain_arguments_are_read_written_and_refused_as_pydantic_does(hint: Any) -> None:
    fields = {"one": hint, "two": NotRequired[hint]}
    ours = compiled_fields(fields)
    assert ours is not None
    theirs = compiled(_typed_dict(fields))
    given: list[dict[str, Any]] = [{"one": a, "two": b} for a, b in itertools.pairwise(VALUES)]
    for values in [*given, {}, {"two": 1}, {"one": 1, "three": 2}, *({"one": a} for a in VALUES)]:
        assert outcome(*ours, values) == outcome(*theirs, values)


def outcome(validator: Any, serializer: Any, values: dict[str, Any]) -> object:
    """Return what comes of the values: their text and what is read back of it, or what is wrong."""
    try:
        checked = validator.validate_python(values)
        text = serializer.to_json(checked)
        return repr(checked), text, repr(validator.validate_json(text))
    except ValidationError as error:
        return error.title, error.errors(include_url=False)
    except ValueError as error:
        return str(error)


def test_a_program_of_plain_tasks_needs_no_more_of_pydantic_than_its_core() -> None:
    program = """
import json, sys
from taskq import TaskQ
app = TaskQ("data")

@app.task
async def send(to: str, count: int = 0, note: str | None = None) -> int: ...

send.call("x", count=2)
print(json.dumps([name for name in sys.modules if name.startswith("pydantic")]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert {name.partition(".")[0] for name in json.loads(done.stdout)} == {"pydantic_core"}
