from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.fingerprints import (
    NO_REASON,
    PATTERN_CHARACTERS_MAX,
    fingerprint,
    pattern_of,
)

UUID = "550e8400-e29b-41d4-a716-446655440000"
#: Reasons, and what is left of them.
EXAMPLES = {
    "ValueError: bad order 17 of 'ann'": "ValueError: bad order <n> of <str>",
    "KeyError: 'user_id'\n  File \"app.py\", line 3": "KeyError: <str>",
    "  \n ValueError: late\nmore": "ValueError: late",
    "ValueError": "ValueError",
    "sqlite3.Error": "sqlite3.Error",
    "sqlite3.OperationalError: no such table: t1": "sqlite3.OperationalError: no such table: t<n>",
    "OSError: [Errno 111] Connect call failed ('127.0.0.1', 8080)": (
        "OSError: [Errno <n>] Connect call failed (<str>, <n>)"
    ),
    "ConnectionError: 10.1.2.3:8080 refused": "ConnectionError: <addr> refused",
    "cannot reach db7.example.com:5432 or redis:6379": "cannot reach <addr> or <addr>",
    "no route to fe80::1, [2001:db8::1]:443 or aa:bb:cc:dd:ee:ff": (
        "no route to <addr>, <addr> or <addr>"
    ),
    "std::vector of a::b": "std::vector of a::b",
    "<Job object at 0x7f3a2b1c>": "<Job object at <hex>>",
    "commit deadbeef01 and 5f3a9c-7": "commit <hex> and <id>-<n>",
    "the feedface of defaced": "the feedface of defaced",
    "token 01HZX3K9ABCDEFGHJKMNPQRSTV is old": "token <id> is old",
    f"job {UUID} gone": "job <uuid> gone",
    "mail to Bob.x+y@mail.example.org bounced": "mail to <email> bounced",
    "GET https://x.example/a/b?c=1: 503": "GET <url>: <n>",
    "cannot open /var/lib/data-7/file.txt: denied": "cannot open <path>: denied",
    "cannot open C:\\Users\\ann\\a.txt: denied": "cannot open <path>: denied",
    "cannot open ~/a/b and ./c and data/in/file.csv:12": "cannot open <path> and <path> and <path>",
    "read and/or write": "read and/or write",
    "at 2024-05-01T12:00:00.123Z or 12:30": "at <time> or <time>",
    "at 2024-05-01 12:00:00+02:00, 2024-05-01": "at <time>, <time>",
    "-3 and +4.5e-10 and 1,000.5 and 1_000": "<n> and <n> and <n> and <n>",
    "took 12.5s on device-17 over utf-8": "took <n>s on device-<n> over utf-<n>",
    "[1, 2, 3] and ['a', \"b\"]": "[<n>, ...] and [<str>, ...]",
    "can't decode what doesn't fit": "can't decode what doesn't fit",
    r"it said 'it\'s over' and b'\x00'": "it said <str> and <str>",
    "\x1b[31mred\x1b[0m \t word": "red word",
    "Fehler: größer als ١٢٣ 数字 🙂": "Fehler: größer als ١٢٣ 数字 🙂",
    "an open ' quote 5": "an open ' quote <n>",
    "": NO_REASON,
    " \r\n\t": NO_REASON,
    "x" * 900: "x" * PATTERN_CHARACTERS_MAX,
}


@pytest.mark.parametrize("reason", list(EXAMPLES))
def test_what_differs_from_job_to_job_becomes_a_placeholder(reason: str) -> None:
    assert pattern_of(reason) == EXAMPLES[reason]


@given(st.text(alphabet=st.sampled_from("aZ9 .:/'\"\\-@0x[]<>,~\n{}=é"), max_size=60))
def test_a_pattern_is_short_and_one_line(reason: str) -> None:
    pattern = pattern_of(reason)
    assert 0 < len(pattern) <= PATTERN_CHARACTERS_MAX
    assert "\n" not in pattern


@pytest.mark.parametrize("piece", ["/a", "a.", "0:", "a-", "'\\", "::", "a@", "1,", "<n>,", "~+"])
def test_no_reason_takes_long_to_read(piece: str) -> None:
    """The patterns could be made to try again and again; the timeout of tests is what watches."""
    pattern_of(piece * 100_000)


def test_a_fingerprint_is_of_task_and_pattern() -> None:
    """It is stored and compared over years, so it is pinned."""
    assert fingerprint("app.send", "KeyError: <str>") == "b310ff0c758e2c34"
    assert fingerprint(None, "KeyError: <str>") != fingerprint("app.send", "KeyError: <str>")
