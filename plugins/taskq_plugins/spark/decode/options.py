"""The options of many records, walked in step: the first of each, then the second, ..."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from taskq.core.errors import FormatError
from taskq_plugins.spark.decode.layout import numbers_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.core.records import Option
    from taskq_plugins.spark.decode.layout import Bytes, Ints, Mask

#: Tag and length; ``taskq.log.format.options`` has it as a struct.
_OPTION: Final = struct.Struct("<BH")
_I64: Final = struct.Struct("<q")


class Step(NamedTuple):
    """Of one option each of some rows: row, tag, place and length of the value."""

    row: Ints
    tag: Bytes
    at: Ints
    size: Ints


class Options:
    """Options of rows.

    Args:
        data: what holds them.
        row: numbers of the rows that may have options.
        at, end: where the options of each of these rows stand.
    """

    def __init__(self, data: Bytes, row: Ints, at: Ints, end: Ints) -> None:
        self._data = data
        self._steps: list[Step] = []
        some = at + _OPTION.size <= end
        row, at, end = row[some], at[some], end[some]
        while len(row):
            tag = data[at]
            size = numbers_at(data, at + 1, "<u2").astype(np.int64)
            at = at + _OPTION.size
            # A value that is cut short is read as far as it goes.
            self._steps.append(Step(row, tag, at, np.minimum(size, end - at)))
            at = at + size
            more = at + _OPTION.size <= end
            row, at, end = row[more], at[more], end[more]

    def __bool__(self) -> bool:
        """Whether any row has any."""
        return bool(self._steps)

    def each(self, *options: Option) -> Iterator[Step]:
        """The rows that have one of the options; those that have several come again, in order."""
        for step in self._steps:
            chosen = step.tag == options[0]
            for other in options[1:]:
                chosen |= step.tag == other
            if chosen.any():
                yield Step(step.row[chosen], step.tag[chosen], step.at[chosen], step.size[chosen])

    def numbers(self, option: Option, out: Ints, had: Mask | None = None) -> None:
        """Write the option's numbers to ``out``, the last of each row; ``had`` says which have one.

        Raises:
            FormatError: one has another size.
        """
        for step in self.each(option):
            self._check_sizes(step)
            out[step.row] = numbers_at(self._data, step.at, "<i8")
            if had is not None:
                had[step.row] = True

    def find_numbers(self, option: Option, out: Ints, *, strict: bool = False) -> None:
        """Write the option's numbers to ``out``, the first of each row that has the right size.

        Raises:
            FormatError: one has another size, and ``strict`` is asked for.
        """
        for step in reversed(list(self.each(option))):
            if strict:
                self._check_sizes(step)
            fits = step.size == _I64.size
            out[step.row[fits]] = numbers_at(self._data, step.at[fits], "<i8")

    def bytes_of(self, option: Option, start: Ints, end: Ints, had: Mask) -> None:
        """Write where the option's values stand, the last of each row."""
        for step in self.each(option):
            start[step.row] = step.at
            end[step.row] = step.at + step.size
            had[step.row] = True

    def check_sizes(self, *options: Option) -> None:
        """Let no number pass that has another size than it is known with.

        Raises:
            FormatError: there is one.
        """
        for option in options:
            for step in self.each(option):
                self._check_sizes(step)

    def _check_sizes(self, step: Step) -> None:
        wrong = step.size != _I64.size
        if wrong.any():
            index = int(np.argmax(wrong))
            raise FormatError(
                f"option {step.tag[index]} has {step.size[index]} bytes, this taskq knows it with "
                f"{_I64.size}: use a newer one"
            )
