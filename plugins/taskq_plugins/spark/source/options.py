"""The options of ``spark.read.format("taskq")``: checked once and converted to types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from taskq.errors import UsageError
from taskq.values import parse_json
from taskq_plugins.spark.source.positions import OptionError

_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmgt]?)i?b?", re.IGNORECASE)
PARTITION_BYTES_MIN: Final = 64 * 2**10
PARTITION_BYTES_MAX: Final = 16 * 2**30
_SIZE_MAX: Final = 2**60

_ALLOWED: Final = {
    "path": "the directory of a task log, or of the logs of many devices",
    "devices": "names of devices or log ids, as edge-1,edge-2 or as a JSON list",
    "maxBytesPerTrigger": "a size of at least 1 byte, such as 512m",
    "targetPartitionBytes": "a size from 64k to 16g, such as 32m",
    "failOnDataLoss": "true, false or hold",
    "corruptMode": "fail or skip",
    "includeDetails": "true or false",
}


def reads(parse: Callable[[str], object]) -> BeforeValidator:
    def read(value: object) -> object:
        try:
            return parse(str(value).strip())
        except (TypeError, ArithmeticError, RecursionError) as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(read)


def size_of(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("no size")
    return int(match[1]) * _UNITS[match[2].lower()]


def _flag(text: str) -> bool:
    word = text.lower()
    if word not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return word == "true"


def _names(text: str) -> frozenset[object]:
    names = parse_json(text) if text.startswith("[") else text.split(",")
    chosen = frozenset(name.strip() if isinstance(name, str) else name for name in names)
    if not chosen or not all(isinstance(name, str) and name for name in chosen):
        raise ValueError("an empty name")
    return chosen


Flag = Annotated[bool, reads(_flag)]
Names = Annotated[frozenset[str] | None, reads(_names)]
Size = Annotated[int, reads(size_of), Field(ge=1, le=_SIZE_MAX)]


class ReadOptions(BaseModel):
    """Options of a reader; sizes in bytes, moments in nanoseconds since 1970."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, arbitrary_types_allowed=True
    )

    path: Annotated[str, Field(min_length=1)]
    devices: Names = None
    max_bytes_per_trigger: Size | None = None
    target_partition_bytes: Annotated[
        Size, Field(ge=PARTITION_BYTES_MIN, le=PARTITION_BYTES_MAX)
    ] = 32 * 2**20
    fail_on_data_loss: Annotated[str, reads(str.lower), Field(pattern="^(true|false|hold)$")] = (
        "true"
    )
    corrupt_mode: Annotated[str, reads(str.lower), Field(pattern="^(fail|skip)$")] = "fail"
    include_details: Flag = False
    #: Internal: hold a log that cannot be read, even if a loss is accepted.
    holds: bool = False


def read_options(given: Mapping[str, str]) -> ReadOptions:
    return parsed(ReadOptions, _ALLOWED, given)


M = TypeVar("M", bound=BaseModel)


def parsed(model: type[M], allowed: Mapping[str, str], given: Mapping[str, str]) -> M:
    """Check options, whose names may have any case; ``allowed`` has their values in words."""
    spelled = {name.lower(): name for name in allowed}
    values: dict[str, Any] = {}
    for name, value in given.items():
        option = spelled.get(name.lower())
        if option is None:
            near = get_close_matches(name.lower(), spelled, 1)
            hint = (
                f"did you mean {spelled[near[0]]}?" if near else f"there are {', '.join(allowed)}"
            )
            raise OptionError(name, f" is unknown: {hint}")
        values[option] = value
    if "path" not in values:
        raise OptionError("path", f" is missing: it is {allowed['path']}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, UsageError):
            raise cause from error
        option = str(problem["loc"][0])
        shown = str(values.get(option))[:200]
        raise OptionError(option, f": {shown!r} is not allowed: it is {allowed[option]}") from error
