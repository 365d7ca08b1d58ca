"""Text for people: durations, sizes, payloads and tables."""

from __future__ import annotations

import pytest

from taskq.cli import render
from taskq.core import views as documents
from taskq.core.model import SECOND_NS

NOW = 1_700_000_000 * SECOND_NS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s ago"), (-59, "59s ago"), (-180, "3m ago"), (-7_300, "2h ago"), (-200_000, "2d ago"),
     (80, "in 1m"), (86_400, "in 1d"), (7_197, "in 2h"), (3_570, "in 1h")],
)  # fmt: skip
def test_moments_read_as_people_say_them(seconds: int, text: str) -> None:
    assert render.when(NOW + seconds * SECOND_NS, NOW) == text


def test_never_is_empty_for_people_and_null_for_programs() -> None:
    assert render.when(0, NOW) == ""
    assert documents.moment(0) is None


def test_moments_for_programs_are_iso_8601_in_utc() -> None:
    assert documents.moment(NOW + 1_500) == "2023-11-14T22:13:20.000001+00:00"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.25, "0.2ms"), (12, "12ms"), (3_400, "3.4s"), (300_000, "5m"), (-1, "0.0ms")],
)
def test_spans_keep_the_digits_that_matter(milliseconds: float, text: str) -> None:
    assert render.precise(int(milliseconds * 1e6)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (5 * 2**30, "5.0 GiB"), (2**41, "2.0 TiB")],
)
def test_sizes_are_in_binary_units(count: int, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"a":1}', '{\n  "a": 1\n}'),
        ("grüße".encode(), "grüße"),
        (b"\xff\x00", "b'\\xff\\x00'"),
        (b"\x1b[31mred", "\\x1b[31mred"),
    ],
)
def test_a_payload_never_drives_the_terminal(body: bytes, text: str) -> None:
    assert render.body_text(body) == text


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (None, None),
        (b"[1]", {"encoding": "json", "data": [1]}),
        (b"hello", {"encoding": "text", "data": "hello"}),
        (b"\xff", {"encoding": "base64", "data": "/w=="}),
    ],
)
def test_a_payload_for_programs_says_how_it_is_encoded(
    body: bytes | None, document: object
) -> None:
    assert documents.body_document(body) == document


def test_a_piped_table_is_plain_and_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    render.print_table(("ID", ">N", "NOTE"), [("a-1", "7", long), ("a-10", "10", "[red]no\x1b")])
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["ID", "N", "NOTE"]
    assert rows == [f"a-1    7  {long}", "a-10  10  [red]no\\x1b"]
