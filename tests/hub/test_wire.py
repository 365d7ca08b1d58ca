"""Requests and answers round-trip; anything else is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.engine import Border
from taskq.log.format import codec
from taskq_plugins.hub.messages import (
    NOWHERE,
    Append,
    Ask,
    BreakKind,
    CopyEnd,
    Declare,
    Missing,
    PlacesKnown,
    Refused,
    Resend,
    Seal,
    Stored,
    Sync,
    Trouble,
)
from taskq_plugins.hub.wire import HubError, answered, carried, delivered, understood

if TYPE_CHECKING:
    from taskq_plugins.hub.messages import Answer, Request

_LOG: Final = UUID("12345678-1234-5678-1234-567812345678")
_STEM: Final = codec.encode_frame(b"body", 1, 7, 5, 10**18, 0, 3, 64)[: codec.FRAME_HEADER_SIZE]
_AT: Final = Border(7, 64 + codec.frame_size(4), 64, _STEM)
_REQUESTS: Final[list[Request]] = [
    Sync(_LOG, 5, frozenset({"records-4"}), _AT),
    Sync(_LOG, 5, frozenset(), NOWHERE),
    Ask(3, _LOG, (_AT, Border(7))),
    Append(3, _LOG, Border(7), b"bytes"),
    Append(3, _LOG, _AT, b""),
    Seal(3, _LOG, _AT, bytes(range(32))),
    Declare(3, _LOG, BreakKind.GAP, _AT, Border(9), 11, "why"),
    Sync(_LOG, 5, frozenset(), _AT, 60, "ab" * 32, 10**18),
    Resend(3, _LOG, "ab" * 32, 7, b"bytes", is_last=True),
]
#: A device cannot go on from these.
_ENDS: Final = (Trouble.CLONED, Trouble.HELD)
_ANSWERS: Final[list[tuple[Request, Answer]]] = [
    (_REQUESTS[0], CopyEnd(3, _AT, is_sealed=True, has_end=False, high_lsn=9, begins=1)),
    (_REQUESTS[2], PlacesKnown((True, False))),
    (_REQUESTS[3], Stored(_AT)),
    (_REQUESTS[-1], Missing((("ab" * 32, 7),))),
    (_REQUESTS[-1], Missing(())),
    *((_REQUESTS[3], Refused(trouble, _AT)) for trouble in Trouble if trouble not in _ENDS),
]


@pytest.mark.parametrize("asked", _REQUESTS, ids=lambda item: type(item).__name__)
def test_a_request_comes_out_as_it_went_in(asked: Request) -> None:
    method, path, headers, body = carried(asked)
    lower = {name.lower(): value for name, value in headers.items()}
    assert delivered(method, path, lower, body) == asked


@pytest.mark.parametrize(("asked", "answer"), _ANSWERS, ids=str)
def test_an_answer_comes_out_as_it_went_in(asked: Request, answer: Answer) -> None:
    status, _, body = answered(answer)
    assert understood(asked, status, body) == answer


@given(
    st.sampled_from([item for item, _ in _ANSWERS]), st.integers(100, 599), st.binary(max_size=80)
)
def test_what_is_no_answer_is_an_error_that_says_so(
    asked: Request, status: int, body: bytes
) -> None:
    with pytest.raises(HubError, match=f"the hub answers {status}: "):
        understood(asked, status, body)


def test_a_hub_cannot_bring_a_device_to_the_end_of_its_lsns() -> None:
    answer = CopyEnd(3, _AT, is_sealed=True, has_end=False, high_lsn=2**62, begins=1)
    _, _, body = answered(answer)
    with pytest.raises(HubError):
        understood(_REQUESTS[0], 200, body)
