from __future__ import annotations

import runpy
import traceback
from pathlib import Path
from unittest.mock import Mock

import pytest

from taskq.calls.serialization import encode_reason
from taskq.core.model import REASON_BYTES_MAX
from taskq.core.retry import Discard
from taskq_workers.runs.reasons import describe, raised_by_call, summary


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    else:
        raise KeyError("bottom")


def caught(function: object, *args: object) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011
        function(*args)  # type: ignore[operator]
    return info.value


def test_the_first_line_is_type_and_message() -> None:
    error = caught(deep, 0)
    assert describe(error).splitlines()[0] == "KeyError: 'bottom'"
    assert summary(ValueError("first\nsecond")) == "ValueError: first"
    assert summary(ValueError()) == "ValueError"
    assert summary(Discard("not wanted")) == "Discard: not wanted"
    assert summary(Odd()) == f"{__name__}.Odd: (its message cannot be printed)"


def test_the_innermost_frames_follow_and_no_more_than_a_screenful() -> None:
    lines = describe(caught(deep, 100)).splitlines()
    assert len(lines) < 40
    assert 'raise KeyError("bottom")' in lines[-1]


def test_a_place_is_looked_up_once_and_each_is_told_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = Mock(wraps=traceback.extract_tb)
    monkeypatch.setattr(traceback, "extract_tb", look_up)
    for name in ("first.py", "second.py"):
        path = tmp_path / name
        path.write_text("def fail(early):\n    if early: raise KeyError\n    raise ValueError\n")
        fail = runpy.run_path(str(path))["fail"]
        late, early, again = (describe(caught(fail, number)) for number in (0, 1, 0))
        assert again == late
        assert f'"{path}", line 3, in fail' in late
        assert f'"{path}", line 2, in fail' in early
    assert look_up.call_count == 4


def test_what_an_error_was_raised_from_is_told_too() -> None:
    def wrapped() -> None:
        try:
            deep(0)
        except KeyError as error:
            raise ValueError("outer") from error

    reason = describe(caught(wrapped))
    assert reason.startswith("ValueError: outer\n")
    assert "KeyError: 'bottom'" in reason
    assert "direct cause" in reason


def test_all_lines_of_a_message_are_kept_behind_the_first() -> None:
    def many() -> None:
        raise ValueError("first\nsecond")

    assert describe(caught(many)).splitlines()[0] == "ValueError: first"
    assert "second" in describe(caught(many))


def test_a_group_tells_of_its_members() -> None:
    def group() -> None:
        raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    reason = describe(caught(group))
    assert "ValueError: a" in reason
    assert "KeyError: 'b'" in reason


def test_an_error_that_cannot_be_printed_is_described_all_the_same() -> None:
    def odd() -> None:
        raise Odd

    assert describe(caught(odd)).startswith(f"{__name__}.Odd: (its message")


def test_a_long_reason_keeps_its_first_line_and_its_end() -> None:
    def long() -> None:
        raise ValueError("x" * 100_000 + "\n" + "y" * 100_000)

    encoded = encode_reason(describe(caught(long)))
    assert len(encoded) <= REASON_BYTES_MAX
    assert encoded.startswith(b"ValueError: xxx")


def test_a_refused_call_is_told_from_a_failure_within() -> None:
    assert not raised_by_call(caught(deep, 1))
    assert raised_by_call(TypeError("never raised"))
