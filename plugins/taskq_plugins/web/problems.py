"""What is wrong with a request, as RFC 9457 has it for programs: what, where, and what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from taskq.errors import (
    DiskFull,
    DuplicateKey,
    JobError,
    JobNotFound,
    JobSettled,
    KeyHeld,
    LogError,
    MomentGone,
    NotDead,
    PayloadTooLarge,
    ResultTimeout,
    StaleDelivery,
    TaskqError,
    UsageError,
)

#: The first that fits. A log that cannot be read or written is no fault of whoever asks.
_STATUS: Final[tuple[tuple[type[TaskqError], HTTPStatus], ...]] = (
    (JobNotFound, HTTPStatus.NOT_FOUND),
    (PayloadTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UsageError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (MomentGone, HTTPStatus.GONE),
    (ResultTimeout, HTTPStatus.ACCEPTED),
    (StaleDelivery, HTTPStatus.CONFLICT),
    (DuplicateKey, HTTPStatus.CONFLICT),
    (NotDead, HTTPStatus.CONFLICT),
    (KeyHeld, HTTPStatus.CONFLICT),
    (JobSettled, HTTPStatus.CONFLICT),
    (JobError, HTTPStatus.CONFLICT),
    (DiskFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (LogError, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Problem(Exception):
    """A request that is refused.

    Attributes:
        status: of the answer.
        detail: what is wrong, and what to do about it.
        kind: the class of our error behind it, for programs; "" for a refusal of the page's own.
        headers: of the answer, besides.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        kind: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind
        self.headers = headers or {}

    def as_dict(self) -> dict[str, Any]:
        document = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
        }
        return document | ({"error": self.kind} if self.kind else {})


def problem_of(error: TaskqError) -> Problem:
    status = next(
        (status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.CONFLICT
    )
    return Problem(status, str(error), type(error).__name__)
