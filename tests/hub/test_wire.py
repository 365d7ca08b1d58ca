"""Requests and answers round-trip; anything else is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.engine import Border
from taskq.log.format import codec
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.models import (
    NOWHERE,
    STATUS,
    Append,
    Ask,
    CopyEnd,
    Declare,
    HubError,
    Leave,
    PlacesKnown,
    Refused,
    Seal,
    Stored,
    Sync,
    Trouble,
    as_json,
    understood,
)
from tests.hub.place import DEVICE

if TYPE_CHECKING:
    from taskq_plugins.hub.models import Answer, Request
    from tests.hub.place import Place

_LOG: Final = UUID("12345678-1234-5678-1234-567812345678")
_STEM: Final = codec.encode_frame(b"body", 1, 7, 5, 10**18, 0, 3, 64)[: codec.FRAME_HEADER_SIZE]
_AT: Final = Border(7, 64 + codec.frame_size(4), 64, _STEM)
_REQUESTS: Final[list[Request]] = [
    Sync(_LOG, 5, frozenset({"records-4"}), _AT),
    Sync(_LOG, 5, frozenset(), NOWHERE),
    Ask(3, _LOG, (_AT, Border(7))),
    Append(3, _LOG, Border(7), b"bytes"),
    Append(3, _LOG, _AT, b""),
    Append(3, _LOG, _AT, b"bytes", 90),
    Seal(3, _LOG, _AT, bytes(range(32)).hex()),
    Declare(3, _LOG, _AT, Border(9), 11, "why"),
    Leave(3, _LOG, _AT),
    Sync(_LOG, 5, frozenset(), _AT, ((UUID(int=9), 7),), 60, "ab" * 32, 10**18),
]
#: A device cannot go on from these.
_ENDS: Final = (Trouble.CLONED, Trouble.HELD)
_ANSWERS: Final[list[tuple[Request, Answer]]] = [
    (_REQUESTS[0], CopyEnd(3, _AT, is_sealed=True, has_end=False, begins=1)),
    (_REQUESTS[2], PlacesKnown((True, False))),
    (_REQUESTS[3], Stored(_AT)),
    (_REQUESTS[0], CopyEnd(3, _AT, True, True, 1, 7, ((7, 900),))),
    (_REQUESTS[3], Stored(_AT, 7)),
    *((_REQUESTS[3], Refused(trouble, _AT)) for trouble in Trouble if trouble not in _ENDS),
]


@pytest.mark.parametrize("asked", _REQUESTS, ids=lambda item: type(item).__name__)
async def test_a_request_comes_out_as_it_went_in(
    place: Place, monkeypatch: pytest.MonkeyPatch, asked: Request
) -> None:
    came: list[object] = []

    def answer(_copies: Copies, device: str, asked: object) -> Refused:
        came.append((device, asked))
        return Refused(Trouble.SUPERSEDED, NOWHERE)

    monkeypatch.setattr(Copies, "answer", answer)
    assert (await place.sent(asked)).json()["type"] == "superseded"
    assert came == [(DEVICE, asked)]


@pytest.mark.parametrize(("asked", "answer"), _ANSWERS, ids=str)
def test_an_answer_comes_out_as_it_went_in(asked: Request, answer: Answer) -> None:
    assert understood(asked, *_answered(answer)) == answer


def _answered(answer: Answer) -> tuple[int, bytes]:
    return STATUS[answer.trouble] if isinstance(answer, Refused) else 200, as_json(answer)


@given(
    st.sampled_from([item for item, _ in _ANSWERS]), st.integers(100, 599), st.binary(max_size=80)
)
def test_what_is_no_answer_is_an_error_that_says_so(
    asked: Request, status: int, body: bytes
) -> None:
    with pytest.raises(HubError, match=f"the hub answers {status}: "):
        understood(asked, status, body)


def test_a_hub_cannot_bring_a_device_to_the_end_of_its_lsns() -> None:
    answer = CopyEnd(3, _AT, is_sealed=True, has_end=False, begins=2**62)
    with pytest.raises(HubError):
        understood(_REQUESTS[0], *_answered(answer))
