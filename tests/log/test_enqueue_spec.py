"""``EnqueueSpec``: options of a task are checked once; an error names the right form."""

from __future__ import annotations

import pytest

from taskq.core.errors import UsageError
from taskq.log.requests import EnqueueSpec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": ""}, "queue name '' has 0 bytes, it must have 1 to 255"),
        ({"queue": "é" * 128}, "has 256 bytes, it must have 1 to 255"),
        ({"task": "t" * 256}, "task name .* has 256 bytes, it must have 1 to 255"),
        ({"queue": "a\nb"}, r"queue name 'a\\nb' holds characters that do not print"),
        ({"task": "a\x00b"}, r"task name 'a\\x00b' holds characters that do not print"),
        ({"queue": "caf\udce9"}, r"holds characters that do not print"),
        ({"priority": 10}, r"priority is 10, it must be 0 \(last\) to 9 \(first\)"),
        ({"priority": -1}, r"priority is -1, it must be 0"),
        ({"attempts": -1}, r"attempts is -1, it must be 0 \(no limit\) to 65535"),
        ({"attempts": 65_536}, "attempts is 65536"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_range(
    options: dict[str, str | int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        EnqueueSpec(**options)  # type: ignore[arg-type] # a table of several types


def test_queues_and_tasks_that_read_alike_together_are_lanes_apart() -> None:
    assert EnqueueSpec("ab", "c").lane_key != EnqueueSpec("a", "bc").lane_key
    assert EnqueueSpec("ab", "").lane_key != EnqueueSpec("a", "b").lane_key
