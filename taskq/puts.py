"""One job of the layer below tasks: bytes and options, as a caller of ``TaskLog`` gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from taskq.core.model import ATTEMPTS_DEFAULT, PRIORITY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from taskq.call import OnConflict, Until
    from taskq.core.durations import Duration
    from taskq.log.format.bodies import Compression


class PutOptions(TypedDict, total=False):
    """What ``TaskLog.put`` takes beside the payload."""

    #: name of the queue
    queue: str
    #: 0 to 9, higher first
    priority: int
    #: not before so long from now
    delay: Duration
    #: give up unless it ran by then: a duration, or a datetime with a time zone
    expires: Duration | datetime | None
    #: small strings that travel with the job
    headers: Mapping[str, str]
    #: one job at a time may hold it in the queue
    key: str | bytes | None
    #: how long the key is held; None: until the job is settled
    window: Duration | None
    #: "settled", with a window: hold the key until both, window and job, are over
    until: Until | None
    #: if the key is held: "first" answers with the job that holds it, "replace" takes the key over
    #: unless that job runs (one that waits is cancelled), "raise" raises ``DuplicateKey``
    on_conflict: OnConflict
    #: how often the job may be claimed; 0 for no limit
    attempts: int
    #: how long the job and its result are kept after its end; None: as its queue or log says
    keep_result: Duration | None
    #: how the payload is compressed; None: as its queue or log says
    compress: Compression | None
    #: whether a larger one may go to a file; None: as its queue or log says
    spill: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One job of ``put_many``; the words are those of ``PutOptions``."""

    payload: bytes
    queue: str = "default"
    priority: int = PRIORITY_DEFAULT
    delay: Duration = 0
    expires: Duration | datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | bytes | None = None
    window: Duration | None = None
    until: Until | None = None
    on_conflict: OnConflict = "first"
    attempts: int = ATTEMPTS_DEFAULT
    keep_result: Duration | None = None
    compress: Compression | None = None
    spill: bool | None = None
