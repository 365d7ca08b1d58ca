"""The attempts of a job that is written again: packed into an option of the CARRIED record.

Each is ``number u32, owner u64, started i64, ended i64, outcome u8, size of the reason u16`` and
the reason in UTF-8. Of many the latest are kept.

And what an attempt logged, if its task keeps that: an option of the record that ends it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from taskq.core.model import LINES_BYTES_MAX
from taskq.core.records import Option
from taskq.core.views import AttemptView
from taskq.log.format.codec import option

#: Attempts that are kept, bytes of them together, and bytes of one reason.
ATTEMPTS_KEPT: Final = 20
HISTORY_BYTES_MAX: Final = 32 * 1024
REASON_KEPT_BYTES: Final = 1_024
_ATTEMPT: Final = struct.Struct("<IQqqBH")
#: All options of a record have 65 535 bytes, and those of a flow or a key come first.
OPTIONS_BYTES_MAX: Final = 2**16 - 1
_LINES_STORED_MAX: Final = 60_000
#: Outcomes by their number, which never changes.
OUTCOMES: Final = ("", "succeeded", "retried", "dead", "released", "lost", "cancelled", "expired")


def encode_history(attempts: Sequence[AttemptView]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for attempt in reversed(attempts[-ATTEMPTS_KEPT:]):
        part = _encode(attempt)
        size += len(part)
        if size > HISTORY_BYTES_MAX:
            break
        parts.append(part)
    return b"".join(reversed(parts))


def decode_history(data: bytes) -> list[AttemptView]:
    attempts: list[AttemptView] = []
    at = 0
    while at + _ATTEMPT.size <= len(data):
        number, owner, started_ns, ended_ns, outcome, size = _ATTEMPT.unpack_from(data, at)
        at += _ATTEMPT.size
        attempts.append(
            AttemptView(
                number=number,
                owner=owner,
                started_ns=started_ns,
                ended_ns=ended_ns,
                outcome=OUTCOMES[outcome] if outcome < len(OUTCOMES) else "",
                reason=data[at : at + size].decode("utf-8", "replace"),
            )
        )
        at += size
    return attempts[-ATTEMPTS_KEPT:]


def _encode(attempt: AttemptView) -> bytes:
    reason = attempt.reason.encode("utf-8", "replace")[:REASON_KEPT_BYTES]
    reason = reason.decode("utf-8", "ignore").encode()
    outcome = OUTCOMES.index(attempt.outcome) if attempt.outcome in OUTCOMES else 0
    fixed = _ATTEMPT.pack(
        attempt.number, attempt.owner, attempt.started_ns, attempt.ended_ns, outcome, len(reason)
    )
    return fixed + reason


def encode_lines(text: str) -> bytes:
    """Return the option LINES: as much of what an attempt logged as is kept, the latest of it."""
    data = text.encode("utf-8", "replace")[-LINES_BYTES_MAX:]
    while len(stored := zlib.compress(data, 1)) > _LINES_STORED_MAX:
        data = data[len(data) // 8 :]
    return option(Option.LINES, stored)
