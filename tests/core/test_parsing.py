"""Texts of users are read as meant, within bounds, or refused with the right form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.calls.habits import meant, same
from taskq.core.errors import InvalidJobId, UsageError
from taskq.core.parsing import nearest, rather, size_bytes, split_id, whole

UNITS = {
    "": 1, "b": 1, "B": 1, "kB": 10**3, "MB": 10**6, "gb": 10**9, "TB": 10**12,
    "KiB": 2**10, "mib": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
LARGEST = 2**63 - 1


class Indexed:
    """A whole number of another library."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


@given(number=st.integers())
def test_a_whole_number_of_any_library_is_one(number: int) -> None:
    assert whole(number, "count") == number
    assert whole(Indexed(number), "count") == number


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, 10**30 + 0.5])
def test_what_is_no_whole_number_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(UsageError, match=r"slots is .* it must be a whole number"):
        whole(value, "slots")


@given(count=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)), space=st.booleans())
def test_a_size_is_its_number_times_its_unit(count: int, unit: str, space: bool) -> None:
    text = f" {count} {unit} " if space else f"{count}{unit}"
    assert size_bytes(text) == count * UNITS[unit]
    assert size_bytes(count) == size_bytes(Indexed(count)) == count  # type: ignore[arg-type]


def test_a_size_may_have_a_fraction_of_its_unit() -> None:
    assert size_bytes("1.5kB") == 1_500
    assert size_bytes("0.5 KiB") == 512


def test_the_smallest_and_the_largest_size_are_sizes_and_their_neighbours_are_not() -> None:
    assert size_bytes(1) == 1
    assert size_bytes(LARGEST) == LARGEST
    for beyond in (0, -1, LARGEST + 1, "0", "0.4"):
        with pytest.raises(UsageError, match="keep is"):
            size_bytes(beyond, "keep")


@pytest.mark.parametrize("value", [True, 1.5, None, "", "B", "1 XB", "1kBB", "1e3", "-1", "1 2"])
def test_what_is_no_size_is_refused_with_the_forms_that_are(value: Any) -> None:
    with pytest.raises(UsageError, match='text such as "500MB"'):
        size_bytes(value)


@given(tag=st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True), lsn=st.integers(0, 10**19 - 1))
def test_an_id_is_the_tag_of_its_log_and_a_number(tag: str, lsn: int) -> None:
    assert split_id(f"{tag}-{lsn}") == (tag, lsn)
    assert split_id(f" {lsn}\n") == ("", lsn)


@pytest.mark.parametrize(
    "text", ["", "-", "-7", "abc", "abc-", "a b-7", "abc-x7", "abc-7.0", "a-b-7", "abc-²", 7, None]
)
def test_what_is_no_id_is_refused_with_one_that_is(text: object) -> None:
    with pytest.raises(InvalidJobId, match=r"such as x-9|looks like x-9"):
        split_id(text, "x-9")


def test_a_number_that_no_job_can_have_is_no_id() -> None:
    assert split_id("9" * 19) == ("", 10**19 - 1)
    with pytest.raises(InvalidJobId, match="its number is too long"):
        split_id("9" * 20)


def test_the_name_that_was_meant_is_the_one_that_is_known_here() -> None:
    assert same("max_retries", ["attempts", "delay"]) == "attempts"
    assert same("max_retries", ["attempts", "retry"]) == "retry"
    assert same("max_retries", ["delay"]) == same("delay", ["delay"]) == ""
    assert meant("countdown", ["queue", "delay"]) == "delay"
    assert meant("result_expires", ["expires", "delay"]) == ""
    assert nearest("result_expires", iter(["expires"])) == "expires"
    assert nearest("prioritty", ["queue", "priority"]) == "priority"
    assert nearest("x", ["queue", "priority"]) == ""


def test_a_wrong_name_is_answered_with_the_one_that_was_meant_or_with_all() -> None:
    assert rather("que", ["queue", "delay"], "options") == "did you mean 'queue'?"
    assert rather("x", ["queue", "delay"], "options") == "the options are queue, delay"
    assert rather("x", [], "options") == "there are no options"
