"""What is shown of a wrong call: the caller's line, and of its cause what is the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq.connection.tracebacks import end_at_caller
from taskq.core.rates import rate_of
from taskq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def _of_program() -> None:
    raise ValueError("in the program's own code")


def _refuse(cause: Callable[[], object]) -> None:
    try:
        cause()
    except (ValueError, UsageError) as error:
        raise UsageError("wrong") from error


@pytest.mark.parametrize(
    ("cause", "is_kept"), [(_of_program, True), (lambda: rate_of("no rate"), False)]
)
def test_a_cause_is_kept_where_the_program_raised_it(
    cause: Callable[[], object], is_kept: bool
) -> None:
    with pytest.raises(UsageError) as caught:
        _refuse(cause)
    end_at_caller(caught.value)
    assert (caught.value.__cause__ is not None) == is_kept
    assert caught.value.__suppress_context__
